"""Decode an HTML page by byte order mark, HTTP header, <meta> or XML declaration, as UTF-8, or by detection.

Labels have the meaning that browsers give them (encoding.spec.whatwg.org): Latin-1 is Windows-1252, GB 2312 is GB
18030, and a <meta> that declares UTF-16 in ASCII bytes is wrong. Labels that the web does not know are ignored, so that
a page cannot ask for EBCDIC or for a codec that is slow on crafted input. As in a browser's parser, a <meta> counts
anywhere except in comments, scripts and styles (html.spec.whatwg.org, "changing the encoding while parsing").

Pages that declare nothing, and are not UTF-8, are detected by uchardet (Resiliparse); benchmarks/charsets.py compares
detectors. It guesses from few accented letters, so a Latin encoding other than the western one is accepted only with
several. No confidence is recorded: uchardet gives none, and where charset-normalizer disagrees, on one page in ten, it
is wrong nine times in ten.
"""

from __future__ import annotations

import codecs
import re
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING

import webencodings

if TYPE_CHECKING:
    from collections.abc import Iterator

BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
#: A <meta> with its attributes; comments, scripts and styles are matched too, to skip the tags inside them.
META = re.compile(
    r"<!--.*?(?:-->|\Z)|<(?:script|style)\b.*?(?:</(?:script|style)|\Z)|<meta[\s/]([^>]{0,1024})",
    re.IGNORECASE | re.DOTALL,
)
META_SCAN_BYTES = 1 << 20
ATTRIBUTE = re.compile(r"(?<![^\s\"'/])([a-z-]+)\s*=\s*(?:\"([^\"]*)|'([^']*)|([^\s\"'>]+))", re.IGNORECASE)
CONTENT_CHARSET = re.compile(r"charset\s*=\s*[\"']?\s*([^\s\"';]+)", re.IGNORECASE)
XML_DECLARATION = re.compile(r"\s*<\?xml(?:[^>]{0,256}?encoding\s*=\s*[\"']([\w:.-]{1,40}))?[^>]*>", re.IGNORECASE)
UTF_8, FALLBACK = "utf-8", "windows-1252"
ISO_2022_JP = "\x1b$"  # begins its Japanese; all its bytes are ASCII
#: Maximum share of the non-ASCII characters that may be broken: in UTF-8, whose sequences rarely occur by chance, and
#: in an encoding that is declared together with Windows-1252.
MAX_BROKEN_UTF_8, MAX_BROKEN = 0.5, 0.1
#: Web encoding → Python codec, where a superset is read or Python has no codec of that name.
CODECS = {"gbk": "gb18030", "x-user-defined": "cp1252"}
#: Encoding named by uchardet → the web's name for it or for the superset that the web reads it as.
DETECTED = {
    "cp949": "euc-kr",
    "iso8859-13": "windows-1257",
    "koi8-r": "koi8-u",
    "mac-cyrillic": "x-mac-cyrillic",
}
MAX_DETECTION_BYTES = 1 << 20
#: Latin encodings other than the western one, and how many different accented letters between ASCII letters they need.
LATIN = re.compile("iso-8859-([234]|1[0456])|windows-125[0478]")
AMID_LETTERS = re.compile(rb"[A-Za-z][\x80-\x90\x98-\xff]+(?=[A-Za-z])")
MIN_ACCENTED = 3


def decode_html(page: bytes, declared: str | None) -> str:
    """Decode a page, given the charset declared in its HTTP header, and remove its XML declaration."""
    return decode_page(page, declared)[0]


def decode_page(page: bytes, declared: str | None) -> tuple[str, str | None]:
    """The text as ``decode_html`` returns it, and the encoding if it was detected.

    The XML declaration is removed because lxml would apply the encoding in it to the decoded text.
    """
    text, detected = _decode(page, declared)
    declaration = XML_DECLARATION.match(text)
    return text[declaration.end() :] if declaration else text, detected


def _decode(page: bytes, declared: str | None) -> tuple[str, str | None]:
    """Decode with the first encoding, of those declared and then UTF-8, that decodes the page.

    Windows-1252 decodes nearly anything, so it is tried last: a page that declares it may still be UTF-8. Broken
    sequences in UTF-8 become replacement characters. If no encoding decodes the page, so do those in the encoding with
    the smallest share of broken characters, or in Windows-1252 if that is declared too.
    """
    for mark, encoding in BOMS:
        if page.startswith(mark):
            return page[len(mark) :].decode(encoding, "replace"), None
    best = (2.0, "")
    for name in chain(_declared(page, declared), [UTF_8]):
        if name and name != FALLBACK:
            best = min(best, _attempt(page, name), key=itemgetter(0))
            if not best[0]:
                return best[1], None
    names = set(filter(None, _declared(page, declared)))
    if names and (best[0] <= MAX_BROKEN or FALLBACK not in names):
        return best[1], None
    detected = None if names else _detect(page)
    return page.decode(_codec(detected or FALLBACK), "replace"), detected


def _attempt(page: bytes, name: str) -> tuple[float, str]:
    """Share of the non-ASCII characters that are broken in an encoding (0 if UTF-8 is sound enough), and the text."""
    codec = _codec(name)
    try:
        return 0.0, page.decode(codec)
    except UnicodeError:
        text = page.decode(codec, "replace")
    broken = text.count("\ufffd") / (len(text) - len(text.encode("ascii", "ignore")))
    return 0.0 if name == UTF_8 and broken <= MAX_BROKEN_UTF_8 else broken, text


def _declared(page: bytes, declared: str | None) -> Iterator[str | None]:
    """The encodings that HTTP, the first <meta> with one, the XML declaration and escape sequences declare."""
    yield _name(declared)
    head = page[:META_SCAN_BYTES].decode("latin-1")
    metas = (_name(_meta_label(meta[1])) for meta in META.finditer(head) if meta[1])
    xml = XML_DECLARATION.match(head)
    for name in (next(filter(None, metas), None), xml and _name(xml[1])):
        yield UTF_8 if name and name.startswith("utf-16") else name  # as the label was read in ASCII
    yield "iso-2022-jp" if ISO_2022_JP in head else None


def _meta_label(tag: str) -> str | None:
    """The label in the attributes of a <meta>."""
    attributes = {name.lower(): "".join(values) for name, *values in ATTRIBUTE.findall(tag)}
    if "charset" in attributes or attributes.get("http-equiv", "").lower() != "content-type":
        return attributes.get("charset")
    content = CONTENT_CHARSET.search(attributes.get("content", ""))
    return content and content[1]


def _detect(page: bytes) -> str:
    """The likely encoding of a page that declares none."""
    from resiliparse.parse.encoding import detect_encoding  # noqa: PLC0415  (few pages need it)

    encoding = detect_encoding(page, max_len=MAX_DETECTION_BYTES, html5_compatible=False) or ""
    name = _name(DETECTED.get(encoding, encoding.replace("_", "-"))) or FALLBACK
    return FALLBACK if LATIN.fullmatch(name) and len(set(AMID_LETTERS.findall(page))) < MIN_ACCENTED else name


def _name(label: str | None) -> str | None:
    """The web's encoding of a label; None for a label that the web does not know."""
    encoding = webencodings.lookup(label or "")
    return None if encoding is None or encoding.name == "replacement" else str(encoding.name)


def _codec(name: str) -> str:
    """Python's codec for an encoding of the web."""
    return CODECS.get(name) or str(webencodings.lookup(name).codec_info.name)
