"""Records → texts: the text of HTML pages without boilerplate, and the language of every document.

As in paper.md 4.2: pycld2 reads the *HTML* and keeps pages whose first language is English before the costly part
begins; jusText with its English stop list and its defaults then drops boilerplate paragraphs. Texts that come as text
pass through with their language noted; whether it matters is a rule of ``clean``.

What a page costs is bounded by its length, whatever it holds, and decided by what it holds, never by a clock: the same
page has the same fate on every machine.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import lxml.etree
import pycld2
from pydantic import Field, field_validator

from mtnlg_data.settings import Settings
from mtnlg_data.sources import LARGEST

from .boilerplate import BoilerplateSettings
from .charset import decode
from .extractors import Method, text_by

if TYPE_CHECKING:
    from mtnlg_data.sources import Record

ENGLISH = "en"
UNKNOWN = "un"
#: C0, DEL and C1 controls but for tab, line feed, form feed and carriage return: cld2 refuses them.
CONTROLS = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f]")
#: What a page may raise that only looks like one.
BROKEN = (ValueError, RecursionError, lxml.etree.LxmlError)
NOT_TEXT = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f\ufffd]")
SAMPLE = 1 << 16
MOST_NOT_TEXT = 0.01


class ExtractSettings(Settings):
    """How records become documents."""

    method: Method = "justext"  # the two others each need the extra of their name
    justext: BoilerplateSettings = BoilerplateSettings()
    largest: int = Field(LARGEST, gt=0)  # bytes of the longest record that is read
    largest_page: int = Field(8_000_000, gt=0, lt=10_000_000)  # characters; libxml2 ends a text at ten million bytes
    shard_characters: int = Field(256_000_000, gt=0)  # of text in a shard, from which on a file begins a further one

    @field_validator("method")
    @classmethod
    def _is_installed(cls, method: Method) -> Method:
        if find_spec(method) is None:
            raise ValueError(f"{method} is not installed; pip install 'mtnlg-data[{method}]' brings it")
        return method


class Extracted(NamedTuple):
    """What became of a record."""

    text: str
    language: str | None
    length: int  # characters of the record as it came
    reason: str | None = None  # to drop it


def text_of(record: Record, settings: ExtractSettings) -> Extracted:
    """The text of a record, or the reason to drop it. May raise one of ``BROKEN``."""
    if isinstance(record.content, str):
        text = record.content
        if not text.strip():
            return Extracted("", None, len(text), "empty")
        return Extracted(text, language_of(text), len(text))
    html = decode(record.content, record.charset)
    length = len(html)
    if length > settings.largest_page:
        return Extracted("", None, length, "page_too_large")
    if not is_text(html):
        return Extracted("", None, length, "not_text")
    html = html.replace("\0", "")
    language = language_of(html, html=True)
    text, reason = text_by(settings.method, html, settings.justext) if language == ENGLISH else ("", "not_english")
    return Extracted(text, language, length, reason)


def is_text(text: str) -> bool:
    """Whether the beginning holds next to no control or replacement characters."""
    sample = text[:SAMPLE]
    return len(NOT_TEXT.findall(sample)) <= MOST_NOT_TEXT * len(sample)


def language_of(text: str, *, html: bool = False) -> str:
    """The first language that cld2 finds, as its code; ``un`` where it finds none."""
    try:
        _, _, found = pycld2.detect(text.encode(errors="replace"), isPlainText=not html)
    except pycld2.error:
        try:
            stripped = CONTROLS.sub("", text)
            _, _, found = pycld2.detect(stripped.encode(errors="replace"), isPlainText=not html)
        except pycld2.error:
            return UNKNOWN
    return str(found[0][1])
