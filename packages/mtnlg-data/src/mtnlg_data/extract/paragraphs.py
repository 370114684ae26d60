"""Split an HTML page into paragraphs as jusText 3 does, in one pass over the parser's events.

The package parses a page into a tree, copies it, removes scripts, forms and the like from the copy, and turns the rest
back into events. Here libxml2's own events drive the same rules, and no tree is built:

    a paragraph begins and ends at every block tag and at the second of two <br>
    killed tags are removed with their content, dissolved tags without it; the text on both sides joins
    whitespace between two tags is not text

Broken pages are read as the package reads them: a page that does not begin as a document is a fragment
(``html_fragments``), and nothing is read after the point where tags nest too deep for libxml2. Where the package
fails, as on a control character beside a comment, the paragraphs are those that it would have found.

The time for events is proportional to the page, whatever its content; that for a tree is not: libxml2 takes seconds to
give one tag 50,000 attributes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from lxml import etree

from .html_fragments import MAX_DEPTH, TAG_CACHE_SIZE, EventRecorder, TooDeepError

if TYPE_CHECKING:
    from collections.abc import Mapping

BLOCK_TAGS = {"body", "blockquote", "caption", "center", "col", "colgroup", "dd", "div", "dl", "dt", "fieldset", "form"}
BLOCK_TAGS |= {"h1", "h2", "h3", "h4", "h5", "h6", "legend", "li", "optgroup", "option", "p", "pre", "table", "td"}
BLOCK_TAGS |= {"textarea", "tfoot", "th", "thead", "tr", "ul"}
KILLED_TAGS = {"applet", "base", "button", "head", "input", "script", "select", "style", "textarea"}
DISSOLVED_TAGS = {"embed", "form", "iframe", "layer", "object", "param"}
HEADING = re.compile(r"\bh\d\b")
DOCUMENT_START = re.compile(r"\s*<(?:html|!doctype)", re.IGNORECASE)

PLAIN, BLOCK, BREAK, LINK, STYLESHEET, DISSOLVE, KILL = range(7)


class Paragraph(NamedTuple):
    """A paragraph of a page."""

    text: str
    link_length: int  # characters inside links
    is_heading: bool  # inside <h1> to <h9>
    in_select: bool  # inside a tag with "select" in its name


class Page(NamedTuple):
    """The paragraphs of a page."""

    paragraphs: list[Paragraph]
    truncated: bool  # tags nest too deep: nothing after that point was read


def read_page(html: str) -> Page:
    """The non-empty paragraphs of a page, in order."""
    builder = _ParagraphBuilder()
    if DOCUMENT_START.match(html):
        truncated = _parse(html, builder)
        return Page(builder.paragraphs(), truncated)
    recorder = EventRecorder()
    truncated = _parse(html, recorder)
    for event in recorder.events():
        match event.method:
            case "start":
                builder.start(event.name, event.attributes)
            case "end":
                builder.end(event.name)
            case "data":
                builder.data(event.name)
            case "pi":
                builder.pi(event.name, None)
    return Page(builder.paragraphs(), truncated)


def _parse(html: str, target: Any) -> bool:  # noqa: ANN401  (the protocol of a target is lxml's)
    """Send the events of a page to the target; returns whether they were cut short because tags nest too deep."""
    parser = etree.HTMLParser(target=target)
    try:
        try:
            etree.fromstring(html, parser)
        except ValueError:  # lxml reads XHTML that declares an encoding only as bytes; so does the package
            etree.fromstring(html.encode(errors="replace"), parser)
    except TooDeepError:
        return True
    return False


class _Tag(NamedTuple):
    role: int
    is_heading: bool
    is_select: bool
    is_marked: bool  # either of the two


class _TagCache(dict[str, _Tag]):
    """Tags by name, bounded, since a page may invent any number of names."""

    def __missing__(self, name: str) -> _Tag:
        if len(self) == TAG_CACHE_SIZE:
            self.clear()
        roles = (
            (KILLED_TAGS, KILL),
            (DISSOLVED_TAGS, DISSOLVE),
            (BLOCK_TAGS, BLOCK),
            ({"br"}, BREAK),
            ({"a"}, LINK),
            ({"link"}, STYLESHEET),
        )
        role = next((role for names, role in roles if name in names), PLAIN)
        is_heading, is_select = HEADING.search(name) is not None, "select" in name
        tag = self[name] = _Tag(role, is_heading, is_select, is_heading or is_select)
        return tag


class _ParagraphBuilder:
    """An lxml parser target that builds paragraphs from a document's events."""

    def __init__(self) -> None:
        self._paragraphs: list[Paragraph] = []
        self._tags = _TagCache()
        self._depth = 0
        self._killed_depth = 0  # open tags from the killed one inwards
        self._pieces: list[str] = []  # text since the last tag
        self._texts: list[str] = []  # of the current paragraph
        self._link_length = 0
        self._is_heading = self._in_select = False
        self._open_headings = self._open_selects = 0
        self._in_link = self._after_break = False

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        """Open a tag, written in the page or implied by another."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise TooDeepError
        if self._killed_depth:
            self._killed_depth += 1
            return
        tag = self._tags[name]
        role = tag.role
        if role == STYLESHEET and "stylesheet" in attributes.get("rel", "").lower():
            role = KILL
        if role == KILL:
            self._killed_depth = 1
        elif role != DISSOLVE:
            self._open(tag)

    def _open(self, tag: _Tag) -> None:
        if self._pieces:
            self._flush()
        if tag.is_marked:
            self._open_headings += tag.is_heading
            self._open_selects += tag.is_select
        if tag.role == BLOCK or (tag.role == BREAK and self._after_break):
            self._next_paragraph()
            return
        self._after_break = tag.role == BREAK
        if tag.role == BREAK:
            self._texts.append(" ")
        elif tag.role == LINK:
            self._in_link = True

    def end(self, name: str) -> None:
        self._depth -= 1
        if self._killed_depth:
            self._killed_depth -= 1
            return
        if not self._depth:
            self._killed_depth = 1  # nothing after </html> is part of the page
        tag = self._tags[name]
        if tag.role == DISSOLVE:
            return
        if self._pieces:
            self._flush()
        if tag.is_marked:
            self._open_headings -= tag.is_heading
            self._open_selects -= tag.is_select
        if tag.role == BLOCK:
            self._next_paragraph()
        elif tag.role == LINK:
            self._in_link = False

    def data(self, text: str) -> None:
        if self._depth and not self._killed_depth:
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
        self._next_paragraph()
        return self._paragraphs

    def _flush(self) -> None:
        text = "".join(self._pieces)
        self._pieces.clear()
        if not text or text.isspace():
            return
        self._texts.append(text)
        self._after_break = False
        if self._in_link:
            self._link_length += len(normalize_whitespace(text)) + text[0].isspace() + text[-1].isspace()

    def _next_paragraph(self) -> None:
        if self._texts:
            if text := normalize_whitespace("".join(self._texts)):
                self._paragraphs.append(Paragraph(text, self._link_length, self._is_heading, self._in_select))
            self._texts.clear()
            self._link_length = 0
        self._is_heading, self._in_select = self._open_headings > 0, self._open_selects > 0


def normalize_whitespace(text: str) -> str:
    """Strip the text and replace each run of whitespace by one character.

    That is a line feed where the run contains a line feed or carriage return, else a space.
    """
    if "\n" not in text and "\r" not in text:
        return " ".join(text.split())
    lines = (" ".join(line.split()) for line in text.replace("\r", "\n").split("\n"))
    return "\n".join(filter(None, lines))
