"""Decode an HTML page: by byte order mark, HTTP header, <meta> or XML declaration, or as UTF-8; the first that fits.

Labels mean what browsers take them for (encoding.spec.whatwg.org): Latin-1 is Windows-1252, GB 2312 is GB 18030, and a
<meta> that declares UTF-16 in ASCII bytes is wrong. Labels that the web does not know are ignored, so that a page
cannot ask for EBCDIC or for a codec that is slow on crafted input.
"""

from __future__ import annotations

import codecs
import re

BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
UTF_16 = {"utf-16-le", "utf-16-be"}
#: The first <meta> with a charset; comments are matched too, to skip any <meta> inside them.
META = re.compile(
    rb"<!--.*?(?:-->|\Z)|<meta[^>]{0,256}?charset\s*=\s*[\"']?\s*([\w:.-]{1,40})", re.IGNORECASE | re.DOTALL
)
META_SCAN_BYTES = 2048
XML_ENCODING = re.compile(rb"\s*<\?xml[^>]{0,256}?encoding\s*=\s*[\"']([\w:.-]{1,40})", re.IGNORECASE)
XML_DECLARATION = re.compile(r"\s*<\?xml[^>]*>", re.IGNORECASE)
FALLBACK = "cp1252"

#: Codecs of the web by Python's name; some are read as a superset from the same family.
CODECS = {name: name for name in ("utf-8", "utf-16-le", "utf-16-be", "koi8-r", "koi8-u", "mac-roman", "mac-cyrillic")}
CODECS |= {name: name for name in ("cp866", "cp874", "cp932", "cp949", "euc_jp", "iso2022_jp", "gb18030", "big5hkscs")}
CODECS |= {f"cp{page}": f"cp{page}" for page in range(1250, 1259)}
CODECS |= {f"iso8859-{part}": f"iso8859-{part}" for part in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)}
CODECS |= {"ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874", "tis-620": "cp874"}
CODECS |= {"gb2312": "gb18030", "gbk": "gb18030", "big5": "big5hkscs", "shift_jis": "cp932", "euc_kr": "cp949"}
CODECS |= {"utf-16": "utf-16-le", "utf-8-sig": "utf-8"}
#: Labels of the web that Python does not know, and their codecs.
LABELS = {
    "dos-874": "cp874",
    "iso-8859-6-e": "iso8859-6",
    "iso-8859-6-i": "iso8859-6",
    "iso-8859-8-e": "iso8859-8",
    "iso-8859-8-i": "iso8859-8",
    "koi": "koi8-r",
    "logical": "iso8859-8",
    "unicode": "utf-16-le",
    "unicode-1-1-utf-8": "utf-8",
    "visual": "iso8859-8",
    "windows-874": "cp874",
    "windows-949": "cp949",
    "x-euc-jp": "euc_jp",
    "x-gbk": "gb18030",
    "x-mac-cyrillic": "mac-cyrillic",
    "x-mac-roman": "mac-roman",
    "x-sjis": "cp932",
    "x-user-defined": "cp1252",
    "x-x-big5": "big5hkscs",
    **{f"x-cp125{digit}": f"cp125{digit}" for digit in range(9)},
}


def decode_html(page: bytes, declared: str | None) -> str:
    """Decode a page, given the charset declared in its HTTP header, and remove its XML declaration.

    Windows-1252 decodes nearly anything, so it is tried last: a page that declares it may still be UTF-8. A page that
    no candidate decodes gets replacement characters, in its declared codec or else Windows-1252. The XML declaration
    is removed because lxml would apply the encoding in it to the decoded text.
    """
    for mark, encoding in BOMS:
        if page.startswith(mark):
            return _strip_xml_declaration(page[len(mark) :].decode(encoding, "replace"))
    candidates = [codec for label in (declared, *_labels_in_page(page)) if (codec := _codec(label))]
    for codec in sorted([*candidates, "utf-8"], key=lambda codec: codec == FALLBACK):
        try:
            return _strip_xml_declaration(page.decode(codec))
        except UnicodeError:
            continue
    return _strip_xml_declaration(page.decode(next(iter(candidates), FALLBACK), "replace"))


def _labels_in_page(page: bytes) -> list[str | None]:
    """Labels of the page's <meta> and XML declaration; UTF-16 counts as UTF-8, as the label was read in ASCII."""
    metas = META.finditer(page, 0, META_SCAN_BYTES)
    declared = [next((meta[1] for meta in metas if meta[1]), None), (xml := XML_ENCODING.match(page)) and xml[1]]
    labels = [None if label is None else label.decode("ascii", "replace") for label in declared]
    return ["utf-8" if _codec(label) in UTF_16 else label for label in labels]


def _codec(label: str | None) -> str | None:
    """Python's codec for a label; None for a label that the web does not know."""
    label = (label or "").strip().lower()
    if label in LABELS:
        return LABELS[label]
    try:
        return CODECS.get(codecs.lookup(label).name)
    except (LookupError, ValueError):
        return None


def _strip_xml_declaration(text: str) -> str:
    declaration = XML_DECLARATION.match(text)
    return text[declaration.end() :] if declaration else text
