"""Records → documents: the text of HTML pages without boilerplate, and the language of every document.

As in paper.md 4.2: pycld2 reads the *HTML* and keeps pages whose first language is English before the costly part
begins; jusText with its English stop list and its defaults then drops boilerplate paragraphs. Texts that come as text
pass through with their language noted; whether it matters is a rule of ``clean``.
"""

from __future__ import annotations

import codecs
import re
from functools import cache
from typing import TYPE_CHECKING

import justext
import lxml.etree
import pycld2
from pydantic import Field

from .settings import Settings
from .sources import LARGEST

if TYPE_CHECKING:
    from .sources import Record

ENGLISH = "en"
UNKNOWN = "un"
META_CHARSET = re.compile(rb"<meta[^>]{0,256}?charset\s*=\s*[\"']?\s*([A-Za-z0-9_:.-]{1,40})", re.IGNORECASE)
META_WITHIN = 2048
MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
#: Codecs of Python that are no character sets of the web, some of them slow on purpose-built input.
NOT_OF_THE_WEB = {"idna", "mbcs", "oem", "punycode", "raw-unicode-escape", "undefined", "unicode-escape", "utf-7"}
LATIN_1 = {"ascii", "iso8859-1"}
WINDOWS = "cp1252"
#: C0, DEL and C1 controls but for tab, line feed, form feed and carriage return: cld2 refuses them.
CONTROLS = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f]")
#: What a page may raise that only looks like one.
BROKEN = (ValueError, RecursionError, lxml.etree.LxmlError)
NOT_TEXT = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f\ufffd]")
SAMPLE = 1 << 16
MOST_NOT_TEXT = 0.01


class ExtractSettings(Settings):
    """How records become documents."""

    largest: int = Field(LARGEST, gt=0)  # bytes of the longest record that is read
    shard_characters: int = Field(256_000_000, gt=0)  # of text in a shard, from which on a file begins a further one


def text_of(record: Record) -> tuple[str, str | None, int, str | None]:
    """Text, language, length as it came, and the reason to drop it, if there is one. May raise one of ``BROKEN``."""
    if isinstance(record.content, str):
        text = record.content
        return (text, language_of(text), len(text), None) if text.strip() else ("", None, len(text), "empty")
    html = decode(record.content, record.charset)
    if not is_text(html):
        return "", None, len(html), "not_text"
    language = language_of(html, html=True)
    if language != ENGLISH:
        return "", language, len(html), "not_english"
    text = main_text(html)
    return text, language, len(html), None if text else "empty"


def decode(page: bytes, declared: str | None) -> str:
    """The page as text: by its byte order mark, HTTP's charset, its <meta>, or UTF-8, the first that reads all of it.

    Windows-1252 reads nearly anything, so a page that declares it is still UTF-8 if it can be. A page that none of them
    reads is read with replacement characters: as it declared, or else as Windows-1252, as a browser would.
    """
    meta = META_CHARSET.search(page, 0, META_WITHIN)
    marked = next((codec for mark, codec in MARKS if page.startswith(mark)), None)
    named = [marked, declared, meta and meta[1].decode("ascii")]
    declared_codecs = [codec for name in named if name and (codec := _codec(name))]
    for codec in sorted([*declared_codecs, "utf-8"], key=lambda codec: codec == WINDOWS):
        try:
            return page.decode(codec)
        except UnicodeError:
            continue
    return page.decode(next(iter(declared_codecs), WINDOWS), "replace")


def _codec(name: str) -> str | None:
    """Python's codec for a charset label of the web, where Latin-1 means Windows-1252; None where there is none."""
    try:
        codec = codecs.lookup(name).name
        "".encode(codec)  # a codec from bytes to bytes, such as zip, is none of text
    except (LookupError, ValueError, TypeError):
        return None
    return None if codec in NOT_OF_THE_WEB else WINDOWS if codec in LATIN_1 else codec


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


def main_text(html: str) -> str:
    """The paragraphs that jusText does not take for boilerplate, parted by blank lines."""
    paragraphs = justext.justext(html, _stop_words())
    return "\n\n".join(paragraph.text for paragraph in paragraphs if not paragraph.is_boilerplate)


@cache
def _stop_words() -> frozenset[str]:
    return frozenset(justext.get_stoplist("English"))
