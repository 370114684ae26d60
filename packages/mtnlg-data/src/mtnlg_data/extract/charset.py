"""Decode an HTML page: by byte order mark, HTTP header, <meta> or XML declaration, or as UTF-8; the first that fits.

Labels mean what browsers take them for (encoding.spec.whatwg.org): Latin-1 is Windows-1252, GB 2312 is GB 18030, and a
<meta> that declares UTF-16 in ASCII bytes is wrong. Labels that the web does not know are ignored, so that a page
cannot ask for EBCDIC or for a codec that is slow on crafted input.
"""

from __future__ import annotations

import codecs
import re

import webencodings

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

#: Python's codec where a superset of the web's encoding is read, or it has no codec of that name.
CODECS = {"gbk": "gb18030", "x-user-defined": FALLBACK}


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
    encoding = webencodings.lookup(label or "")
    if encoding is None or encoding.name == "replacement":
        return None
    return CODECS.get(encoding.name) or str(encoding.codec_info.name)


def _strip_xml_declaration(text: str) -> str:
    declaration = XML_DECLARATION.match(text)
    return text[declaration.end() :] if declaration else text
