"""The paragraphs of HTML pages as jusText 3 cuts them, in one pass over the parser's events.

The package parses a page into a tree, copies it, takes scripts, forms and the like out of the copy, and turns what is
left back into events. Here libxml2's own events drive the same rules, and no tree is built:

    a paragraph begins and ends at every block tag and at the second of two <br>
    killed tags go with all that they hold, dissolved ones go and leave it behind; text on both sides joins
    white space between two tags is no text

What the package makes of a broken page is kept too: a page that does not begin as a document is read as a fragment
(``_Fragment``), and nothing is read behind the place where tags nest too deep for libxml2. Where the package fails,
as on a control character beside a comment, the paragraphs come out as if it had not.

Events cost time in proportion to the page, whatever it holds; a tree does not: libxml2 takes seconds to give one tag
50,000 attributes.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import takewhile
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from lxml import etree
from lxml.html.defs import block_tags

if TYPE_CHECKING:
    from collections.abc import Mapping

BLOCKS = {"body", "blockquote", "caption", "center", "col", "colgroup", "dd", "div", "dl", "dt", "fieldset", "form"}
BLOCKS |= {"h1", "h2", "h3", "h4", "h5", "h6", "legend", "li", "optgroup", "option", "p", "pre", "table", "td"}
BLOCKS |= {"textarea", "tfoot", "th", "thead", "tr", "ul"}
KILLED = {"applet", "base", "button", "head", "input", "script", "select", "style", "textarea"}
DISSOLVED = {"embed", "form", "iframe", "layer", "object", "param"}
HEADING = re.compile(r"\bh\d\b")
WHOLE = re.compile(r"\s*<(?:html|!doctype)", re.IGNORECASE)
DEEPEST = 256  # tags within tags, as libxml2 has it
TAGS_KEPT = 1024

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
    target: Any = _Reader() if WHOLE.match(html) else _Fragment()
    parser = etree.HTMLParser(target=target)
    cut = False
    try:
        try:
            etree.fromstring(html, parser)
        except ValueError:  # XHTML that declares an encoding is only read as bytes, as the package does it
            etree.fromstring(html.encode(errors="replace"), parser)
    except _TooDeepError:
        cut = True
    return Page(target.paragraphs(), cut)


class _TooDeepError(Exception):
    """Tags nest deeper than ``DEEPEST``."""


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
            raise _TooDeepError
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


# --- fragments -------------------------------------------------------------------------------------------------------


class _Event(NamedTuple):
    """A call of a parser's target."""

    method: str
    name: str  # of a tag; or a text
    attributes: Mapping[str, str] = MappingProxyType({})

    def is_tag(self, name: str) -> bool:
        """Whether this tag opens here."""
        return self.method == "start" and self.name == name


@lru_cache(maxsize=TAGS_KEPT)
def _event(method: str, name: str) -> _Event:
    """One event for all its like: a page of a million tags holds it a million times."""
    return _Event(method, name)


class _Fragment:
    """A target of lxml's parser for pages that do not begin as documents: keeps the events until all are known."""

    def __init__(self) -> None:
        self._events: list[_Event] = []
        self._open: list[str] = []
        self._ended = False

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        """See ``_Reader``, as for the methods that follow."""
        if len(self._open) == DEEPEST:
            raise _TooDeepError
        self._open.append(name)
        self._keep(_Event("start", name, attributes) if attributes else _event("start", name))

    def end(self, name: str) -> None:
        """A tag closes."""
        self._keep(_event("end", name))
        self._open.pop()
        self._ended |= not self._open

    def data(self, text: str) -> None:
        """Text stands here."""
        self._keep(_Event("data", text))

    def comment(self, text: str) -> None:
        """A comment stands here."""
        self._keep(_Event("comment", text))

    def pi(self, target: str, data: str | None) -> None:
        """A processing instruction stands here."""
        del data
        self._keep(_Event("pi", target))

    def close(self) -> None:
        """The page ends."""

    def paragraphs(self) -> list[Paragraph]:
        """All paragraphs, once the page has ended."""
        self._events += [_Event("end", name) for name in reversed(self._open)]
        reader = _Reader()
        for event in _page_of(self._events):
            match event.method:
                case "start":
                    reader.start(event.name, event.attributes)
                case "end":
                    reader.end(event.name)
                case "data":
                    reader.data(event.name)
                case "pi":
                    reader.pi(event.name, None)
        return reader.paragraphs()

    def _keep(self, event: _Event) -> None:
        if self._open and not self._ended:
            self._events.append(event)


def _page_of(events: list[_Event]) -> list[_Event]:
    """What ``lxml.html.fromstring`` takes for the page: all bodies as one; without a head, that body and no more."""
    children = _children(events[1:-1])
    bodies = [child for child in children if child[0].is_tag("body")]
    if not bodies:
        return events
    body = [event for each in bodies for event in each[1:-1]]
    first = children.index(bodies[0])
    others = [child for child in children[first + 1 :] if not child[0].is_tag("body")]
    if any(child[0].is_tag("head") for child in children):
        before = [event for child in children[:first] for event in child]
        behind = [event for child in others for event in child]
        return [events[0], *before, bodies[0][0], *body, bodies[0][-1], *behind, events[-1]]
    inner = _children(body)
    tags = [child for child in inner if child[0].method != "data"]
    if len(tags) == 1 and all(child in tags or child[0].name.isspace() for child in inner):
        return [events[0], *tags[0], events[-1]]
    name = "div" if any(event.method == "start" and event.name in block_tags for event in body) else "span"
    tail = [child[0] for child in takewhile(lambda child: child[0].method == "data", others)]
    return [events[0], _Event("start", name), *body, _Event("end", name), *tail, events[-1]]


def _children(events: list[_Event]) -> list[list[_Event]]:
    """Parts events at what is not within a tag."""
    children: list[list[_Event]] = []
    depth = 0
    for event in events:
        if depth == 0:
            children.append([])
        children[-1].append(event)
        depth += (event.method == "start") - (event.method == "end")
    return children
