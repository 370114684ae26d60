"""Pages whose tree would be too large are refused before a library makes it, and ordinary ones are not."""

from __future__ import annotations

import pytest

from mtnlg_data.extract.tree_limits import MAX_ATTRIBUTES, MAX_NODES, markup_excess

MANY = 5000


@pytest.mark.parametrize(
    ("markup", "reason"),
    [
        ("<b>", "too_deep"),
        ("<div>", "too_deep"),
        ("<isindex>", "too_deep"),
        ("<ul><li>", "too_deep"),
        ("<table><tr><td>", "too_deep"),
        ("<div></x>", "too_deep"),  # no end
        ("<span><div></span></div>", "too_deep"),  # an end within a block of its own, which closes nothing
        ("<p><b a={}>x</p>", "too_deep"),  # opened again in each next block
        # An end that is hidden: in an attribute, a comment, text, another scope, a script in a script's comment, CDATA.
        ('<div><i a="</div>"></i>', "too_deep"),
        ('<div><i a=b="></i></div>">', None),  # which this is not, as the attribute has no quotes
        ("<div><!-- </div> -->", "too_deep"),
        ("<div><title></div></title>", "too_deep"),
        ("<div><object></div></object>", "too_deep"),
        ("<div><table><td></div></table>", "too_deep"),
        ("<div><select></div></select>", "too_deep"),
        ("<div><script><!--<script></script></div>--></script>", "too_deep"),
        ("<div><svg><style></div></style></svg>", "too_deep"),
        ("<div><svg><![CDATA[></svg></div>]]></svg>", "too_deep"),
        ("<svg><p></p><x/>", "too_deep"),  # <p> ends the SVG, and so <x/> is no empty tag
        # Ordinary pages, whose ends are left out.
        ("<p>a<p>b<div>c</div>", None),
        ("<li>a", None),
        ("<option>a", None),
        ("<table><tr><td>a<td>b<tr><td>c</table>", None),
        ("<dl><dt>a<dd>b</dl>", None),
        ("<a name={}>a", None),
        ("<br><img src=x><input>", None),
        ("<svg><path d='M0'/><g><path/></g></svg>", None),
        ("<script>'<div><div>'</script><style>a<b</style>", None),
        ("<p title='<div>'>a</p>", None),
        ("1 < 2 <3 </ x> <!x> <?y>", None),
        ("<form><div></form></div>", None),
    ],
)
def test_nesting_is_bounded_whatever_hides_it(markup: str, reason: str | None) -> None:
    html = "<html><body>" + "".join(markup.replace("{}", str(number)) for number in range(MANY))
    assert markup_excess(html) == reason
    assert markup_excess("<html><body>" + markup * 3) is None


def test_attributes_and_tags_are_counted() -> None:
    attributes = " ".join(f"a{number}" for number in range(MAX_ATTRIBUTES))
    assert markup_excess(f"<p {attributes}>") is None
    assert markup_excess(f"<p {attributes} b=1>") == "too_many_attributes"
    assert markup_excess("<p></p>" * (MAX_NODES // 2)) is None
    assert markup_excess("<p></p>" * (MAX_NODES // 2 + 1)) == "too_many_tags"
    opened = "<p>" + "".join(f"<b a={number}>" for number in range(200)) + "</p>"
    assert markup_excess(opened + "<p>x</p>" * 100) is None
    assert markup_excess(opened + "<p>x</p>" * 1000) == "too_many_tags"


@pytest.mark.parametrize(
    "html", ["", "<", "<a", "</", "<!", "<!--", "<a b", '<a b="', "<script>", "<script><", "<svg><![CDATA[", "x" * 9]
)
def test_pages_that_end_anywhere_are_read(html: str) -> None:
    for end in ("", " ", ">", "<", "\ud800", "é" * 9):
        assert markup_excess(html + end) is None
