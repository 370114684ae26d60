"""Extract a page's main text by one of three methods: our jusText, resiliparse or trafilatura.

The two libraries build trees and guarantee no bound on their time, so they get only pages whose markup is of ordinary
size; our own reader needs no such limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from lxml import etree

from .boilerplate import BoilerplateSettings, main_text
from .html_fragments import MAX_DEPTH
from .paragraphs import read_page

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Method = Literal["justext", "resiliparse", "trafilatura"]
MAX_TAGS = 200_000
MAX_ATTRIBUTES = 1000  # of one tag


def extract_text(method: Method, html: str, settings: BoilerplateSettings, language: str) -> tuple[str, str | None]:
    """The main text of a page in this language of CLD2's, and the reason to drop the page or None."""
    if method == "justext":
        page = read_page(html)
        text, reason = ("", "too_deep") if page.truncated else (main_text(page.paragraphs, settings, language), None)
    else:
        text, reason = _extract_with_library(_LIBRARIES[method], html)
    return text, reason if reason or text else "empty"


def _extract_with_library(extract: Callable[[str], str], html: str) -> tuple[str, str | None]:
    target: Any = _MarkupLimits()
    try:
        etree.fromstring(html, etree.HTMLParser(target=target))
        return extract(html), None
    except _OversizedError as error:
        return "", str(error)
    except Exception:  # noqa: BLE001  (a library may raise anything, and one bad page must cost one page)
        return "", "not_extracted"


class _OversizedError(Exception):
    """Markup too large for a tree; the argument is the drop reason."""


class _MarkupLimits:
    """An lxml parser target that raises ``_OversizedError`` for markup beyond the limits."""

    def __init__(self) -> None:
        self._depth = self._tags = 0

    def start(self, _name: str, attributes: Mapping[str, str]) -> None:
        self._depth += 1
        self._tags += 1
        if self._depth > MAX_DEPTH:
            raise _OversizedError("too_deep")
        if self._tags > MAX_TAGS:
            raise _OversizedError("too_many_tags")
        if len(attributes) > MAX_ATTRIBUTES:
            raise _OversizedError("too_many_attributes")

    def end(self, _name: str) -> None:
        self._depth -= 1

    def close(self) -> None:
        """Do nothing; lxml requires it."""


def _resiliparse(html: str) -> str:
    from resiliparse.extract.html2text import extract_plain_text  # noqa: PLC0415  (an extra)

    return str(extract_plain_text(html, main_content=True))


def _trafilatura(html: str) -> str:
    import trafilatura  # noqa: PLC0415  (an extra)

    return trafilatura.extract(html, fast=True) or ""


_LIBRARIES: dict[str, Callable[[str], str]] = {"resiliparse": _resiliparse, "trafilatura": _trafilatura}
