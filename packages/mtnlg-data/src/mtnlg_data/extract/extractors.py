"""Extract a page's main text by one of four methods: our jusText, our main content, resiliparse or trafilatura.

The two libraries build trees and guarantee no bound on their time, so they get only pages whose markup is of ordinary
size; our own reader needs no such limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from .boilerplate import BoilerplateSettings, main_text
from .main_content import ROLES, main_content
from .paragraphs import read_page
from .tree_limits import markup_excess

if TYPE_CHECKING:
    from collections.abc import Callable

Method = Literal["justext", "main", "resiliparse", "trafilatura"]


def extract_text(method: Method, html: str, settings: BoilerplateSettings, language: str) -> tuple[str, str | None]:
    """The main text of a page in this language (a CLD2 code), and the reason to drop the page, or None."""
    if method in _LIBRARIES:
        text, reason = _extract_with_library(_LIBRARIES[method], html)
    else:
        is_main = method == "main"
        page = read_page(html, layout=True, roles=ROLES) if is_main else read_page(html, layout=settings.layout)
        if page.truncated:
            return "", "too_deep"
        text = main_content(page, language) if is_main else main_text(page, settings, language)
        reason = None
    return text, reason if reason or text else "empty"


def _extract_with_library(extract: Callable[[str], str], html: str) -> tuple[str, str | None]:
    try:
        excess = markup_excess(html)
        return ("", excess) if excess else (extract(html), None)
    except Exception:  # noqa: BLE001  (a library may raise anything, and one bad page must cost one page)
        return "", "not_extracted"


def _resiliparse(html: str) -> str:
    from resiliparse.extract.html2text import extract_plain_text  # noqa: PLC0415  (an extra)

    return str(extract_plain_text(html, main_content=True))


def _trafilatura(html: str) -> str:
    import trafilatura  # noqa: PLC0415  (an extra)

    return trafilatura.extract(html, fast=True) or ""


_LIBRARIES: dict[Method, Callable[[str], str]] = {"resiliparse": _resiliparse, "trafilatura": _trafilatura}
