"""Pages are decoded as a browser would, and no declared charset can do harm."""

# ruff: noqa: RUF001  (texts in many scripts)

from __future__ import annotations

import codecs
import json
import re
from encodings.aliases import aliases
from typing import TYPE_CHECKING

import pytest
import small_corpus as corpus
from hypothesis import given
from hypothesis import strategies as st
from shards import run_here, stored_rows

from mtnlg_data import Extract, SourceFile
from mtnlg_data.extract.charset import decode_html, decode_page

if TYPE_CHECKING:
    from pathlib import Path

GERMAN = "größer"
RUSSIAN = "слово"


@pytest.mark.parametrize(
    ("text", "codec", "declared"),
    [
        (GERMAN, "utf-8", "utf-8"),
        (GERMAN, "iso-8859-1", "iso-8859-1"),
        (GERMAN, "utf-8", None),
        (GERMAN, "utf-8", "ascii"),
        (GERMAN, "utf-8", "iso-8859-1"),
        (GERMAN, "cp1252", None),
        (GERMAN, "cp1252", "no-such-charset"),
        ("\u201cquoted\u201d", "cp1252", "iso-8859-1"),
        (RUSSIAN, "koi8-r", " KOI8-R "),
        (RUSSIAN, "cp1251", "x-cp1251"),
        ("\u58eb\u3231", "cp932", "x-sjis"),
        ("\u9555", "gbk", "gb2312"),  # in GBK alone
        ("slovo", "utf-8-sig", "koi8-r"),
        (GERMAN, "utf-16", None),
        ("a+-b", "ascii", "utf-7"),  # not a codec of the web, like the next three
        ("abc", "ascii", "cp037"),
        ("abc", "ascii", "zip"),
        ("abc", "ascii", "\0"),
        ("", "ascii", None),
    ],
)
def test_a_page_is_decoded_as_declared_or_as_a_browser_would(text: str, codec: str, declared: str | None) -> None:
    assert decode_html(text.encode(codec), declared) == text


#: Python's codec, a text, and all labels of an encoding (encoding.spec.whatwg.org, "names and labels").
LABELS = """
utf-8 ж unicode-1-1-utf-8 unicode11utf8 unicode20utf8 utf-8 utf8 x-unicode20utf8
cp866 ж 866 cp866 csibm866 ibm866
iso8859-2 ř csisolatin2 iso-8859-2 iso-ir-101 iso8859-2 iso88592 iso_8859-2 iso_8859-2:1987 l2 latin2
iso8859-3 ħ csisolatin3 iso-8859-3 iso-ir-109 iso8859-3 iso88593 iso_8859-3 iso_8859-3:1988 l3 latin3
iso8859-4 ķ csisolatin4 iso-8859-4 iso-ir-110 iso8859-4 iso88594 iso_8859-4 iso_8859-4:1988 l4 latin4
iso8859-5 ж csisolatincyrillic cyrillic iso-8859-5 iso-ir-144 iso8859-5 iso88595 iso_8859-5 iso_8859-5:1988
iso8859-6 ب arabic asmo-708 csiso88596e csiso88596i csisolatinarabic ecma-114 iso-8859-6 iso-8859-6-e iso-8859-6-i
  iso-ir-127 iso8859-6 iso88596 iso_8859-6 iso_8859-6:1987
iso8859-7 λ csisolatingreek ecma-118 elot_928 greek greek8 iso-8859-7 iso-ir-126 iso8859-7 iso88597 iso_8859-7
  iso_8859-7:1987 sun_eu_greek
iso8859-8 ש csiso88598e csisolatinhebrew hebrew iso-8859-8 iso-8859-8-e iso-ir-138 iso8859-8 iso88598 iso_8859-8
  iso_8859-8:1988 visual csiso88598i iso-8859-8-i logical
iso8859-10 ķ csisolatin6 iso-8859-10 iso-ir-157 iso8859-10 iso885910 l6 latin6
iso8859-13 ķ iso-8859-13 iso8859-13 iso885913
iso8859-14 ŵ iso-8859-14 iso8859-14 iso885914
iso8859-15 œ csisolatin9 iso-8859-15 iso8859-15 iso885915 iso_8859-15 l9
iso8859-16 ș iso-8859-16
koi8-r ж cskoi8r koi koi8 koi8-r koi8_r
koi8-u ї koi8-ru koi8-u
mac-roman œ csmacintosh mac macintosh x-mac-roman
cp874 ก dos-874 iso-8859-11 iso8859-11 iso885911 tis-620 windows-874
cp1250 ř cp1250 windows-1250 x-cp1250
cp1251 ж cp1251 windows-1251 x-cp1251
cp1252 œ ansi_x3.4-1968 ascii cp1252 cp819 csisolatin1 ibm819 iso-8859-1 iso-ir-100 iso8859-1 iso88591 iso_8859-1
  iso_8859-1:1987 l1 latin1 us-ascii windows-1252 x-cp1252 x-user-defined
cp1253 λ cp1253 windows-1253 x-cp1253
cp1254 ğ cp1254 csisolatin5 iso-8859-9 iso-ir-148 iso8859-9 iso88599 iso_8859-9 iso_8859-9:1989 l5 latin5
  windows-1254 x-cp1254
cp1255 ש cp1255 windows-1255 x-cp1255
cp1256 ب cp1256 windows-1256 x-cp1256
cp1257 ķ cp1257 windows-1257 x-cp1257
cp1258 ơ cp1258 windows-1258 x-cp1258
mac-cyrillic ж x-mac-cyrillic x-mac-ukrainian
gb18030 镕 chinese csgb2312 csiso58gb231280 gb2312 gb_2312 gb_2312-80 gbk iso-ir-58 x-gbk gb18030
big5hkscs 灣 big5 big5-hkscs cn-big5 csbig5 x-x-big5
euc_jp 水 cseucpkdfmtjapanese euc-jp x-euc-jp
iso2022_jp 水 csiso2022jp iso-2022-jp
cp932 ㈱ csshiftjis ms932 ms_kanji shift-jis shift_jis sjis windows-31j x-sjis
cp949 똠 cseuckr csksc56011987 euc-kr iso-ir-149 korean ks_c_5601-1987 ks_c_5601-1989 ksc5601 ksc_5601 windows-949
utf-16-be ж unicodefffe utf-16be
utf-16-le ж csunicode iso-10646-ucs-2 ucs-2 unicode unicodefeff utf-16 utf-16le
"""


@pytest.mark.parametrize("row", re.split(r"\n(?! )", LABELS.strip()))
def test_every_label_of_the_web_is_known(row: str) -> None:
    codec, text, *labels = row.split()
    assert [label for label in labels if decode_html(text.encode(codec), label.upper()) != text] == []


@pytest.mark.parametrize(
    ("before", "codec"),
    [
        ('<meta charset="koi8-r">', "koi8-r"),
        ("<META http-equiv=Content-Type content='text/html; charset=windows-1251'>", "cp1251"),
        ("<meta content='text/html; charset = \"koi8-r\"' lang=ru\n http-equiv='content-type'/>", "koi8-r"),
        ("<!-- <meta charset=utf-8> --><meta charset=koi8-r>", "koi8-r"),
        ("<script>'<meta charset=cp866>'</script><meta charset=koi8-r>", "koi8-r"),
        ("<meta name=description content='a page of charset=gbk'><meta charset=koi8-r>", "koi8-r"),
        ("<meta name=a content='<meta charset=gbk'><meta charset=koi8-r>", "koi8-r"),
        ("<meta charset=unknown><meta charset=koi8-r><meta charset=cp866>", "koi8-r"),
        ("<meta name=a><meta charset=x-mac-cyrillic>", "mac-cyrillic"),
        ("<meta charset=utf-16>", "utf-8"),  # read in ASCII, so not UTF-16
        (f"<style>{' ' * 100_000}</style><body><meta charset=koi8-r>", "koi8-r"),
    ],
)
def test_a_charset_declared_in_the_page_is_used(before: str, codec: str) -> None:
    assert decode_page((before + RUSSIAN).encode(codec), None) == (before + RUSSIAN, None)
    assert decode_html((before + RUSSIAN).encode(), "utf-8") == before + RUSSIAN  # the header comes first


@pytest.mark.parametrize("tags", [b"<meta " + b"a" * 1000, b"<!--", b"<script>", b"<meta a=", b"<meta charset=koi8-r"])
def test_hostile_tags_are_read_in_linear_time(tags: bytes) -> None:
    assert decode_html(b"\xff" + tags * (1_000_000 // len(tags)), None)


SHIFT_JIS = "<meta charset=shift_jis>古い港から水が流れる".encode("cp932")


@pytest.mark.parametrize(
    ("page", "declared", "expected"),
    [
        (b"\xfe\xff\0\xf6", "utf-8", "ö"),
        (b"\xff\xfeg\0r", None, "g\ufffd"),
        (b"\xef\xbb\xbfcaf\xe9", "koi8-r", "caf\ufffd"),
        (b"caf\xe9 \xff", "utf-8", "caf\ufffd \ufffd"),
        (b"It\x92s a caf\xc3\xa9", None, "It\ufffds a café"),
        (b"<meta charset=utf-8>caf\xc3\xa9 \x92", "iso-8859-1", "<meta charset=utf-8>café \ufffd"),
        (RUSSIAN.encode()[:-1], None, "слов\ufffd"),
        (RUSSIAN.encode()[:-1], "iso-8859-1", "слов\ufffd"),
        (b"<meta charset=cp866>" + RUSSIAN.encode()[:-1], "utf-8", "<meta charset=cp866>слов\ufffd"),
        (SHIFT_JIS + b"\x82 ", "iso-8859-1", "<meta charset=shift_jis>古い港から水が流れる\ufffd "),
        (b"<meta charset=utf-8>caf\xe9 \xabol\xe9\xbb", "iso-8859-1", "<meta charset=utf-8>café «olé»"),
        (b"\xabCAF\xc9\xbb \xe9", "iso-8859-1", "«CAFÉ» é"),
    ],
)
def test_broken_bytes_cost_only_themselves(page: bytes, declared: str | None, expected: str) -> None:
    assert decode_html(page, declared) == expected


UNDECLARED = {
    "windows-1250": "Přístav je největší částí města a žluťoučký kůň stojí, jako vždycky stál, u šedé zdi.",
    "iso-8859-2": "Port jest największą częścią miasta, a źródło było zawsze blisko drogi, którą szliśmy.",
    "windows-1251": "Старая гавань была построена для жителей города и остаётся его частью.",
    "koi8-u": "Стара гавань була побудована для мешканців міста і є його частиною.",
    "windows-1252": "Der alte Hafen wurde für die Menschen größer gebaut, und so ist er schöner.",
    "iso-8859-7": "Το παλιό λιμάνι χτίστηκε για τους ανθρώπους της πόλης και είναι μέρος της.",
    "windows-1254": "Eski liman şehrin insanları için yapıldı ve bugün de onun büyük bir parçasıdır, çünkü ağaçlıdır.",
    "windows-1255": "הנמל הישן נבנה למען אנשי העיר והוא עדיין חלק ממנה.",
    "windows-1256": "بني الميناء القديم من أجل أهل المدينة وما زال جزءا منها.",
    "windows-1257": "Senasis uostas buvo pastatytas miesto žmonėms, jų vaikai tebėra čia ir grįš į jūrą žvejoti.",
    "cp874": "ท่าเรือเก่าสร้างขึ้นเพื่อชาวเมืองและยังเป็นส่วนหนึ่งของเมือง",
    "shift_jis": "古い港は町の人々のために造られ、今もその一部です。",
    "euc-jp": "古い港は町の人々のために造られ、今もその一部です。",
    "gbk": "这个古老的港口是为城里的人们建造的，今天仍然是城市的一部分。",
    "big5": "這個古老的港口是為城裡的人們建造的，今天仍然是城市的一部分。",
    "euc-kr": "오래된 항구는 도시 사람들을 위해 지어졌고 지금도 그 일부입니다.",
}


@pytest.mark.parametrize("encoding", UNDECLARED)
def test_an_undeclared_encoding_is_detected(encoding: str) -> None:
    page = f"<title>A page</title><p>{UNDECLARED[encoding]}" * 3
    text, detected = decode_page(page.encode(encoding), None)
    assert text == page
    assert detected


@pytest.mark.parametrize("text", ["© 2020", "50 °C ± 2 °C", "£5, ½ price", "“so” it’s – a…", "naïve café", "«Å» ¿"])
def test_few_non_ascii_bytes_are_read_as_western(text: str) -> None:
    page = f"<p>The old harbour was built for the people of the town. {text} And so it is." * 3
    assert decode_page(page.encode("cp1252"), None) == (page, "windows-1252")


def test_iso_2022_jp_is_known_by_its_escapes() -> None:
    assert decode_page(UNDECLARED["euc-jp"].encode("iso-2022-jp"), None) == (UNDECLARED["euc-jp"], None)


def test_a_detected_encoding_is_kept_with_the_document(tmp_path: Path) -> None:
    pages = [UNDECLARED["windows-1251"] * 5, corpus.text(1), "<meta charset=cp1251>" + UNDECLARED["windows-1251"] * 5]
    records = [
        corpus.record(f"<p>{page}".encode("cp1251"), http="HTTP/1.1 200 OK\r\nContent-Type: text/html")
        for page in pages
    ]
    (tmp_path / "c.warc").write_bytes(b"".join(records))
    file = SourceFile("s", tmp_path / "c.warc", "c.warc", "warc")
    run_here(Extract(languages=()), [file], tmp_path / "out")
    rows = stored_rows((tmp_path / "out").glob("*.parquet"))
    metadata = [json.loads(row["metadata"]).get("Detected-Charset") for row in rows]
    assert metadata == ["windows-1251", None, None]


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
