"""Our boilerplate removal equals jusText's, paragraph by paragraph, in time linear in the page."""

from __future__ import annotations

import gzip
import re
from typing import TYPE_CHECKING, NamedTuple

import justext
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from lxml.etree import ParserError
from shards import read_source

from mtnlg_data import decode_html
from mtnlg_data.extract.boilerplate import BoilerplateSettings, classify, main_text, revise_classes
from mtnlg_data.extract.html_tags import IS_HEADING
from mtnlg_data.extract.paragraphs import LINKED, MARKED, MAX_DEPTH, read_page
from mtnlg_data.extract.text import extract_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DEFAULTS = BoilerplateSettings()
STOP_WORDS = justext.get_stoplist("English")
CLASSES = ("bad", "short", "neargood", "good")
PROSE = "The people of the town had been there and it was all that they could do, or so it is said by those who were. "


class Classified(NamedTuple):
    """A paragraph with everything that decides its class, and both its classes."""

    text: str
    link_length: int
    is_heading: bool
    context_free: str
    final: str


def ours(html: str, settings: BoilerplateSettings = DEFAULTS) -> list[Classified]:
    page = read_page(html)
    context_free = classify(page, settings)
    classes = (
        [CLASSES[kind] for kind in kinds] for kinds in (context_free, revise_classes(page, context_free, settings))
    )
    headings = (page.columns[MARKED] & IS_HEADING > 0).tolist()
    return [*map(Classified, page.texts(), page.columns[LINKED].tolist(), headings, *classes)]


def theirs(html: str, settings: BoilerplateSettings = DEFAULTS) -> list[Classified] | None:
    """The package's paragraphs; None where it fails: on an empty page, or when it edits the tree."""
    lengths = settings.model_dump(include={"length_low", "length_high"}, exclude_none=True)
    try:
        paragraphs = justext.justext(
            html,
            STOP_WORDS,
            **lengths,
            stopwords_low=settings.stop_low,
            stopwords_high=settings.stop_high,
            max_link_density=settings.most_linked,
            max_heading_distance=settings.heading_distance,
        )
    except (AssertionError, ParserError, ValueError):
        return None
    return [Classified(p.text, p.chars_count_in_links, p.heading, p.cf_class, p.class_type) for p in paragraphs]


# --- real pages ------------------------------------------------------------------------------------------------------


def articles(samples: Path) -> list[str]:
    return [gzip.decompress(path.read_bytes()).decode() for path in sorted(samples.glob("extraction/html/*.html.gz"))]


def crawled_pages(samples: Path) -> list[str]:
    files = sorted(samples.glob("web/**/*.warc*"))
    records = [record for path in files for record in read_source(path, "warc")[0]]
    return [decode_html(record.content, record.charset) for record in records if isinstance(record.content, bytes)]


@pytest.mark.parametrize(("pages", "least", "with_text"), [(articles, 28, 20), (crawled_pages, 40, 20)])
def test_real_pages_match_justext(
    samples: Path, pages: Callable[[Path], list[str]], least: int, with_text: int
) -> None:
    htmls = pages(samples)
    assert len(htmls) >= least
    for page in htmls:
        assert ours(page) == theirs(page)
    assert sum(bool(main_text(read_page(page), DEFAULTS)) for page in htmls) >= with_text


# --- generated pages -------------------------------------------------------------------------------------------------

NAMES = """html head body title meta link base style script noscript p div span a b i h1 h2 h6 br hr img image input
select option optgroup button textarea form label fieldset legend table caption col tr td th ul li dl dt dd blockquote
pre center iframe object embed applet param layer frameset noframes svg section my-own a.b plaintext xmp"""
ATTRIBUTES = ["", " rel=stylesheet", " rel='alternate StyleSheet'", " rel=next", " href='#' href=2", " {x}y=1", ' "q']
TEXTS = [
    PROSE,
    PROSE * 3,
    "Copyright © 2020 ",
    "&copy; x",
    "&amp;copy",
    "home",
    " ",
    "\n",
    " \r\n ",
    "\t",
    "\x0c",
    "\x85",
]
TEXTS += [
    "\xa0",
    "&nbsp;",
    "x",
    "&#13;",
    "&lt;p&gt;",
    "&bogus;",
    "&",
    "<",
    ">",
    "</",
    "<3",
    "é",
    "日本",
    "ΣΑΣ ",
    "İ",
    "\x01",
]
MARKS = [
    "<!-- c -->",
    "<!---->",
    "<!--> -->",
    "<!doctype html>",
    "<!-- un",
    "<![CDATA[ x ]]>",
    "<?pi x?>",
    "</br>",
    "\x00",
]
BEGINNINGS = ["", "", "<!doctype html>", " <HTML>", "<html><head><title>t</title></head><body>", "\ufeff<html>"]
BEGINNINGS += ["<?xml version='1.0' encoding='utf-8'?>", "<?xml version='1.0' encoding='latin1'?><meta charset=latin1>"]

names = st.sampled_from(NAMES.split())
tokens = st.one_of(
    st.builds("<{}{}>".format, names, st.sampled_from(ATTRIBUTES)),
    st.builds("</{}>".format, names),
    st.sampled_from(TEXTS),
    st.sampled_from(MARKS),
    st.sampled_from(["<br><br>", "<a href=x>", "</a>", "<p>", "</p>", "<h2>", "</h2>", "</body>", "</html>"]),
    st.builds(str.__mul__, st.sampled_from(["<div>", "<b>x", "<ul><li>", "</div>"]), st.integers(1, 300)),
)
pages = st.builds(lambda begin, rest: begin + "".join(rest), st.sampled_from(BEGINNINGS), st.lists(tokens, max_size=30))
settings_of = st.builds(
    BoilerplateSettings,
    length_low=st.integers(0, 80),
    length_high=st.integers(0, 250),
    stop_low=st.sampled_from([0.0, 0.3, 0.5]),
    stop_high=st.sampled_from([0.0, 0.32, 0.6]),
    most_linked=st.sampled_from([0.0, 0.2, 0.9]),
    heading_distance=st.integers(0, 250),
)


#: Read otherwise: what follows the body of a fragment, which lxml.html leaves out, and a "<" as text in a frameset,
#: where libxml2 begins a body.
OTHERWISE = re.compile(
    r"(?!\s*<(?:html|!doctype)).*(?:</?body|</html|<frameset|<noframes)|.*<(?:frameset|noframes)",
    re.IGNORECASE | re.DOTALL,
)


@given(html=pages, settings=st.one_of(st.just(DEFAULTS), settings_of))
@example(html="<meta charset=latin1>" + "<ul><li>x" * (MAX_DEPTH // 2 - 1), settings=DEFAULTS)
@example(html="<html>a</html>lost<xmp>b", settings=DEFAULTS)
@example(html="<html><p>" + "<a>x</a>\n" * 9 + "<h1>a<!---->\n b</h1>" + PROSE * 3, settings=DEFAULTS)
def test_any_markup_gets_the_packages_paragraphs_and_classes(html: str, settings: BoilerplateSettings) -> None:
    assume(not OTHERWISE.match(html))
    expected = theirs(html, settings)
    actual = ours(html, settings)
    if expected is not None and not read_page(html).truncated:  # which is dropped as too_deep
        assert actual == expected


KINDS = st.sampled_from([PROSE * 3, PROSE, "short one", "long without any word that stops " * 4, "\N{COPYRIGHT SIGN}"])
BLOCKS = st.builds("<{0}>{1}</{0}>".format, st.sampled_from(["p", "h2", "li"]), KINDS)


@given(st.lists(st.one_of(BLOCKS, BLOCKS.map("<a>{}</a>".format)), max_size=25).map("".join))
def test_revision_of_any_paragraphs_matches_justext(html: str) -> None:
    assert ours(f"<html><body>{html}") == theirs(f"<html><body>{html}")


def test_text_is_extracted_even_where_the_package_fails() -> None:
    html = f"<html><body><p>{PROSE * 3}<!-- c -->\x01 end</p>"
    assert theirs(html) is None
    assert main_text(read_page(html), DEFAULTS).endswith("\x01 end")
    for nothing in ("", " \n", "<!-- c -->", "<select><input></select>", "\x00"):
        assert ours(nothing) in ([], [Classified("\ufffd", 0, False, "short", "bad")])


# --- spaces, lines and formulas --------------------------------------------------------------------------------------

KATEX = (
    '<span class="katex"><span class="katex-mathml"><math><semantics><mrow><mi>a</mi><mo>+</mo></mrow><annotation '
    'encoding="application/x-tex">a+b</annotation></semantics></math></span><span class="katex-html" '
    'aria-hidden="true"><span class="mord">a</span>+<i>b</i></span></span>'
)


@pytest.mark.parametrize(
    ("html", "justext_has", "layout_has"),
    [
        ("<p><b>New</b> <i>York</i>", ["NewYork"], ["New York"]),
        ("<p>x<br> <br>y <a>z</a>\n<a>z</a>", ["x", "y zz"], ["x", "y z\nz"]),
        (f"<p>See {KATEX} and {KATEX}.", ["See a+a+ba+b and a+a+ba+b."], ["See a+b and a+b."]),
        ("<p><math><mi>a</mi><annotation-xml><mi>q</mi></annotation-xml></math>!", ["aq!"], ["a!"]),
        ('<p><span class="katex-html" aria-hidden="true">a</span>', ["a"], ["a"]),
        ("<pre>\n<b>def</b> <i>f</i>():  \n\n    <b>pass</b>\r\n</pre>", ["deff():\npass"], ["def f():\n\n    pass"]),
        ("<pre><div>if a:</div><div>  b</div> c</pre>d", ["if a:", "b", "c", "d"], ["if a:\n  b c", "d"]),
        ("<pre><i>if a:<br></i><i>  b<br></i></pre>", ["if a: b"], ["if a:\n  b"]),
        ("<button><pre> x</pre></button> <b>a</b> <b>b</b>", ["ab"], ["a b"]),
    ],
)
def test_layout_keeps_spaces_pre_lines_and_formulas(html: str, justext_has: list[str], layout_has: list[str]) -> None:
    assert read_page(f"<html>{html}").texts() == justext_has
    assert read_page(f"<html>{html}", layout=True).texts() == layout_has


@given(html=pages)
def test_layout_changes_spaces_only(html: str) -> None:
    plain, layout = (read_page(html, layout=layout).texts() for layout in (False, True))
    assert "".join("".join(layout).split()) == "".join("".join(plain).split())
    assert all(map(str.strip, layout))


def test_code_is_kept_between_good_paragraphs() -> None:
    code = "\n".join(f"  x{n} = f(y{n})" for n in range(30))
    html = f"<html><p>{PROSE * 3}</p><pre>{code}</pre><p>{PROSE * 3}</p><p>x</p><pre>{code}</pre>"
    settings = BoilerplateSettings(layout=True)
    assert code not in extract_text("justext", html, DEFAULTS, "en")[0]
    assert extract_text("justext", html, settings, "en")[0].split("\n\n") == [
        (PROSE * 3).strip(),
        code,
        (PROSE * 3).strip(),
    ]


# --- pages crafted to be slow ----------------------------------------------------------------------------------------


def test_too_deep_page_is_truncated_and_marked() -> None:
    deep = "<html><body>" + "<div>x" * (MAX_DEPTH - 2)
    assert not read_page(deep).truncated
    page = read_page(deep + "<p>lost" + "</div>" * 300 + PROSE)
    assert page.truncated
    assert page.texts() == ["x"] * (MAX_DEPTH - 2)
    assert read_page("<b>" * 200_000).truncated


@pytest.mark.parametrize(
    "made",
    [
        "<html><p " + " ".join(f"a{n}" for n in range(40_000)) + ">x",
        "<html><p>x" + "<!---->" * 40_000,
        "<html><p>" + "x<script></script>" * 15_000,
        "<html>" + "<p>x " * 20_000,
        "<html>" + "<h1>x</h1>" * 15_000 + f"<p>{PROSE * 3}",
        "<html>" + "<br>x" * 20_000,
        "<html>" + "".join(f"<x{n}></x{n}>" for n in range(20_000)),
        "<html><p>" + "\n" * 1_000_000 + "x",
        "<p>x" + "</body>x" * 15_000,
        "<html>" + "<![CDATA[" * 40_000,
        "<html>" + "&" * 300_000,
        "<html><pre>" + " " * 1_000_000 + "x" + "<math>x<annotation encoding=application/x-tex>y" * 60,
    ],
    ids=lambda made: made[:24],
)
def test_quadratic_markup_is_read_in_one_pass(made: str) -> None:
    for layout in (False, True):
        page = read_page(made, layout=layout)
        main_text(page, DEFAULTS)
        assert not page.truncated
