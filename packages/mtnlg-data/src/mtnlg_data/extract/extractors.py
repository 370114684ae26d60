"""The three ways to take the text out of a page: our jusText, and two libraries that a recipe may choose instead.

The libraries build trees and promise no bound on their time, so a page goes to them only if its markup is of a size
that pages have; our own reader needs no such bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from lxml import etree

from .boilerplate import BoilerplateSettings, main_text
from .fragments import DEEPEST
from .paragraphs import read_page

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Method = Literal["justext", "resiliparse", "trafilatura"]
MOST_TAGS = 200_000
MOST_ATTRIBUTES = 1000  # of one tag


def text_by(method: Method, html: str, settings: BoilerplateSettings) -> tuple[str, str | None]:
    """The text of a page, and the reason to drop it, if there is one."""
    if method == "justext":
        page = read_page(html)
        text, reason = ("", "too_deep") if page.cut else (main_text(page.paragraphs, settings), None)
    else:
        text, reason = _text_by_library(_LIBRARIES[method], html)
    return text, reason if reason or text else "empty"


def _text_by_library(extract: Callable[[str], str], html: str) -> tuple[str, str | None]:
    target: Any = _Sizes()
    try:
        etree.fromstring(html, etree.HTMLParser(target=target))
        return extract(html), None
    except _OversizedError as oversized:
        return "", str(oversized)
    except Exception:  # noqa: BLE001  (a library promises nothing, and one bad page must cost one page)
        return "", "not_extracted"


class _OversizedError(Exception):
    """Markup that is too large for a tree; its argument is the reason to drop the page."""


class _Sizes:
    """A target of lxml's parser that raises ``_OversizedError``."""

    def __init__(self) -> None:
        self._depth = self._tags = 0

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        """A tag opens."""
        del name
        self._depth += 1
        self._tags += 1
        if self._depth > DEEPEST:
            raise _OversizedError("too_deep")
        if self._tags > MOST_TAGS:
            raise _OversizedError("too_many_tags")
        if len(attributes) > MOST_ATTRIBUTES:
            raise _OversizedError("too_many_attributes")

    def end(self, name: str) -> None:
        """A tag closes."""
        del name
        self._depth -= 1

    def close(self) -> None:
        """The page ends."""


def _by_resiliparse(html: str) -> str:
    from resiliparse.extract.html2text import extract_plain_text  # noqa: PLC0415  (an extra)

    return str(extract_plain_text(html, main_content=True))


def _by_trafilatura(html: str) -> str:
    import trafilatura  # noqa: PLC0415  (an extra)

    return trafilatura.extract(html, fast=True) or ""


_LIBRARIES: dict[str, Callable[[str], str]] = {"resiliparse": _by_resiliparse, "trafilatura": _by_trafilatura}
