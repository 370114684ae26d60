"""Split an HTML page into paragraphs as jusText 3 does, in one pass over its bytes.

The package parses a page into a tree with libxml2, copies it, removes scripts, forms and the like from the copy, and
turns the rest back into events. Here one loop finds the tags that libxml2 2.14 finds, those that it implies, and where
it ends them, and follows the package's rules as it goes; no tree is built and no text becomes a Python string:

    a paragraph begins and ends at every block tag and at the second of two <br>
    killed tags are removed with their content, dissolved tags without it; the text on both sides joins
    whitespace between two tags is not text

Where the package fails, as on a control character beside a comment, the paragraphs are those that it would have found.
A fragment is read as the document that libxml2 makes of it. Elements of a page's own, such as <my-select> or <my-h1>,
are no headings or lists, which jusText takes them for by their names.

The time is proportional to the page, whatever its content. The time to build a tree is not: libxml2 takes seconds to
give one tag 50,000 attributes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mtnlg_data.text.characters import SPACE, code_at, code_before, count_characters, space_begin
from mtnlg_data.text.compiled import jit

from .html_tags import (
    BLOCK,
    BODY,
    BREAK,
    CLOSES,
    DISSOLVE,
    HEAD,
    HTML,
    IMPLIES_HEAD,
    IMPLIES_NOTHING,
    IS_EMPTY,
    KILL,
    LINK,
    MARKS,
    MARKUP,
    MATH,
    MODES,
    PLAIN,
    PRE,
    PRIORITIES,
    ROLES,
    STYLESHEET,
    TAGS,
    TEXT_TO_END,
    TEXT_WITH_ENTITIES,
    Lookup,
    P,
    entities,
    find,
    name_hash,
    tag_numbers,
)
from .markup import (
    AMPERSAND,
    BLANK,
    DECLARATIONS,
    EXCLAMATION,
    GREATER,
    HYPHENS,
    IS_BLANK,
    IS_LETTER,
    KINDS,
    LESS,
    LESS_SIGN,
    LETTER,
    LINE,
    SLASH,
    WIDE,
    attribute_at,
    attribute_value,
    comment_end,
    contains,
    end_after,
    ends_tag,
    matches,
    name_at,
    next_attribute,
    raw_end,
    reference_at,
    space_table,
)

if TYPE_CHECKING:
    from mtnlg_data.array_types import Int32s, Int64s, UInt8s, UInt32s, UInt64s

    Bytes = UInt8s

MAX_DEPTH = 256  # nested tags; libxml2's own limit
#: Columns of a page: where the paragraph ends in the text; how many characters it has, and how many inside links; its
#: last character; marks of the tags open where it begins, and at its first character; the block element of that
#: character; whether it is a <pre>, kept as written.
END, CHARACTERS, LINKED, LAST, MARKED, FIRST_MARKED, ELEMENT, PREFORMATTED = range(8)
COLUMNS = PREFORMATTED + 1
NOTHING_KILLED = MAX_DEPTH + 1
TAG_HASHES = np.array([name_hash(name.encode()) for name in TAGS], np.uint64)
REL, STYLE_SHEET, ENCODING, TEX, CLASS, KATEX, ANNOTATION = (
    np.frombuffer(name.encode(), np.uint8)
    for name in ["rel", "stylesheet", "encoding", "application/x-tex", "class", "katex-html", "annotation"]
)
LINE_FEED, RETURN, SPACE_BYTE = b"\n\r "


class Page(NamedTuple):
    """The non-empty paragraphs of a page, in order."""

    text: Bytes  # of all of them, in UTF-8
    columns: Int64s  # [COLUMNS, paragraphs]
    parents: Int32s  # of block elements: the number of the one around it, -1 of the first
    truncated: bool  # tags nest too deep: nothing after that point was read

    def texts(self) -> list[str]:
        """The text of each paragraph."""
        ends = self.columns[END].tolist()
        return [self.text[begin:end].tobytes().decode() for begin, end in zip([0, *ends], ends, strict=False)]


def read_page(html: str, *, layout: bool = False, roles: UInt32s = ROLES) -> Page:
    """The paragraphs of a page.

    ``layout`` keeps spaces and lines as a browser shows them, which jusText loses, and each formula once: whitespace
    between two inline tags is a space; a <pre> is one paragraph as written, in which block tags begin lines; the text
    of <math> is its TeX annotation, or its MathML if it has none; KaTeX's rendering of the formula is left out where
    the page also has <math>. ``roles`` has the role of each tag number.
    """
    data = np.frombuffer(html.removeprefix("\ufeff").replace("\0", "\ufffd").encode(errors="replace"), np.uint8)
    return Page(*_read(data, layout, roles, (tag_numbers(), entities(), space_table())))


@jit
def _read(  # noqa: C901, PLR0912, PLR0915  (one loop)
    page: Bytes,
    layout: bool,
    roles: UInt32s,
    tables: tuple[Lookup, Lookup, UInt8s],
) -> tuple[Any, ...]:
    numbers, references, table = tables
    end, place = len(page), 0
    text, size, begin = np.empty(end + end // 4 + 16, np.uint8), 0, 0
    most = 3  # paragraphs or elements: those implied, and one for each tag
    for k in range(end):
        most += page[k] == LESS_SIGN
    columns, count = np.empty((COLUMNS, most), np.int64), 0
    parents, elements = np.empty(most, np.int32), 0
    misplaced = 0
    # Open tags: hashes of their names, and their numbers; marks and block element of the content of the first k tags.
    names, tags = np.empty(MAX_DEPTH, np.uint64), np.empty(MAX_DEPTH, np.int64)
    marks, blocks = np.zeros(MAX_DEPTH + 1, np.int64), np.full(MAX_DEPTH + 1, -1, np.int32)
    height, killed = 0, NOTHING_KILLED  # what is inside more than ``killed`` tags is left out
    opening = np.empty(3, np.int64)
    mode, has_head, has_body = MARKUP, False, False
    # White space before the next character: in the paragraph, and in the run of text since the last tag.
    gap = run_gap = 0
    run_length, in_run = 0, False
    linked, in_link, after_break = 0, False, False
    marked = first_marked = 0
    element = -1
    pres, formula, formula_gap = 0, -1, 0
    truncated = done = False
    while not done:
        stop = end
        if mode != MARKUP:
            stop = end if mode == TEXT_TO_END else raw_end(page, place, names[height - 1], mode)
            if height > killed:
                place = stop
        bare = mode == MARKUP and (
            not height or tags[height - 1] == HEAD or (tags[height - 1] == HTML and not has_body)
        )
        implied = False
        while place < stop:
            byte = page[np.uint64(place)]
            kind, code, second, width = KINDS[byte], int(byte), 0, 1
            if kind == LESS:
                if mode == MARKUP and place + 1 < end:
                    following = page[np.uint64(place + 1)]
                    if IS_LETTER[following] or following in DECLARATIONS or (following == SLASH and place + 2 < end):
                        break
                kind = LETTER
            elif kind >= AMPERSAND:
                if kind == WIDE:
                    code, width = code_at(page, place)
                elif mode in (MARKUP, TEXT_WITH_ENTITIES):
                    code, second, width = reference_at(page, place, references)
                kind = BLANK if table[code] & SPACE else LETTER
                if code in (LINE_FEED, RETURN):
                    kind = LINE
            if bare and not (code < 128 and IS_BLANK[code]):
                implied = True
                break
            if bare or height > killed:
                place += width
                continue
            if kind != LETTER:
                run_gap = max(run_gap, kind)
                place += width
                if pres:
                    if kind == BLANK:
                        size = _write(text, size, code)
                    elif code == LINE_FEED or place == end or page[place] != LINE_FEED:
                        size = _end_line(text, begin, size, table)
                continue
            if run_gap:
                run_length += 1
                gap, run_gap = max(gap, run_gap), 0
            if gap:
                if size > begin and not pres:
                    text[np.uint64(size)] = LINE_FEED if gap == LINE else SPACE_BYTE
                    size += 1
                gap = 0
            if not in_run:
                in_run = True
                if first_marked < 0:
                    first_marked, element = marks[height], blocks[height]
            size, place, run_length = _write(text, size, code), place + width, run_length + 1
            if second:
                size, run_length = _write(text, size, second), run_length + 1
            while place < stop and KINDS[page[np.uint64(place)]] == LETTER:
                text[np.uint64(size)] = page[np.uint64(place)]
                size, place, run_length = size + 1, place + 1, run_length + 1
        # Which tags are closed and opened by the tag here, or by the first character of a text without <body>.
        closing, openings, is_void, is_last = height, 0, False, False
        tag, name, name_end, hashed = -1, 0, 0, np.uint64(0)
        if implied:
            tag = P
        elif place >= end:
            closing, done = 0, True
        elif mode != MARKUP:
            mode = MARKUP
            continue
        else:
            following = page[place + 1]
            is_end = following == SLASH
            name = place + 2 if is_end else place + 1
            if not IS_LETTER[page[name]]:
                if following == EXCLAMATION and matches(page, place + 2, HYPHENS):
                    place = comment_end(page, place + 4)
                else:
                    place = end_after(page, name, GREATER)
                continue
            hashed, name_end = name_at(page, name)
            number = max(find(numbers, hashed), 0)
            place = next_attribute(page, name_end)
            while not ends_tag(page, place):
                place = next_attribute(page, attribute_at(page, place)[0])
            is_cut = place >= end
            is_void = not is_cut and page[place] == SLASH
            place += 2 if is_void else 1
            if is_end:
                is_void = False
                if misplaced and (number in (HTML, HEAD, BODY)):
                    misplaced -= 1
                elif not is_cut:
                    closing = _closed_by(names, tags, height, hashed, number)
            else:
                tag = number
        if tag >= 0:
            while closing and CLOSES[tags[closing - 1], tag]:
                closing -= 1
            level, guess = closing, 0
            in_head = in_body = False
            for k in range(0 if has_body and tag != BODY else closing):
                in_head, in_body = in_head or tags[k] == HEAD, in_body or tags[k] == BODY
            if tag != HTML:
                if not level:
                    opening[0] = HTML
                    level = openings = 1
                if tag not in (HEAD, BODY):
                    if level == 1 and IMPLIES_HEAD[tag]:
                        guess = 0 if has_head or has_body else HEAD
                    elif not (IMPLIES_NOTHING[tag] or has_body or in_head or in_body):
                        guess = BODY
                if guess:
                    opening[openings] = guess
                    openings += 1
            if not implied:
                if (tag == HTML and level) or (tag == HEAD and level != 1) or (tag == BODY and in_body):
                    misplaced += 1
                    if not (is_cut or is_void):
                        mode = MODES[tags[closing - 1]]
                elif not is_cut:
                    opening[openings] = tag
                    openings += 1
                    is_void = is_void or IS_EMPTY[tag] > 0
                    mode = MARKUP if is_void else MODES[tag]
        step = 0
        while not is_last:
            role, starts, visible = KILL, False, False
            tag = 0
            if height > closing:
                height -= 1
                tag = tags[height]
                visible = height < killed
                if visible:
                    role = PLAIN if roles[tag] == STYLESHEET else roles[tag]
                    if not height:
                        killed = -1
                elif height == killed:
                    killed = NOTHING_KILLED
            elif step < openings and height == MAX_DEPTH:
                truncated = done = True
                closing, openings, is_void = height, 0, False
                continue
            elif step < openings:
                tag, starts, visible = opening[step], True, height <= killed
                is_own = step == openings - 1 and name > 0
                names[height], tags[height] = TAG_HASHES[tag], tag
                if is_own:
                    names[height] = hashed
                has_head, has_body = has_head or tag == HEAD, has_body or tag == BODY
                marks[height + 1], blocks[height + 1] = marks[height] | MARKS[tag], blocks[height]
                step += 1
                if visible:
                    role = roles[tag]
                    if role == STYLESHEET:
                        value, value_end = attribute_value(page, name_end, REL)
                        role = KILL if contains(page, value, value_end, STYLE_SHEET) else PLAIN
                    if role == BLOCK or not height:
                        parents[elements], blocks[height + 1] = blocks[height], elements
                        elements += 1
            elif is_void:
                is_void, closing = False, height - 1
                continue
            elif done:
                role, is_last = BLOCK, True
            else:
                break
            if role < DISSOLVE or (layout and visible and starts):
                if in_run:
                    after_break = False
                    run_length += run_gap > 0
                    linked += run_length if in_link else 0
                if in_run or layout:
                    gap = max(gap, run_gap)
                run_gap = run_length = 0
                in_run = False
            if layout and visible:
                if pres and tag != PRE and (role in (BLOCK, BREAK)):
                    role = PLAIN
                    if starts:
                        size = _end_line(text, begin, size, table)
                if starts and tag == MATH:
                    formula, formula_gap = size, gap
                elif starts and formula >= 0 and name > 0:
                    value, value_end = attribute_value(page, name_end, ENCODING)
                    if value_end - value == len(TEX) and matches(page, value, TEX):
                        if formula >= begin:
                            size, gap = formula, formula_gap
                    else:
                        value, value_end = attribute_value(page, name_end, CLASS)
                        if matches(page, name, ANNOTATION) or contains(page, value, value_end, KATEX):
                            role = KILL
            if starts:
                if visible and role == KILL:
                    killed = height
                closing = height = height + 1
            if role == BLOCK or (role == BREAK and starts and after_break):
                if pres:
                    size = space_begin(text, begin, size, table)
                if size > begin:
                    columns[END, count], columns[CHARACTERS, count] = size, count_characters(text, begin, size)
                    columns[LINKED, count], columns[LAST, count] = linked, code_before(text, size)[0]
                    columns[MARKED, count], columns[FIRST_MARKED, count] = marked, first_marked
                    columns[ELEMENT, count], columns[PREFORMATTED, count] = element, pres > 0
                    count += 1
                begin, gap, linked = size, 0, 0
                marked, first_marked = marks[height], -1
            elif starts and role == BREAK:
                after_break, gap = True, max(gap, BLANK)
            elif starts and role < DISSOLVE:
                after_break = False
                in_link = in_link or role == LINK
            elif role == LINK:
                in_link = False
            if layout and tag == PRE:
                pres += 1 if starts else -1
    return text[:size], columns[:, :count].copy(), parents[:elements], truncated


@jit
def _closed_by(names: UInt64s, tags: Int64s, height: int, hashed: np.uint64, tag: int) -> int:
    """How many tags remain open after the end tag of this name."""
    for k in range(height - 1, -1, -1):
        if names[k] == hashed:
            return k
        if PRIORITIES[tags[k]] > PRIORITIES[tag]:
            break
    return height


@jit
def _write(text: Bytes, size: int, code: int) -> int:
    """Write a character; returns the new end of the text."""
    if code < 0x80:
        text[size] = code
        return size + 1
    width = 2 if code < 0x800 else 3 if code < 0x10000 else 4
    text[size] = (0xF00 >> width) & 0xFF | code >> 6 * (width - 1)
    for k in range(1, width):
        text[size + k] = 0x80 | code >> 6 * (width - 1 - k) & 0x3F
    return size + width


@jit
def _end_line(text: Bytes, begin: int, size: int, table: UInt8s) -> int:
    """End a line of the paragraph from ``begin`` on, unless it is a blank first line; returns the end of the text."""
    while size > begin and text[size - 1] != LINE_FEED:
        code, width = code_before(text, size)
        if not table[code] & SPACE:
            break
        size -= width
    if size > begin:
        text[size] = LINE_FEED
        size += 1
    return size
