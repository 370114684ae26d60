"""Split an HTML page into paragraphs as jusText 3 does, in one pass over the parser's events.

The package parses a page into a tree, copies it, removes scripts, forms and the like from the copy, and turns the rest
back into events. Here libxml2's own events drive the same rules, and no tree is built:

    a paragraph begins and ends at every block tag and at the second of two <br>
    killed tags are removed with their content, dissolved tags without it; the text on both sides joins
    whitespace between two tags is not text

Broken pages are read as the package reads them: a page that does not begin as a document is a fragment, made a tree by
``lxml.html``, and nothing is read after the point where tags nest too deep for libxml2. Where the package
fails, as on a control character beside a comment, the paragraphs are those that it would have found.

The time for events is proportional to the page, whatever its content; that for a tree is not: libxml2 takes seconds to
give one tag 50,000 attributes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from lxml import etree
from lxml.html import HTMLParser, fromstring

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

BLOCK_TAGS = {"body", "blockquote", "caption", "center", "col", "colgroup", "dd", "div", "dl", "dt", "fieldset", "form"}
BLOCK_TAGS |= {"h1", "h2", "h3", "h4", "h5", "h6", "legend", "li", "optgroup", "option", "p", "pre", "table", "td"}
BLOCK_TAGS |= {"textarea", "tfoot", "th", "thead", "tr", "ul"}
KILLED_TAGS = {"applet", "base", "button", "head", "input", "script", "select", "style", "textarea"}
DISSOLVED_TAGS = {"embed", "form", "iframe", "layer", "object", "param"}
HEADING = re.compile(r"\bh\d\b")
DOCUMENT_START = re.compile(r"\s*<(?:html|!doctype)", re.IGNORECASE)

MAX_DEPTH = 256  # nested tags; libxml2's own limit
MAX_NODES, MAX_ATTRIBUTES = 200_000, 1000  # of a page that is made a tree; of one tag
TAG_CACHE_SIZE = 1024
PLAIN, BLOCK, BREAK, LINK, STYLESHEET, DISSOLVE, KILL = range(7)
OWN_ROLES = dict.fromkeys(BLOCK_TAGS, BLOCK) | {"br": BREAK, "a": LINK, "link": STYLESHEET}
OWN_ROLES |= dict.fromkeys(DISSOLVED_TAGS, DISSOLVE) | dict.fromkeys(KILLED_TAGS, KILL)
ROLES, HEADING_MARK, SELECT_MARK = 7, 8, 16
WORD_CHARACTERS = 32


class Paragraph(NamedTuple):
    """A paragraph of a page."""

    text: str
    link_length: int  # characters inside links
    is_heading: bool  # inside <h1> to <h9>
    in_select: bool  # inside a tag with "select" in its name
    preformatted: bool = False  # a <pre>, as it is written


class Page(NamedTuple):
    """The paragraphs of a page."""

    paragraphs: list[Paragraph]
    truncated: bool  # tags nest too deep: nothing after that point was read


def read_page(html: str, *, layout: bool = False) -> Page:
    """The non-empty paragraphs of a page, in order; with ``layout`` those of `_LayoutBuilder`."""
    builder = _LayoutBuilder() if layout else _ParagraphBuilder()
    try:
        _read(html, builder)
    except TooDeepError:
        return Page(builder.paragraphs(), truncated=True)
    return Page(builder.paragraphs(), truncated=False)


def _read(html: str, builder: _ParagraphBuilder) -> None:
    if DOCUMENT_START.match(html) or markup_excess(html):
        _parse(html, etree.fromstring, target=builder)
        return
    try:
        tree = _parse(html, fromstring)
    except etree.ParserError:  # of nothing
        return
    builder.depth = -MAX_NODES  # the tree is within the limits, and what is behind its root, too, is text of the page
    walk = etree.iterwalk(tree, ("start", "end", "comment", "pi")) if isinstance(tree.tag, str) else [("comment", tree)]
    for event, node in walk:
        if event == "start":
            builder.start(node.tag, node.attrib)
        elif event == "end":
            builder.end(node.tag)
        elif event == "pi":
            builder.pi(node.target, None)
        if text := node.text if event == "start" else node.tail:
            builder.data(text)


def _parse(html: str, read: Callable[..., Any], target: Any = None) -> Any:  # noqa: ANN401  (lxml has no types)
    """Read a page into a tree; with a target, send it the events."""
    parser = etree.HTMLParser(target=target) if target else HTMLParser()
    try:
        return read(html, parser=parser)
    except ValueError:  # lxml reads XHTML that declares an encoding only as bytes; so does the package
        return read(html.encode(errors="replace"), parser=parser)


class TooDeepError(Exception):
    """Tags nest deeper than ``MAX_DEPTH``."""


class _ExcessError(Exception):
    """Markup too large for a tree; the argument is the drop reason."""


class _MarkupLimits:
    """An lxml parser target that raises ``_ExcessError`` for markup beyond the limits."""

    def __init__(self) -> None:
        self._depth = self._nodes = 0

    def start(self, _name: str, attributes: Mapping[str, str]) -> None:
        self._depth += 1
        self.comment()
        if self._depth > MAX_DEPTH:
            raise _ExcessError("too_deep")
        if len(attributes) > MAX_ATTRIBUTES:
            raise _ExcessError("too_many_attributes")

    def end(self, _name: str) -> None:
        self._depth -= 1

    def comment(self, *_: str | None) -> None:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise _ExcessError("too_many_tags")

    pi = comment

    def close(self) -> None:
        """Do nothing; lxml requires it."""


def markup_excess(html: str) -> str | None:
    """Why a page's markup is too large for a tree, whose cost has no bound; None where it is not."""
    try:
        _parse(html, etree.fromstring, target=_MarkupLimits())
    except _ExcessError as excess:
        return str(excess)
    return None


class _TagCache(dict[str, int]):
    """Role and marks of tags by name, bounded, since a page may invent any number of names."""

    def __missing__(self, name: str) -> int:
        if len(self) == TAG_CACHE_SIZE:
            self.clear()
        self[name] = (
            OWN_ROLES.get(name, PLAIN)
            | HEADING_MARK * (HEADING.search(name) is not None)
            | SELECT_MARK * ("select" in name)
        )
        return self[name]


TAGS = _TagCache()


class _ParagraphBuilder:
    """An lxml parser target that builds paragraphs from a document's events.

    Pages have an event for every 20 bytes or so: what these methods do not do is what makes them fast.
    """

    __slots__ = (
        *("depth", "_after_break", "_in_link", "_in_select", "_is_heading", "_killed_depth", "_link_length"),
        *("_open_headings", "_open_selects", "_paragraphs", "_pieces", "_texts"),
    )

    _keeps_spaces = False  # between two tags
    _open_pres = 0  # tags whose lines are kept

    def __init__(self) -> None:
        self._paragraphs: list[Paragraph] = []
        self.depth = 0
        self._killed_depth = 0  # open tags from the killed one inwards
        self._pieces: list[str] = []  # text since the last tag
        self._texts: list[str] = []  # of the current paragraph
        self._link_length = 0
        self._is_heading = self._in_select = False
        self._open_headings = self._open_selects = 0
        self._in_link = self._after_break = False

    def start(self, name: str, attributes: Mapping[str, str]) -> None:  # noqa: C901  (a call more is a tenth of it)
        """Open a tag, written in the page or implied by another."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise TooDeepError
        if self._killed_depth:
            self._killed_depth += 1
            return
        tag = TAGS[name]
        role = tag & ROLES
        if role >= STYLESHEET:
            if role == KILL or (role == STYLESHEET and "stylesheet" in attributes.get("rel", "").lower()):
                self._killed_depth = 1
                return
            if role == DISSOLVE:
                return
        if self._pieces:
            self._flush()
        if tag > ROLES:
            self._open_headings += tag & HEADING_MARK > 0
            self._open_selects += tag & SELECT_MARK > 0
        if role == BLOCK or (role == BREAK and self._after_break):
            if self._texts:
                self._end_paragraph()
            self._is_heading, self._in_select = self._open_headings > 0, self._open_selects > 0
        elif role == BREAK:
            self._after_break = True
            self._texts.append(" ")
        else:
            self._after_break = False
            if role == LINK:
                self._in_link = True

    def end(self, name: str) -> None:
        self.depth -= 1
        if self._killed_depth:
            self._killed_depth -= 1
            return
        if not self.depth:
            self._killed_depth = 1  # nothing after </html> is part of the page
        tag = TAGS[name]
        role = tag & ROLES
        if role == DISSOLVE:
            return
        if self._pieces:
            self._flush()
        if tag > ROLES:
            self._open_headings -= tag & HEADING_MARK > 0
            self._open_selects -= tag & SELECT_MARK > 0
        if role == BLOCK:
            if self._texts:
                self._end_paragraph()
            self._is_heading, self._in_select = self._open_headings > 0, self._open_selects > 0
        elif role == LINK:
            self._in_link = False

    def data(self, text: str) -> None:
        if self.depth and not self._killed_depth:
            self._pieces.append(text)

    def pi(self, target: str, data: str | None) -> None:
        """End a run of text: unlike a comment, a processing instruction separates it from the next."""
        del target, data
        self._flush()

    def close(self) -> None:
        """Do nothing; lxml requires it."""

    def paragraphs(self) -> list[Paragraph]:
        """All paragraphs, after the page has ended."""
        self._flush()
        self._end_paragraph()
        return self._paragraphs

    def _flush(self) -> None:
        pieces = self._pieces
        text = pieces[0] if len(pieces) == 1 else "".join(pieces)
        pieces.clear()
        if not text or text.isspace():
            if self._keeps_spaces:
                self._texts.append(text)
            return
        self._texts.append(text)
        self._after_break = False
        if self._in_link:
            self._link_length += len(normalize_whitespace(text)) + text[0].isspace() + text[-1].isspace()

    def _end_paragraph(self) -> None:
        texts = self._texts
        text = texts[0] if len(texts) == 1 else "".join(texts)
        if text := strip_lines(text) if self._open_pres else normalize_whitespace(text):
            preformatted = self._open_pres > 0
            self._paragraphs.append(Paragraph(text, self._link_length, self._is_heading, self._in_select, preformatted))
        texts.clear()
        self._link_length = 0


class _LayoutBuilder(_ParagraphBuilder):
    """Paragraphs with spaces and lines as a browser shows them, which jusText loses, and with formulas once.

    Whitespace between two inline tags is a space. A <pre> is one paragraph as it is written, in which block tags begin
    lines. The text of <math> is its TeX annotation, or its MathML where it has none. KaTeX's drawing of the formula is
    left out where the page has <math> as well.
    """

    _keeps_spaces = True
    _formula: int | None = None  # texts of the paragraph before the last <math>

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        """Open a tag; "script" stands for one that is left out."""
        self._flush()
        if name == "math":
            self._formula = len(self._texts)
        elif self._formula is not None:
            if attributes.get("encoding") == "application/x-tex":
                del self._texts[self._formula :]
            elif name.startswith("annotation") or "katex-html" in attributes.get("class", ""):
                name = "script"
        inline = self._inline(name)
        if inline != name:
            self.data("\n")
        super().start(inline, attributes)
        self._open_pres += name == "pre"

    def end(self, name: str) -> None:
        super().end(self._inline(name))
        self._open_pres -= name == "pre"

    def _inline(self, name: str) -> str:
        """The tag, or an inline one for those that would end a paragraph within <pre>."""
        return "span" if self._open_pres and name != "pre" and TAGS[name] & ROLES in {BLOCK, BREAK} else name


def strip_lines(text: str) -> str:
    """Strip the ends of lines, and blank lines around the text."""
    return "\n".join(map(str.rstrip, text.split("\n"))).strip("\n")


def normalize_whitespace(text: str) -> str:
    """Strip the text and replace each run of whitespace by one character.

    That is a line feed where the run contains a line feed or carriage return, else a space.
    """
    has_lines = "\n" in text or "\r" in text
    if not has_lines or len(text) < WORD_CHARACTERS:
        words = text.split()
        if not has_lines or len(words) == 1:  # as in most menus
            return " ".join(words)
    lines = (" ".join(line.split()) for line in text.replace("\r", "\n").split("\n"))
    return "\n".join(filter(None, lines))
