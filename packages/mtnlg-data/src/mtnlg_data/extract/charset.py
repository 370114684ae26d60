"""The text of a page out of its bytes: by its mark, its header, its own word, or UTF-8, the first that reads all of it.

Labels mean what browsers take them for (encoding.spec.whatwg.org): Latin-1 is Windows-1252, GB 2312 is GB 18030, UTF-16
in a <meta> that could be read is none, and what is no label of the web is ignored, so that a page cannot ask for EBCDIC
or a codec that is slow on purpose-built input.
"""

from __future__ import annotations

import codecs
import re

MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
UTF_16 = {"utf-16-le", "utf-16-be"}
#: The first <meta> that names a charset, of which comments hide any that they hold.
META = re.compile(
    rb"<!--.*?(?:-->|\Z)|<meta[^>]{0,256}?charset\s*=\s*[\"']?\s*([\w:.-]{1,40})", re.IGNORECASE | re.DOTALL
)
META_WITHIN = 2048
XML = re.compile(rb"\s*<\?xml[^>]{0,256}?encoding\s*=\s*[\"']([\w:.-]{1,40})", re.IGNORECASE)
XML_DECLARATION = re.compile(r"\s*<\?xml[^>]*>", re.IGNORECASE)
FALLBACK = "cp1252"

#: The codecs of the web, and those that browsers take for a narrower one of the same family.
CODECS = {
    name: name for name in ("utf-8", "utf-16-le", "utf-16-be", "cp866", "koi8-r", "koi8-u", "euc_jp", "iso2022_jp")
}
CODECS |= {
    name: name for name in ("cp1250", "cp1251", "cp1252", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp1258")
}
CODECS |= {f"iso8859-{part}": f"iso8859-{part}" for part in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)}
CODECS |= {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "iso8859-11": "cp874",
    "cp874": "cp874",
    "tis-620": "cp874",
}
CODECS |= {"gb2312": "gb18030", "gbk": "gb18030", "gb18030": "gb18030", "big5": "big5hkscs", "big5hkscs": "big5hkscs"}
CODECS |= {"shift_jis": "cp932", "cp932": "cp932", "euc_kr": "cp949", "cp949": "cp949", "utf-16": "utf-16-le"}
CODECS |= {"mac-roman": "mac-roman", "mac-cyrillic": "mac-cyrillic", "utf-8-sig": "utf-8"}
#: Labels of the web that Python does not know.
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


def decode(page: bytes, declared: str | None) -> str:
    """A page as text, given the charset that its HTTP header declared.

    Windows-1252 reads nearly anything, so a page that declares it is still UTF-8 if it can be. A page that none reads
    whole is read with replacement characters, as it declared or else as Windows-1252. An XML declaration goes: lxml
    would take the encoding that it names for that of the text.
    """
    for mark, marked in MARKS:
        if page.startswith(mark):
            return _undeclared(page[len(mark) :].decode(marked, "replace"))
    named = [codec for label in (declared, *_own_words(page)) if (codec := _codec(label))]
    for codec in sorted([*named, "utf-8"], key=lambda codec: codec == FALLBACK):
        try:
            return _undeclared(page.decode(codec))
        except UnicodeError:
            continue
    return _undeclared(page.decode(next(iter(named), FALLBACK), "replace"))


def _own_words(page: bytes) -> list[str | None]:
    """What the page says of itself; it said so in ASCII, so it is no UTF-16."""
    metas = META.finditer(page, 0, META_WITHIN)
    found = [next((meta[1] for meta in metas if meta[1]), None), (xml := XML.match(page)) and xml[1]]
    labels = [None if label is None else label.decode("ascii", "replace") for label in found]
    return ["utf-8" if _codec(label) in UTF_16 else label for label in labels]


def _codec(label: str | None) -> str | None:
    """Python's codec for a label; None where the web knows none by that name."""
    label = (label or "").strip().lower()
    if label in LABELS:
        return LABELS[label]
    try:
        return CODECS.get(codecs.lookup(label).name)
    except (LookupError, ValueError):
        return None


def _undeclared(text: str) -> str:
    declaration = XML_DECLARATION.match(text)
    return text[declaration.end() :] if declaration else text
