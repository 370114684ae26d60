"""A report's few elements. Whatever comes from a file passes through ``text``; the rest here is markup already.

``mtnlg_data`` and ``mtnlg_eval`` must not import one another, so this file stands in both, and a test keeps the two
byte-equal.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def text(value: object) -> str:
    """Any value as text that no browser takes for markup."""
    return escape(str(value))


def figure(caption: str, picture: str, note: str = "") -> str:
    """A picture under its caption; ``note`` is the quieter half of the caption."""
    quiet = f" <span>{note}</span>" if note else ""
    return f"<figure><figcaption>{caption}{quiet}</figcaption>\n{picture}\n</figure>"


def row(cells: Sequence[str], kind: str = "") -> str:
    """A table's row: its head, then numbers."""
    head, *numbers = cells
    opening = f'<tr class="{kind}">' if kind else "<tr>"
    tail = "".join(f'<td class="n">{cell}</td>' for cell in numbers)
    return f'{opening}<th scope="row">{head}</th>{tail}</tr>'


def table(head: Sequence[str], rows: Iterable[str], kind: str = "") -> str:
    """A table from the names of its columns and its rows; wider than the page, it scrolls by itself."""
    first, *others = head
    heads = f'<th scope="col">{first}</th>' + "".join(f'<th class="n" scope="col">{name}</th>' for name in others)
    body = "\n".join(rows)
    opening = f'<table class="{kind}">' if kind else "<table>"
    return f'<div class="scroll">{opening}<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


def absent(what: str, file: str, command: str) -> str:
    """Says which part has not been run, and what would run it."""
    return f'<p class="absent">{what}: there is no <code>{file}</code>. <code>{command}</code> writes it.</p>'
