"""Extract a record's text and language: HTML pages lose their boilerplate, plain texts pass unchanged.

A page's main text is found by one of four methods: our jusText, our main content, resiliparse or trafilatura. The two
libraries build trees and guarantee no bound on their time, so they get only pages whose markup is of ordinary size; our
own reader needs no such limit.

As in paper.md 4.2: pycld2 reads the *HTML* and keeps pages whose first language is a wanted one, by default English,
before the costly part; jusText with that language's stop list and default settings then removes boilerplate paragraphs.
A language model reads the extracted text instead, as in FineWeb. Of plain texts only the language is detected; whether
it matters is a rule of ``clean``.

The cost of a page is bounded by its length, and limits depend on its content, never on a clock: the same page is kept
or dropped alike on every machine.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import field_validator

from mtnlg_data.quantities import alarm_share, share
from mtnlg_data.settings import setting
from mtnlg_data.sources import MAX_RECORD_BYTES

from .boilerplate import BoilerplateSettings, main_text
from .charset import decode_page
from .language import Language, LanguageSettings, detect_language, open_identifier
from .main_content import ROLES, main_content
from .paragraphs import read_page
from .tree_limits import markup_excess

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mtnlg_data.sources import Record

Method = Literal["justext", "main", "resiliparse", "trafilatura"]
#: Exceptions that extracting a broken page may raise.
PARSE_ERRORS = (ValueError, RecursionError)
CONTROL_BYTES = bytes([*range(9), 0x0B, *range(0x0E, 0x20), 0x7F])
SAMPLE_CHARACTERS = 1 << 16
MAX_BINARY_SHARE = 0.01


class ExtractSettings(LanguageSettings):
    """How records become documents."""

    method: Method = setting(
        "justext",
        "What removes the boilerplate of a page: jusText, our main, which finds more of the true text, or a library; "
        "trafilatura needs the extra of its name.",
        paper="justext",
    )
    justext: BoilerplateSettings = BoilerplateSettings()
    largest: int = setting(  # memory holds a record whole
        MAX_RECORD_BYTES, "Longer records are dropped unread.", unit="bytes", gt=0, lt=1 << 40
    )
    largest_page: int = setting(  # libxml2 ends a text at ten million bytes
        8_000_000, "Longer pages are dropped before they are parsed.", unit="characters", gt=0, lt=10_000_000
    )
    shard_characters: int = setting(
        1_000_000_000,
        "Maximum text per shard: small files are joined, large ones are read in parts.",
        unit="characters",
        gt=0,
    )
    max_failed: float = share(0.01, "Maximum share of unreadable records per source.", keyed=False)
    alarm_share: float = alarm_share(0.95)

    @field_validator("method")
    @classmethod
    def _is_installed(cls, method: Method) -> Method:
        if method != "main" and find_spec(method) is None:
            raise ValueError(f"{method} is not installed; install it with: pip install 'mtnlg-data[{method}]'")
        return method


class Extracted(NamedTuple):
    """A record's text, or the reason to drop the record."""

    text: str
    language: Language | None
    length: int  # characters of the record's text or HTML
    reason: str | None = None
    charset: str | None = None  # of a page, if it was guessed


def extract_record(
    record: Record, settings: ExtractSettings, by_language: Mapping[str, ExtractSettings] = {}
) -> Extracted:
    """Extract a record's text and language. May raise one of ``PARSE_ERRORS``.

    ``by_language`` has the settings for pages in which CLD2 finds one of these languages, instead of ``settings``.
    """
    if isinstance(record.content, str):
        text = record.content
        if not text.strip():
            return Extracted("", None, len(text), "empty")
        return Extracted(text, open_identifier(settings.language_model)(text), len(text))
    html, charset = decode_page(record.content, record.charset)
    length = len(html)
    if length > settings.largest_page:
        return Extracted("", None, length, "page_too_large")
    if not is_text(html):
        return Extracted("", None, length, "not_text")
    if b"\0" in record.content:  # in a str of two bytes per character the search takes as long as an extraction
        html = html.replace("\0", "")
    language = detect_language(html, html=True)
    if settings.language_model is None and (reason := settings.refuse(language)):
        return Extracted("", language, length, reason)
    language_settings = by_language.get(language.code, settings)
    text, reason = extract_text(language_settings.method, html, language_settings.justext, language.code)
    if settings.language_model is not None and reason is None:
        language = open_identifier(settings.language_model)(text)
        reason = settings.refuse(language)
    return Extracted(text, language, length, reason, charset)


def is_text(text: str) -> bool:
    """Whether at most ``MAX_BINARY_SHARE`` of the text's beginning are control or replacement characters."""
    sample = text[:SAMPLE_CHARACTERS]
    encoded = sample.encode(errors="replace")
    binary = len(encoded) - len(encoded.translate(None, CONTROL_BYTES)) + sample.count("\ufffd")
    return binary <= MAX_BINARY_SHARE * len(sample)


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
