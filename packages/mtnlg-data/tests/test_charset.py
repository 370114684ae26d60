"""Pages are decoded as a browser would, and no declared charset can do harm."""

from __future__ import annotations

import codecs
from encodings.aliases import aliases

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtnlg_data.extract.charset import decode_html

GERMAN = "größer"
RUSSIAN = "слово"


@pytest.mark.parametrize(
    ("page", "declared", "expected"),
    [
        (GERMAN.encode(), "utf-8", GERMAN),
        (GERMAN.encode("iso-8859-1"), "iso-8859-1", GERMAN),
        (GERMAN.encode(), None, GERMAN),
        (GERMAN.encode(), "ascii", GERMAN),
        (GERMAN.encode(), "iso-8859-1", GERMAN),
        (GERMAN.encode("cp1252"), None, GERMAN),
        (GERMAN.encode("cp1252"), "no-such-charset", GERMAN),
        ("\u201cquoted\u201d".encode("cp1252"), "iso-8859-1", "\u201cquoted\u201d"),
        (RUSSIAN.encode("koi8-r"), " KOI8-R ", RUSSIAN),
        (RUSSIAN.encode("cp1251"), "x-cp1251", RUSSIAN),
        ("\u58eb\u3231".encode("cp932"), "x-sjis", "\u58eb\u3231"),
        ("\u9555".encode("gbk"), "gb2312", "\u9555"),  # in GBK alone
        ("\ufeffslovo".encode(), "koi8-r", "slovo"),
        (GERMAN.encode("utf-16"), None, GERMAN),
        (b"\xfe\xff" + GERMAN.encode("utf-16-be"), "utf-8", GERMAN),
        (b"\xff\xfeg\0r", None, "g\ufffd"),
        (b"\xef\xbb\xbfcaf\xe9", "koi8-r", "caf\ufffd"),
        (b"caf\xe9 \xff", "utf-8", "caf\ufffd \ufffd"),
        *((RUSSIAN.encode("koi8-r"), label, RUSSIAN) for label in ("koi8", "cskoi8r")),
        *(("한".encode("cp949"), label, "한") for label in ("ks_c_5601-1989", "cseuckr")),
        ("\u58eb\u3231".encode("cp932"), "windows-31j", "\u58eb\u3231"),
        (b"a+-b", "utf-7", "a+-b"),  # not a codec of the web, like the next three
        (b"abc", "cp037", "abc"),
        (b"abc", "zip", "abc"),
        (b"abc", "\0", "abc"),
        (b"", None, ""),
    ],
)
def test_a_page_is_decoded_as_declared_or_as_a_browser_would(page: bytes, declared: str | None, expected: str) -> None:
    assert decode_html(page, declared) == expected


@pytest.mark.parametrize(
    ("before", "codec"),
    [
        ('<meta charset="koi8-r">', "koi8-r"),
        ("<META http-equiv=Content-Type content='text/html; charset=windows-1251'>", "cp1251"),
        ("<!-- <meta charset=utf-8> --><meta charset=koi8-r>", "koi8-r"),
        ("<meta name=a><meta charset=x-mac-cyrillic>", "mac-cyrillic"),
        ("<meta charset=utf-16>", "utf-8"),  # read in ASCII, so not UTF-16
    ],
)
def test_a_charset_declared_in_the_page_is_used(before: str, codec: str) -> None:
    assert decode_html((before + RUSSIAN).encode(codec), None) == before + RUSSIAN
    assert decode_html((before + RUSSIAN).encode(), "utf-8") == before + RUSSIAN  # the header comes first


def test_an_xml_declaration_is_used_and_removed() -> None:
    declaration = '\n<?xml version="1.0" encoding="koi8-r"?>'
    assert decode_html(f"{declaration}<p>{RUSSIAN}".encode("koi8-r"), None) == f"<p>{RUSSIAN}"


@given(st.binary(max_size=300), st.one_of(st.none(), st.text(max_size=12), st.sampled_from(sorted(aliases))))
def test_any_bytes_decode_under_any_declaration(page: bytes, declared: str | None) -> None:
    decode_html(page, declared)


@given(st.text(max_size=200))
def test_any_utf_8_text_is_decoded_as_it_is(text: str) -> None:
    page = text.encode(errors="replace")
    marked = page.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if not marked and b"charset" not in page.lower() and b"<?xml" not in page.lower():
        assert decode_html(page, None) == page.decode()
