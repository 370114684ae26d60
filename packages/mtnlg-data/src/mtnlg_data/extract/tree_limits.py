"""Find pages whose markup is too large for libraries that build a tree, in one scan of the bytes.

The cost of such libraries has no bound: libxml2 takes seconds to give one tag 50,000 attributes; in resiliparse's tree
each level costs as much as all levels above it, and 5,000 unclosed tags, <p><b id=N>x</p>, become 12 million, because
each block reopens all of them (html.spec.whatwg.org, "reconstruct the active formatting elements").

The scan tracks the open tags as a parser of HTML 5 does, or more of them: an end tag closes nothing outside a tag that
might hide it, and the only implied end tags are those that pages leave out.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from mtnlg_data.text.compiled import jit

from .html_tags import SCRIPT, Lookup, find, lookup_of, name_hash
from .markup import (
    COMMENT_BEGIN,
    EXCLAMATION,
    GREATER,
    IS_LETTER,
    LESS_SIGN,
    SLASH,
    attribute_at,
    comment_end,
    end_after,
    ends_tag,
    matches,
    name_at,
    next_attribute,
    raw_end,
)
from .paragraphs import MAX_DEPTH

if TYPE_CHECKING:
    from mtnlg_data.array_types import Int64s, UInt64s

    from .markup import Bytes

MAX_NODES, MAX_ATTRIBUTES = 200_000, 1000  # of a page; of one tag
REASONS = (None, "too_deep", "too_many_attributes", "too_many_tags")
#: Properties of a tag: it has no content; later blocks reopen it; a later tag of its name ends it; only end tags of
#: special and formatting tags reach beyond it; only end tags of table tags do; its own end tag is stopped by foreign
#: content alone; its content is text; inside it other rules say what is text and what is empty.
EMPTY, FORMATTING, SINGLE, SPECIAL, BOUNDARY, TABLE, RAW, FOREIGN = (1 << bit for bit in range(8))
KIND_TAGS = {
    EMPTY: "area base basefont bgsound body br col embed form frame head hr html img image input keygen link meta "
    "param source track wbr",
    FORMATTING: "a b big code em font i nobr s small strike strong tt u",
    SINGLE: "a nobr",
    SPECIAL: "address applet article aside blockquote button caption center colgroup dd details dialog dir div dl dt "
    "fieldset figcaption figure footer frameset h1 h2 h3 h4 h5 h6 header hgroup li listing main marquee menu nav "
    "object ol p pre search section summary table tbody td template tfoot th thead tr ul",
    BOUNDARY: "applet button caption desc foreignobject frameset marquee math noscript object select svg table td "
    "template th",
    TABLE: "caption colgroup table tbody td tfoot th thead tr",
    RAW: "iframe noembed noframes plaintext script style textarea title xmp",
    FOREIGN: "frameset math select svg template",
}
#: Tags, and the start tags that imply their end.
ENDED_BY = {
    "p": "address article aside blockquote center dd details dialog dir div dl dt fieldset figcaption figure footer h1 "
    "h2 h3 h4 h5 h6 header hgroup li listing main menu nav ol p pre search section summary table td th tr ul",
    "li": "li",
    "dd dt": "dd dt",
    "option": "optgroup option",
    "td th": "tbody td tfoot th thead tr",
    "tr": "tbody tfoot thead tr",
    "tbody tfoot thead": "tbody tfoot thead",
}
GROUP_SHIFT, ENDS_SHIFT = 8, 16
SCRIPT_HASH = np.uint64(name_hash(b"script"))
CDATA, CDATA_END = (np.frombuffer(each, np.uint8) for each in (b"<![cdata[", b"]]>"))
QUESTION = ord("?")


def markup_excess(html: str) -> str | None:
    """Reason why a page's markup is too large to build a tree from it; None if it is not."""
    return REASONS[_scan(np.frombuffer(html.encode(errors="replace"), np.uint8), _kinds())]


@cache
def _kinds() -> Lookup:
    kinds: dict[bytes, int] = {}
    tables = [*KIND_TAGS.items()]
    for group, (names, ending) in enumerate(ENDED_BY.items()):
        tables += [(1 << GROUP_SHIFT + group, names), (1 << ENDS_SHIFT + group, ending)]
    for kind, names in tables:
        for name in names.split():
            kinds[name.encode()] = kinds.get(name.encode(), 0) | kind
    return lookup_of(kinds)


@jit
def _scan(page: Bytes, known: Lookup) -> int:  # noqa: C901, PLR0912, PLR0915  (one loop)
    names, kinds = np.empty(MAX_DEPTH, np.uint64), np.empty(MAX_DEPTH, np.int64)
    height = formatting = nodes = hidden = place = 0
    has_mixed = False  # HTML inside of SVG, which may have ended it
    while True:
        place = _next_tag(page, place)
        if place + 2 >= len(page):
            return 0
        following = page[np.uint64(place + 1)]
        is_end = following == SLASH
        name = place + 1 + is_end
        nodes += 1
        if not IS_LETTER[page[np.uint64(name)]]:
            if matches(page, place, COMMENT_BEGIN):
                place = comment_end(page, place + 4)
            elif is_end or following in (EXCLAMATION, QUESTION):
                if matches(page, place, CDATA) and _holds(kinds, height, FOREIGN):
                    hidden = place
                    while hidden < len(page) and not matches(page, hidden, CDATA_END):
                        hidden += 1
                place = end_after(page, name, GREATER)
            else:
                place += 1
            continue
        begin, attributes = place, 0
        hashed, place = name_at(page, name)
        place = next_attribute(page, place)
        while not ends_tag(page, place):
            place = next_attribute(page, attribute_at(page, place)[0])
            attributes += 1
        kind = max(find(known, hashed), 0)
        nodes += formatting if kind & SPECIAL else 0
        if attributes > MAX_ATTRIBUTES:
            return 2
        if nodes > MAX_NODES:
            return 3
        if kind & EMPTY:
            continue
        if is_end or kind & SINGLE:
            if begin >= hidden:
                height, formatting = _close(names, kinds, height, formatting, hashed, kind)
            if is_end:
                continue
        if kind & RAW and not _holds(kinds, height, FOREIGN):
            place = _next_tag(page, place)
            while place + 2 < len(page) and (page[place + 1] != SLASH or name_at(page, place + 2)[0] != hashed):
                if hashed == SCRIPT_HASH and matches(page, place, COMMENT_BEGIN):
                    place = raw_end(page, place, hashed, SCRIPT)
                    break
                place = _next_tag(page, place + 1)
            continue
        if (
            place < len(page)
            and page[np.uint64(place)] == SLASH
            and not kind
            and not has_mixed
            and _holds(kinds, height, FOREIGN)
        ):
            continue
        has_mixed = has_mixed or (kind & SPECIAL > 0 and _holds(kinds, height, FOREIGN))
        while height and (kinds[height - 1] >> GROUP_SHIFT) & 0xFF & (kind >> ENDS_SHIFT):
            height -= 1
        if height == MAX_DEPTH:
            return 1
        names[height], kinds[height] = hashed, kind | BOUNDARY if kind & RAW else kind
        height += 1
        formatting += kind & FORMATTING > 0


@jit
def _next_tag(page: Bytes, place: int) -> int:
    """Position of the next "<", or the end."""
    while place < len(page) and page[np.uint64(place)] != LESS_SIGN:
        place += 1
    return place


@jit
def _holds(kinds: Int64s, height: int, kind: int) -> bool:
    """Whether a tag of this kind is open."""
    for k in range(height):  # noqa: SIM110  (numba)
        if kinds[np.uint64(k)] & kind:
            return True
    return False


@jit
def _close(  # noqa: PLR0917  (the stack)
    names: UInt64s, kinds: Int64s, height: int, formatting: int, hashed: np.uint64, kind: int
) -> tuple[int, int]:
    """Close a tag; returns how many tags remain open, and how many of them are formatting."""
    barrier = FOREIGN if kind & TABLE else BOUNDARY if kind & (SPECIAL | FORMATTING) else BOUNDARY | SPECIAL
    closed = height - 1
    while closed >= 0 and names[np.uint64(closed)] != hashed:
        if kinds[np.uint64(closed)] & barrier:
            return height, formatting
        closed -= 1
    if closed < 0:
        return height, formatting
    kept = closed
    for k in range(closed + 1, height):
        if kind & FORMATTING or (kinds[k] & FORMATTING and not kind & BOUNDARY):
            names[kept], kinds[kept] = names[k], kinds[k]
            kept += 1
        else:
            formatting -= kinds[k] & FORMATTING > 0
    return kept, formatting - (kind & FORMATTING > 0)
