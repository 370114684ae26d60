"""The paragraphs of HTML pages as jusText 3 cuts them, in one pass over the parser's events.

The package parses a page into a tree, copies it, takes scripts, forms and the like out of the copy, and turns what is
left back into events. Here libxml2's own events drive the same rules, and no tree is built:

    a paragraph begins and ends at every block tag and at the second of two <br>
    killed tags go with all that they hold, dissolved ones go and leave it behind; text on both sides joins
    white space between two tags is no text

What the package makes of a broken page is kept too: a page that does not begin as a document is read as a fragment
(``fragments``), and nothing is read behind the place where tags nest too deep for libxml2. Where the package fails,
as on a control character beside a comment, the paragraphs come out as if it had not.

Events cost time in proportion to the page, whatever it holds; a tree does not: libxml2 takes seconds to give one tag
50,000 attributes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from lxml import etree

from .fragments import DEEPEST, TAGS_KEPT, Fragment, TooDeepError

if TYPE_CHECKING:
    from collections.abc import Mapping

BLOCKS = {"body", "blockquote", "caption", "center", "col", "colgroup", "dd", "div", "dl", "dt", "fieldset", "form"}
BLOCKS |= {"h1", "h2", "h3", "h4", "h5", "h6", "legend", "li", "optgroup", "option", "p", "pre", "table", "td"}
BLOCKS |= {"textarea", "tfoot", "th", "thead", "tr", "ul"}
KILLED = {"applet", "base", "button", "head", "input", "script", "select", "style", "textarea"}
DISSOLVED = {"embed", "form", "iframe", "layer", "object", "param"}
HEADING = re.compile(r"\bh\d\b")
WHOLE = re.compile(r"\s*<(?:html|!doctype)", re.IGNORECASE)

PLAIN, BLOCK, BREAK, LINK, SHEET, DISSOLVE, KILL = range(7)


class Paragraph(NamedTuple):
    """A paragraph as it stands on the page."""

    text: str
    linked: int  # characters within links
    heading: bool  # within <h1> to <h9>
    choice: bool  # within a tag whose name holds "select"


class Page(NamedTuple):
    """What was read of a page."""

    paragraphs: list[Paragraph]
    cut: bool  # tags nest too deep: what stands behind that place was not read


def read_page(html: str) -> Page:
    """Every paragraph of a page that holds text."""
    reader = _Reader()
    if WHOLE.match(html):
        cut = _parse(html, reader)
        return Page(reader.paragraphs(), cut)
    fragment = Fragment()
    cut = _parse(html, fragment)
    for event in fragment.events():
        match event.method:
            case "start":
                reader.start(event.name, event.attributes)
            case "end":
                reader.end(event.name)
            case "data":
                reader.data(event.name)
            case "pi":
                reader.pi(event.name, None)
    return Page(reader.paragraphs(), cut)


def _parse(html: str, target: Any) -> bool:  # noqa: ANN401  (the protocol of a target is lxml's)
    """Fire the events of a page; returns whether they stop where tags nest too deep."""
    parser = etree.HTMLParser(target=target)
    try:
        try:
            etree.fromstring(html, parser)
        except ValueError:  # XHTML that declares an encoding is only read as bytes, as the package does it
            etree.fromstring(html.encode(errors="replace"), parser)
    except TooDeepError:
        return True
    return False


# --- what tags do ----------------------------------------------------------------------------------------------------


class _Tag(NamedTuple):
    role: int
    heading: bool
    choice: bool
    marks: bool  # either


class _Tags(dict[str, _Tag]):
    """What each tag does, looked up by name once; a page may invent any number of names."""

    def __missing__(self, name: str) -> _Tag:
        if len(self) == TAGS_KEPT:
            self.clear()
        roles = (
            (KILLED, KILL),
            (DISSOLVED, DISSOLVE),
            (BLOCKS, BLOCK),
            ({"br"}, BREAK),
            ({"a"}, LINK),
            ({"link"}, SHEET),
        )
        role = next((role for names, role in roles if name in names), PLAIN)
        heading, choice = HEADING.search(name) is not None, "select" in name
        tag = self[name] = _Tag(role, heading, choice, heading or choice)
        return tag


class _Reader:
    """A target of lxml's parser: makes paragraphs of a document's events."""

    def __init__(self) -> None:
        self._found: list[Paragraph] = []
        self._tags = _Tags()
        self._depth = 0
        self._killed = 0  # depth within a killed tag, itself included
        self._pieces: list[str] = []  # text that no tag has yet cut off
        self._texts: list[str] = []  # of the paragraph at hand
        self._linked = 0
        self._heading = self._choice = False
        self._headings = self._choices = 0  # open tags
        self._in_link = self._after_break = False

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        """A tag opens, in the page or because another implies it."""
        self._depth += 1
        if self._depth > DEEPEST:
            raise TooDeepError
        if self._killed:
            self._killed += 1
            return
        tag = self._tags[name]
        role = tag.role
        if role == SHEET and "stylesheet" in attributes.get("rel", "").lower():
            role = KILL
        if role == KILL:
            self._killed = 1
        elif role != DISSOLVE:
            self._open(tag)

    def _open(self, tag: _Tag) -> None:
        if self._pieces:
            self._flush()
        if tag.marks:
            self._headings += tag.heading
            self._choices += tag.choice
        if tag.role == BLOCK or (tag.role == BREAK and self._after_break):
            self._next_paragraph()
            return
        self._after_break = tag.role == BREAK
        if tag.role == BREAK:
            self._texts.append(" ")
        elif tag.role == LINK:
            self._in_link = True

    def end(self, name: str) -> None:
        """A tag closes."""
        self._depth -= 1
        if self._killed:
            self._killed -= 1
            return
        if not self._depth:
            self._killed = 1  # what stands behind </html> is not part of the page
        tag = self._tags[name]
        if tag.role == DISSOLVE:
            return
        if self._pieces:
            self._flush()
        if tag.marks:
            self._headings -= tag.heading
            self._choices -= tag.choice
        if tag.role == BLOCK:
            self._next_paragraph()
        elif tag.role == LINK:
            self._in_link = False

    def data(self, text: str) -> None:
        """Text stands here."""
        if self._depth and not self._killed:
            self._pieces.append(text)

    def pi(self, target: str, data: str | None) -> None:
        """A processing instruction stands here: unlike a comment, it parts the text before it from that behind."""
        del target, data
        self._flush()

    def close(self) -> None:
        """The page ends."""

    def paragraphs(self) -> list[Paragraph]:
        """All paragraphs, once the page has ended."""
        self._flush()
        self._next_paragraph()
        return self._found

    def _flush(self) -> None:
        text = "".join(self._pieces)
        self._pieces.clear()
        if not text or text.isspace():
            return
        self._texts.append(text)
        self._after_break = False
        if self._in_link:
            self._linked += len(normal(text)) + text[0].isspace() + text[-1].isspace()

    def _next_paragraph(self) -> None:
        if self._texts:
            if text := normal("".join(self._texts)):
                self._found.append(Paragraph(text, self._linked, self._heading, self._choice))
            self._texts.clear()
            self._linked = 0
        self._heading, self._choice = self._headings > 0, self._choices > 0


def normal(text: str) -> str:
    """The text without white space at its ends, each run of it inside one character.

    That is a line feed where the run holds one or a carriage return, or else a space.
    """
    if "\n" not in text and "\r" not in text:
        return " ".join(text.split())
    lines = (" ".join(line.split()) for line in text.replace("\r", "\n").split("\n"))
    return "\n".join(filter(None, lines))
