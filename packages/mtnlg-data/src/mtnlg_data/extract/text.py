"""Extract a record's text and language: HTML pages lose their boilerplate, plain texts pass unchanged.

As in paper.md 4.2: pycld2 reads the *HTML* and keeps pages whose first language is English, before the costly part;
jusText with its English stop list and default settings then removes boilerplate paragraphs. Plain texts only get
their language detected; whether it matters is a rule of ``clean``.

The cost of a page is bounded by its length, and limits depend on its content, never on a clock: the same page is kept
or dropped alike on every machine.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import lxml.etree
import pycld2
from pydantic import Field, field_validator

from mtnlg_data.document import ENGLISH
from mtnlg_data.settings import Settings
from mtnlg_data.sources import MAX_RECORD_BYTES

from .boilerplate import BoilerplateSettings
from .charset import decode_html
from .extractors import Method, extract_text

if TYPE_CHECKING:
    from mtnlg_data.sources import Record

UNKNOWN = "un"
#: C0, DEL and C1 controls except tab, line feed, form feed and carriage return: cld2 refuses them.
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f]")
#: What extracting a broken page may raise.
PARSE_ERRORS = (ValueError, RecursionError, lxml.etree.LxmlError)
BINARY_CHARACTERS = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f\ufffd]")
SAMPLE_CHARACTERS = 1 << 16
MAX_BINARY_SHARE = 0.01


class ExtractSettings(Settings):
    """How records become documents."""

    method: Method = "justext"  # each of the others needs the extra of its name
    justext: BoilerplateSettings = BoilerplateSettings()
    largest: int = Field(MAX_RECORD_BYTES, gt=0)  # bytes; longer records are dropped unread
    largest_page: int = Field(8_000_000, gt=0, lt=10_000_000)  # characters; libxml2 ends a text at ten million bytes
    shard_characters: int = Field(256_000_000, gt=0)  # of text, at which a file's output continues in another shard
    max_failed: float = Field(0.01, ge=0, le=1)  # share of a source's records that may be unreadable in a success

    @field_validator("method")
    @classmethod
    def _is_installed(cls, method: Method) -> Method:
        if find_spec(method) is None:
            raise ValueError(f"{method} is not installed; install it with: pip install 'mtnlg-data[{method}]'")
        return method


class Extracted(NamedTuple):
    """A record's text, or the reason to drop the record."""

    text: str
    language: str | None
    length: int  # characters of the record's text or HTML
    reason: str | None = None


def extract_record(record: Record, settings: ExtractSettings) -> Extracted:
    """Extract a record's text and language. May raise one of ``PARSE_ERRORS``."""
    if isinstance(record.content, str):
        text = record.content
        if not text.strip():
            return Extracted("", None, len(text), "empty")
        return Extracted(text, detect_language(text), len(text))
    html = decode_html(record.content, record.charset)
    length = len(html)
    if length > settings.largest_page:
        return Extracted("", None, length, "page_too_large")
    if not is_text(html):
        return Extracted("", None, length, "not_text")
    html = html.replace("\0", "")
    language = detect_language(html, html=True)
    text, reason = extract_text(settings.method, html, settings.justext) if language == ENGLISH else ("", "not_english")
    return Extracted(text, language, length, reason)


def is_text(text: str) -> bool:
    """Whether at most ``MAX_BINARY_SHARE`` of the text's beginning are control or replacement characters."""
    sample = text[:SAMPLE_CHARACTERS]
    return len(BINARY_CHARACTERS.findall(sample)) <= MAX_BINARY_SHARE * len(sample)


def detect_language(text: str, *, html: bool = False) -> str:
    """Code of the text's main language according to cld2; ``un`` where it finds none."""
    try:
        _, _, languages = pycld2.detect(text.encode(errors="replace"), isPlainText=not html)
    except pycld2.error:
        try:
            stripped = CONTROL_CHARACTERS.sub("", text)
            _, _, languages = pycld2.detect(stripped.encode(errors="replace"), isPlainText=not html)
        except pycld2.error:
            return UNKNOWN
    return str(languages[0][1])
