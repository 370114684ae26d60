"""What sections of the page are made of: paragraphs, figures and tables. Text is escaped by markupsafe and jinja2."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from .markup import DASH

if TYPE_CHECKING:
    from collections.abc import Sequence

EMPTY = {"", DASH, None}


class Row(NamedTuple):
    """Cells of a table's row: text, numbers as text, or markup. ``kind`` is total, notes, first or nothing."""

    cells: Sequence[Any]
    kind: str = ""


@dataclass(frozen=True)
class Table:
    """A table; a column in which no row has anything goes. ``marked``: its last column is a picture."""

    head: Sequence[Any]
    rows: Sequence[Row]
    caption: str = ""
    kind: str = ""
    marked: bool = False

    def __html__(self) -> str:
        """As markup; it scrolls by itself where it is wider than the page."""
        plain = [row for row in self.rows if row.kind != "notes"]
        kept = [n for n in range(len(self.head)) if not n or any(row.cells[n] not in EMPTY for row in plain)]
        rows = [row if row.kind == "notes" else Row([row.cells[n] for n in kept], row.kind) for row in self.rows]
        table = Table([self.head[n] for n in kept], rows, self.caption, self.kind, self.marked)
        return environment().get_template("table.html").render(table=table)


class Section(NamedTuple):
    """A chapter of the page."""

    anchor: str
    title: str
    blocks: Sequence[Any]


def paragraph(text: object, kind: str = "") -> Markup:
    """A paragraph of a class, or of none."""
    return Markup('<p class="{}">{}</p>' if kind else "<p>{1}</p>").format(kind, text)


def figure(caption: str, picture: str, note: str = "") -> Markup:
    """A ``<figure>`` with its caption above; ``note`` follows the caption in a muted colour."""
    return Markup("<figure><figcaption>{} <span>{}</span></figcaption>\n{}\n</figure>").format(
        caption, note, Markup(picture)
    )


def beside(kind: str, *blocks: Any) -> Markup:  # noqa: ANN401  (anything that is markup)
    """Blocks in a row, or in a grid of a class."""
    return Markup('<div class="{}">{}</div>').format(kind, Markup("\n").join(blocks))


def lines(texts: Sequence[str | Markup]) -> Markup:
    """Texts below one another."""
    return Markup("<br>").join(texts)


@cache
def environment() -> Environment:
    """jinja2 with this package's templates; everything is escaped that is not markup."""
    loader = PackageLoader(__package__ or "", "")
    return Environment(loader=loader, autoescape=True, trim_blocks=False, keep_trailing_newline=True)


def asset(name: str) -> Markup:
    """A file of this package that is markup as it stands."""
    return Markup(files(__package__).joinpath(name).read_text(encoding="utf-8"))
