"""Pages that do not begin as documents, as ``lxml.html.fromstring`` and so jusText read them.

libxml2 makes a document of anything, with bodies as it needs them; it opens another for what stands behind ``</body>``.
``fromstring`` then takes all bodies for one. Unless there is a head, that body is the page and the rest is not; and
where it holds a single tag and no text, that tag is the page.
"""

from __future__ import annotations

from itertools import takewhile
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from lxml.html.defs import block_tags

if TYPE_CHECKING:
    from collections.abc import Mapping

DEEPEST = 256  # tags within tags, as libxml2 has it
TAGS_KEPT = 1024


class TooDeepError(Exception):
    """Tags nest deeper than ``DEEPEST``."""


class Event(NamedTuple):
    """A call of a parser's target."""

    method: str
    name: str  # of a tag; or a text
    attributes: Mapping[str, str] = MappingProxyType({})

    def is_tag(self, name: str) -> bool:
        """Whether this tag opens here."""
        return self.method == "start" and self.name == name


class Fragment:
    """A target of lxml's parser that keeps the events until all are known."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._open: list[str] = []
        self._ended = False
        self._known: dict[tuple[str, str], Event] = {}

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        """A tag opens. Raises ``TooDeepError``."""
        if len(self._open) == DEEPEST:
            raise TooDeepError
        self._open.append(name)
        self._keep(Event("start", name, attributes) if attributes else self._of_tag("start", name))

    def end(self, name: str) -> None:
        """A tag closes."""
        self._keep(self._of_tag("end", name))
        self._open.pop()
        self._ended |= not self._open

    def data(self, text: str) -> None:
        """Text stands here."""
        self._keep(Event("data", text))

    def comment(self, text: str) -> None:
        """A comment stands here."""
        self._keep(Event("comment", text))

    def pi(self, target: str, data: str | None) -> None:
        """A processing instruction stands here."""
        del data
        self._keep(Event("pi", target))

    def close(self) -> None:
        """The page ends."""

    def events(self) -> list[Event]:
        """Those of the page, once it has ended or the parser has stopped."""
        return _page_of([*self._events, *(Event("end", name) for name in reversed(self._open))])

    def _keep(self, event: Event) -> None:
        if self._open and not self._ended:
            self._events.append(event)

    def _of_tag(self, method: str, name: str) -> Event:
        """One event for all its like: a page of a million tags holds it a million times."""
        if len(self._known) == TAGS_KEPT:
            self._known.clear()
        return self._known.setdefault((method, name), Event(method, name))


def _page_of(events: list[Event]) -> list[Event]:
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
    if len(tags) == 1 and all(child[0].name.isspace() for child in inner if child is not tags[0]):
        return [events[0], *tags[0], events[-1]]
    name = "div" if any(event.method == "start" and event.name in block_tags for event in body) else "span"
    tail = [child[0] for child in takewhile(lambda child: child[0].method == "data", others)]
    return [events[0], Event("start", name), *body, Event("end", name), *tail, events[-1]]


def _children(events: list[Event]) -> list[list[Event]]:
    """Parts events at what is not within a tag."""
    children: list[list[Event]] = []
    depth = 0
    for event in events:
        if depth == 0:
            children.append([])
        children[-1].append(event)
        depth += (event.method == "start") - (event.method == "end")
    return children
