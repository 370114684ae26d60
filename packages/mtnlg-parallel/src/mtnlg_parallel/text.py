"""Text that commands print, from Jinja templates beside the modules that have its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mtnlg_model.console import output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


def render(
    template: str,
    values: Mapping[str, object],
    filters: Iterable[Callable[..., object]],
    finalize: Callable[[object], object] | None = None,
) -> str:
    """Fill in a template of this package with values; ``filters`` have their functions' names."""
    from jinja2 import (  # noqa: PLC0415  (slow to import, and commands that print JSON do without)
        Environment,
        PackageLoader,
        StrictUndefined,
        select_autoescape,
    )

    environment = Environment(
        loader=PackageLoader("mtnlg_parallel", "."),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=finalize,
    )
    environment.filters |= {each.__name__: each for each in (table, *filters)}
    return environment.get_template(template).render(values)


def print_text(text: str) -> None:
    """Print a rendered text on stdout."""
    output(soft_wrap=True).print(text.rstrip())


def table(text: str, left: int) -> str:
    """Align the cells of rows, which `` | `` separates: ``left`` columns to the left, figures to the right."""
    rows = [[cell.strip() for cell in line.split(" |")] for line in text.strip().split("\n")]
    columns = [
        [f"{cell:{'<' if number < left else '>'}{max(map(len, column))}}  " for cell in column]
        for number, column in enumerate(zip(*rows, strict=True))
    ]
    return "".join(f"{''.join(row)}\n" for row in zip(*columns, strict=True))
