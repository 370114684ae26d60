"""Tables of tags and entities of HTML 4 for compiled loops: libxml2's parsing rules, and jusText's.

Tags have small numbers; 0 stands for every tag that no rule names.
"""

from __future__ import annotations

from functools import cache
from html.entities import html5
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mtnlg_data.text.compiled import jit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mtnlg_data.array_types import Bools, Int64s, UInt32s, UInt64s

#: What jusText does at a tag: nothing, end a paragraph, end it if it is the second of two, note that a link begins,
#: remove it with its content if it is a style sheet, remove the tag, remove it with its content.
PLAIN, BLOCK, BREAK, LINK, STYLESHEET, DISSOLVE, KILL = range(7)
ROLE_TAGS = {
    BLOCK: "body blockquote caption center col colgroup dd div dl dt fieldset form h1 h2 h3 h4 h5 h6 legend li "
    "optgroup option p pre table td tfoot th thead tr ul",
    BREAK: "br",
    LINK: "a",
    STYLESHEET: "link",
    DISSOLVE: "embed form iframe layer object param",
    KILL: "applet base button head input script select style textarea",
}
#: How libxml2 reads what follows a tag: as markup, as text with entities, as text, as text to the end, as a script.
MARKUP, TEXT_WITH_ENTITIES, TEXT, TEXT_TO_END, SCRIPT = range(5)
MODE_TAGS = {
    TEXT_WITH_ENTITIES: "textarea title",
    TEXT: "iframe noembed noframes style xmp",
    TEXT_TO_END: "plaintext",
    SCRIPT: "script",
}
EMPTY_TAGS = "area base basefont br col frame hr img input isindex link meta param"
#: Tags directly inside <html> that imply <head>, and those that imply nothing; all others imply <body>.
HEAD_TAGS = "base link meta script style title"
FRAME_TAGS = "frame frameset noframes"
#: An end tag does not close tags of a higher priority.
DEFAULT_PRIORITY = 10
PRIORITY_TAGS = {15: "div", 16: "td th", 17: "tr", 18: "tbody tfoot thead", 19: "table", 20: "head body", 22: "html"}
#: Open tags, and the start tags that close them.
CLOSED_BY = {
    "a": "a fieldset table td th",
    "address": "dd dl dt form li ul",
    "b i": "center p td th",
    "big s small strike tt": "p",
    "caption": "col colgroup tbody tfoot thead tr",
    "colgroup": "colgroup tbody tfoot thead tr",
    "dd": "dt",
    "dir menu": "dd dl dt form ul",
    "dl": "form li",
    "dt": "dd dl",
    "font": "center td th",
    "form ol": "form",
    "h1 h2 h3 h4 h5 h6": "fieldset form li p table",
    "head": "a abbr acronym address b bdo big blockquote body br center cite code dd dfn dir div dl dt em fieldset "
    "font form frameset h1 h2 h3 h4 h5 h6 hr i iframe img kbd li listing map menu ol p pre q s samp small span strike "
    "strong sub sup table tt u ul var xmp",
    "legend": "fieldset",
    "li": "li",
    "listing pre": "dd dl dt fieldset form li table ul",
    "option": "optgroup option",
    "p": "address blockquote body caption center col colgroup dd dir div dl dt fieldset form frameset h1 h2 h3 h4 h5 "
    "h6 head hr li listing menu ol p pre table tbody td tfoot th title tr ul xmp",
    "span": "td th",
    "tbody": "tbody tfoot",
    "td th": "tbody td tfoot th tr",
    "tfoot": "tbody",
    "thead": "tbody tfoot",
    "tr": "tbody tfoot tr",
    "u": "p td th",
    "ul": "address form menu pre",
}
#: Tags that set a mark, one bit per entry; everything inside such a tag has the mark too.
MARK_TAGS = (
    *("menu nav", "footer", "aside", "header", "main", "article", "form", "table", "figcaption", "b strong", "h1"),
    *("h2 h3 h4 h5 h6", "li", "p", "code pre", "blockquote", "a", "label", "dialog", "section", "select"),
)
MINOR_HEADING, IN_SELECT = 1 << MARK_TAGS.index("h2 h3 h4 h5 h6"), 1 << MARK_TAGS.index("select")
IS_HEADING = MINOR_HEADING | 1 << MARK_TAGS.index("h1")
OTHER_TAGS = "html math details figure hgroup summary template svg canvas audio video map g path source use time"
_TAG_LISTS = (*ROLE_TAGS.values(), *MODE_TAGS.values(), EMPTY_TAGS, FRAME_TAGS, *CLOSED_BY, *CLOSED_BY.values())
_TAG_LISTS += (*MARK_TAGS, OTHER_TAGS)
TAGS = ["", *sorted({name for names in _TAG_LISTS for name in names.split()})]
HTML, HEAD, BODY, P, PRE, MATH = (TAGS.index(name) for name in ("html", "head", "body", "p", "pre", "math"))
HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class Lookup(NamedTuple):
    """A hash table; a key that is not in it has the value ``MISSING``."""

    keys: UInt64s
    values: Int64s


MISSING = -1


def name_hash(name: Iterable[int]) -> int:
    """Hash of a name's bytes or code points; compiled loops compute the same hash."""
    total = 0
    for code in name:
        total = (total + code) * int(HASH_FACTOR) % (1 << 64)
    return total


def lookup_of(values: Mapping[bytes, int] | Mapping[tuple[int, ...], int]) -> Lookup:
    """A hash table from the hash of each name to its value."""
    size = 1 << (4 * len(values)).bit_length()
    table = Lookup(np.zeros(size, np.uint64), np.full(size, MISSING))
    for name, value in values.items():
        hashed = name_hash(name)
        slot = (hashed >> 32) % size
        while table.keys[slot]:
            slot = (slot + 1) % size
        table.keys[slot], table.values[slot] = hashed, value
    return table


@jit
def find(table: Lookup, hashed: np.uint64) -> int:
    """The value of the name with this hash; ``MISSING`` if it is not in the table."""
    last = len(table.keys) - 1
    slot = np.int64(hashed >> np.uint64(32)) & last
    while table.keys[slot] != hashed and table.keys[slot]:
        slot = (slot + 1) & last
    return int(table.values[slot])


def tag_table(tags: Mapping[int, str], default: int = 0) -> UInt32s:
    """An array of one value per tag number."""
    values = {name: value for value, names in tags.items() for name in names.split()}
    return np.array([values.get(name, default) for name in TAGS], np.uint32)


def _closes() -> Bools:
    table = np.zeros((len(TAGS), len(TAGS)), np.bool_)
    for opened, closing in CLOSED_BY.items():
        for name in opened.split():
            table[TAGS.index(name), [*map(TAGS.index, closing.split())]] = True
    return table


ROLES, MODES, PRIORITIES = tag_table(ROLE_TAGS), tag_table(MODE_TAGS), tag_table(PRIORITY_TAGS, DEFAULT_PRIORITY)
MARKS = tag_table({1 << bit: names for bit, names in enumerate(MARK_TAGS)})
IS_EMPTY, IMPLIES_HEAD, IMPLIES_NOTHING = (tag_table({1: names}) for names in (EMPTY_TAGS, HEAD_TAGS, FRAME_TAGS))
CLOSES = _closes()


@cache
def tag_numbers() -> Lookup:
    """The number of a tag by its name."""
    return lookup_of({name.encode(): number for number, name in enumerate(TAGS) if name})


@cache
def entities() -> Lookup:
    """Code points of entities by name, the second shifted left by 32; names include the semicolon if they need one."""
    return lookup_of({name.encode(): ord(text[0]) | ord(text[1:] or "\0") << 32 for name, text in html5.items()})
