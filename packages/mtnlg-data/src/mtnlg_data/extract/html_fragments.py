"""HTML pages that do not begin as documents, as ``lxml.html.fromstring`` and therefore jusText read them.

libxml2 turns any input into a document and adds bodies as needed, another one for content after ``</body>``.
``fromstring`` then merges all bodies into one. Without a head, that body alone is the page; and where it contains a
single tag and no text, that tag is the page.
"""

from __future__ import annotations

from itertools import takewhile
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from lxml.html.defs import block_tags

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_DEPTH = 256  # nested tags; libxml2's own limit
TAG_CACHE_SIZE = 1024


class TooDeepError(Exception):
    """Tags nest deeper than ``MAX_DEPTH``."""


class Event(NamedTuple):
    """A call of an lxml parser target."""

    method: str
    name: str  # of a tag, or a text
    attributes: Mapping[str, str] = MappingProxyType({})

    def is_start_of(self, tag: str) -> bool:
        """Whether this event opens the tag."""
        return self.method == "start" and self.name == tag


class EventRecorder:
    """An lxml parser target that records the events of the page's first element."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._open_tags: list[str] = []
        self._ended = False
        self._cache: dict[tuple[str, str], Event] = {}

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        """Record an opening tag. Raises ``TooDeepError``."""
        if len(self._open_tags) == MAX_DEPTH:
            raise TooDeepError
        self._open_tags.append(name)
        self._record(Event("start", name, attributes) if attributes else self._tag_event("start", name))

    def end(self, name: str) -> None:
        """Record a closing tag."""
        self._record(self._tag_event("end", name))
        self._open_tags.pop()
        self._ended |= not self._open_tags

    def data(self, text: str) -> None:
        """Record text."""
        self._record(Event("data", text))

    def comment(self, text: str) -> None:
        """Record a comment."""
        self._record(Event("comment", text))

    def pi(self, target: str, data: str | None) -> None:
        """Record a processing instruction."""
        del data
        self._record(Event("pi", target))

    def close(self) -> None:
        """Do nothing; lxml requires it."""

    def events(self) -> list[Event]:
        """Events of the page, after the parser has ended or stopped."""
        return _merge_bodies([*self._events, *(Event("end", name) for name in reversed(self._open_tags))])

    def _record(self, event: Event) -> None:
        if self._open_tags and not self._ended:
            self._events.append(event)

    def _tag_event(self, method: str, name: str) -> Event:
        """A shared event, so that a page of a million equal tags stores one."""
        if len(self._cache) == TAG_CACHE_SIZE:
            self._cache.clear()
        return self._cache.setdefault((method, name), Event(method, name))


def _merge_bodies(events: list[Event]) -> list[Event]:
    """The page that ``fromstring`` makes of the events of an <html> element."""
    children = _split_children(events[1:-1])
    bodies = [child for child in children if child[0].is_start_of("body")]
    if not bodies:
        return events
    body = [event for each in bodies for event in each[1:-1]]
    first = children.index(bodies[0])
    others = [child for child in children[first + 1 :] if not child[0].is_start_of("body")]
    if any(child[0].is_start_of("head") for child in children):
        before = [event for child in children[:first] for event in child]
        after = [event for child in others for event in child]
        return [events[0], *before, bodies[0][0], *body, bodies[0][-1], *after, events[-1]]
    content = _split_children(body)
    tags = [child for child in content if child[0].method != "data"]
    if len(tags) == 1 and all(child[0].name.isspace() for child in content if child is not tags[0]):
        return [events[0], *tags[0], events[-1]]
    name = "div" if any(event.method == "start" and event.name in block_tags for event in body) else "span"
    tail = [child[0] for child in takewhile(lambda child: child[0].method == "data", others)]
    return [events[0], Event("start", name), *body, Event("end", name), *tail, events[-1]]


def _split_children(events: list[Event]) -> list[list[Event]]:
    """The events of each top-level tag, text, comment or processing instruction."""
    children: list[list[Event]] = []
    depth = 0
    for event in events:
        if depth == 0:
            children.append([])
        children[-1].append(event)
        depth += (event.method == "start") - (event.method == "end")
    return children
