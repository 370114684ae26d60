"""Extract a page's main text by one of three methods: our jusText, resiliparse or trafilatura.

The two libraries build trees and guarantee no bound on their time, so they get only pages whose markup is of ordinary
size; our own reader needs no such limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from .boilerplate import BoilerplateSettings, main_text
from .paragraphs import markup_excess, read_page

if TYPE_CHECKING:
    from collections.abc import Callable

Method = Literal["justext", "resiliparse", "trafilatura"]


def extract_text(method: Method, html: str, settings: BoilerplateSettings, language: str) -> tuple[str, str | None]:
    """The main text of a page in this language of CLD2's, and the reason to drop the page or None."""
    if method == "justext":
        page = read_page(html, layout=settings.layout)
        text, reason = ("", "too_deep") if page.truncated else (main_text(page, settings, language), None)
    else:
        text, reason = _extract_with_library(_LIBRARIES[method], html)
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


_LIBRARIES: dict[str, Callable[[str], str]] = {"resiliparse": _resiliparse, "trafilatura": _trafilatura}
