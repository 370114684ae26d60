"""Split an HTML page into paragraphs as jusText 3 does, in one pass over its bytes.

The package parses a page into a tree with libxml2, copies it, removes scripts, forms and the like from the copy, and
turns the rest back into events. Here one loop finds the tags that libxml2 2.14 finds, those that it implies, and where
it ends them, and follows the package's rules as it goes; no tree is built and no text becomes a Python string:

    a paragraph begins and ends at every block tag and at the second of two <br>
    killed tags are removed with their content, dissolved tags without it; the text on both sides joins
    whitespace between two tags is not text

Where the package fails, as on a control character beside a comment, the paragraphs are those that it would have found.
A fragment is read as the document that libxml2 makes of it.

The time is proportional to the page, whatever its content; that for a tree is not: libxml2 takes seconds to give one
tag 50,000 attributes.
"""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mtnlg_data.text.characters import (
    SPACE,
    character_table,
    code_at,
    code_before,
    count_characters,
    space_begin,
)
from mtnlg_data.text.compiled import jit

from .html_tags import (
    BLOCK,
    BODY,
    BREAK,
    CLOSES,
    DISSOLVE,
    HASH_FACTOR,
    HEAD,
    HTML,
    IMPLIES_HEAD,
    IMPLIES_NOTHING,
    IN_SELECT,
    IS_EMPTY,
    KILL,
    LINK,
    MARKS,
    MARKUP,
    MATH,
    MINOR_HEADING,
    MISSING,
    MODES,
    PLAIN,
    PRE,
    PRIORITIES,
    ROLES,
    SCRIPT,
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

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

MAX_DEPTH = 256  # nested tags; libxml2's own limit
MAX_NODES, MAX_ATTRIBUTES = 200_000, 1000  # of a page that is made a tree; of one tag
#: Columns of `Page.columns`: where the paragraph ends in the text; its characters, those inside links, and the last one;
#: marks of the tags that are open where it begins, and at its first character; the block element of that character;
#: whether it is a <pre>, as it is written.
END, CHARACTERS, LINKED, LAST, MARKED, FIRST_MARKED, ELEMENT, PREFORMATTED = range(8)
COLUMNS = PREFORMATTED + 1
#: Kinds of bytes: of text; white space, and such that ends a line; "<"; "&"; of a longer character.
LETTER, BLANK, LINE, LESS, AMPERSAND, WIDE = range(6)
KINDS = np.array([LETTER] * 128 + [WIDE] * 128, np.uint8)
KINDS[[*b"\t\v\f \x1c\x1d\x1e\x1f"]] = BLANK
KINDS[[*b"\n\r"]] = LINE
KINDS[[*b"<&"]] = LESS, AMPERSAND
BLANKS = b"\t\n\f\r "  # of HTML
IS_BLANK, ENDS_NAME, ENDS_ATTRIBUTE = np.zeros((3, 256), np.bool_)
IS_BLANK[[*BLANKS]] = ENDS_NAME[[*BLANKS, *b"/>"]] = ENDS_ATTRIBUTE[[*BLANKS, *b"/>="]] = True
LOWER = np.frombuffer(bytes(range(256)).lower(), np.uint8)
IS_LETTER, IN_WORD = np.zeros((2, 256), np.bool_)
IS_LETTER[[*string.ascii_letters.encode()]] = IN_WORD[[*f"{string.ascii_letters}{string.digits}_".encode()]] = True
NO_DIGIT = 99
DIGITS = np.full(256, NO_DIGIT, np.uint8)
DIGITS[[*string.hexdigits.encode()]] = [int(digit, 16) for digit in string.hexdigits]
MAX_CODE, REPLACEMENT = 0x110000, 0xFFFD
C1_CODES = np.array([ord(bytes([byte]).decode("cp1252", "ignore") or chr(byte)) for byte in range(128, 160)])
LONGEST_ENTITY, LONGEST_UNENDED = 32, 6
REL, STYLE_SHEET, ENCODING, TEX, CLASS, KATEX, ANNOTATION, SELECT, HYPHENS = (
    np.frombuffer(name.encode(), np.uint8)
    for name in "rel stylesheet encoding application/x-tex class katex-html annotation select --".split()
)
COMMENT_BEGIN, COMMENT_END, OTHER_COMMENT_END = (np.frombuffer(each, np.uint8) for each in (b"<!--", b"-->", b"--!>"))
TAG_HASHES = np.array([name_hash(name.encode()) for name in TAGS], np.uint64)
HYPHEN, SLASH, SEMICOLON, EQUALS, GREATER, EXCLAMATION, LINE_FEED, RETURN, SPACE_BYTE, HASH_SIGN = b"-/;=>!\n\r #"
QUOTE, APOSTROPHE, LESS_SIGN, LOWER_H, LOWER_X = b"\"'<hx"
NOTHING_KILLED = MAX_DEPTH + 1


class Page(NamedTuple):
    """The non-empty paragraphs of a page, in order."""

    text: Bytes  # of all of them, in UTF-8
    columns: NDArray[np.int64]  # [COLUMNS, paragraphs]
    parents: NDArray[np.int32]  # of block elements: the number of the one around it, -1 of the first
    truncated: bool  # tags nest too deep: nothing after that point was read
    nodes: int  # tags and comments
    attributes: int  # most of one tag

    def texts(self) -> list[str]:
        """The text of each paragraph."""
        ends = self.columns[END].tolist()
        return [self.text[begin:end].tobytes().decode() for begin, end in zip([0, *ends], ends, strict=False)]


def read_page(html: str, *, layout: bool = False, roles: NDArray[np.uint32] = ROLES) -> Page:
    """The paragraphs of a page.

    ``layout`` keeps spaces and lines as a browser shows them, which jusText loses, and formulas once: whitespace
    between two inline tags is a space; a <pre> is one paragraph as it is written, in which block tags begin lines; the
    text of <math> is its TeX annotation, or its MathML where it has none; KaTeX's drawing of the formula is left out
    where the page has <math> as well. ``roles`` are of tags by their numbers.
    """
    data = np.frombuffer(html.removeprefix("\ufeff").replace("\0", "\ufffd").encode(errors="replace"), np.uint8)
    return Page(*_read(data, layout, roles, tag_numbers(), entities(), character_table()))


def markup_excess(html: str) -> str | None:
    """Why a page's markup is too large for a tree, whose cost has no bound; None where it is not."""
    page = read_page(html)
    if page.truncated:
        return "too_deep"
    if page.attributes > MAX_ATTRIBUTES:
        return "too_many_attributes"
    return "too_many_tags" if page.nodes > MAX_NODES else None


@jit
def _read(  # noqa: C901, PLR0912, PLR0915  (one loop)
    page: Bytes,
    layout: bool,  # noqa: FBT001
    roles: NDArray[np.uint32],
    numbers: Lookup,
    references: Lookup,
    table: NDArray[np.uint8],
) -> tuple[Any, ...]:
    end, place = len(page), 0
    text, size, begin = np.empty(end + end // 4 + 16, np.uint8), 0, 0
    most = 3  # paragraphs or elements: those implied, and one for each tag
    for k in range(end):
        most += page[k] == LESS_SIGN
    columns, count = np.empty((COLUMNS, most), np.int64), 0
    parents, elements = np.empty(most, np.int32), 0
    nodes = most_attributes = misplaced = 0
    # Open tags: hashes of their names, their numbers, the marks and the block element of what is inside the first k.
    names, tags = np.empty(MAX_DEPTH, np.uint64), np.empty(MAX_DEPTH, np.int64)
    marks, blocks = np.zeros(MAX_DEPTH + 1, np.int64), np.full(MAX_DEPTH + 1, -1, np.int32)
    height, killed = 0, NOTHING_KILLED  # what is inside more than ``killed`` tags is left out
    opening = np.empty(3, np.int64)
    mode, has_head, has_body = MARKUP, False, False
    # White space before the next character: of the paragraph, of the run of text since the last tag.
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
            stop = end if mode == TEXT_TO_END else _raw_end(page, place, names[height - 1], mode)
            if height > killed:
                place = stop
        bare = mode == MARKUP and (
            not height or tags[height - 1] == HEAD or (tags[height - 1] == HTML and not has_body)
        )
        implied = False
        while place < stop:
            byte = page[np.uint64(place)]
            kind, width, code, second = KINDS[byte], 1, 0, 0
            if kind == LESS:
                if mode == MARKUP and place + 1 < end:
                    following = page[np.uint64(place + 1)]
                    if IS_LETTER[following] or following == EXCLAMATION or following == 63:
                        break
                    if following == SLASH and place + 2 < end:
                        break
                kind = LETTER
            elif kind == AMPERSAND:
                kind = LETTER
                if mode == MARKUP or mode == TEXT_WITH_ENTITIES:
                    code, second, width = _reference(page, place, references)
                    if code:
                        if code >= 128:
                            kind = BLANK if table[code] & SPACE else WIDE
                        elif KINDS[code] <= LINE:
                            kind = KINDS[code]
                    else:
                        width = 1
            elif kind == WIDE:
                width = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
                if (byte == 0xC2 or 0xE1 <= byte <= 0xE3) and table[code_at(page, place)[0]] & SPACE:
                    kind = BLANK
            if bare:
                if not (IS_BLANK[code] if code and code < 128 else not code and IS_BLANK[byte]):
                    implied = True
                    break
                place += width
                continue
            if height > killed:
                place += width
                continue
            if kind == BLANK or kind == LINE:
                run_gap = max(run_gap, kind)
                if pres:
                    if byte == LINE_FEED or (byte == RETURN and (place + 1 == end or page[np.uint64(place + 1)] != LINE_FEED)):
                        size = _end_line(text, begin, size, table)
                    elif byte != RETURN:
                        if code:
                            size = _write(text, size, code)
                        else:
                            for k in range(place, place + width):
                                text[np.uint64(size)] = page[k]
                                size += 1
                place += width
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
            if code:
                size = _write(text, size, code)
                if second:
                    size = _write(text, size, second)
                    run_length += 1
                run_length += 1
                place += width
                continue
            text[np.uint64(size)] = byte
            size, place = size + 1, place + 1
            for _ in range(width - 1):
                text[np.uint64(size)] = page[np.uint64(place)]
                size, place = size + 1, place + 1
            run_length += 1
            if kind == LETTER:
                while place < stop and KINDS[page[np.uint64(place)]] == LETTER:
                    text[np.uint64(size)] = page[np.uint64(place)]
                    size, place, run_length = size + 1, place + 1, run_length + 1
        # What the tag here, or the first character of a text without <body>, ends and begins.
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
            following = page[np.uint64(place + 1)]
            is_end = following == SLASH
            name = place + 2 if is_end else place + 1
            if not IS_LETTER[page[np.uint64(name)]]:
                nodes += 1
                if following == EXCLAMATION and matches(page, place + 2, HYPHENS):
                    place = _comment_end(page, place + 4)
                else:
                    place = _after(page, name, GREATER)
                continue
            hashed, name_end = _name(page, name)
            number = max(find(numbers, hashed), 0)
            place, attributes = _next_attribute(page, name_end), 0
            while not _ends_tag(page, place):
                place = _next_attribute(page, _attribute(page, place)[0])
                attributes += 1
            is_cut = place >= end
            is_void = not is_cut and page[np.uint64(place)] == SLASH
            place += 2 if is_void else 1
            if is_end:
                is_void = False
                if misplaced and (number == HTML or number == HEAD or number == BODY):
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
                if tag != HEAD and tag != BODY:
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
                    most_attributes = max(most_attributes, attributes)
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
                is_own = step == openings - 1 and not implied and name > 0
                names[height], tags[height] = TAG_HASHES[tag], tag
                own_marks = MARKS[tag]
                if is_own:
                    names[height] = hashed
                    if not tag:
                        own_marks = _marks(page, name, name_end)
                has_head, has_body = has_head or tag == HEAD, has_body or tag == BODY
                marks[height + 1], blocks[height + 1] = marks[height] | own_marks, blocks[height]
                nodes += 1
                step += 1
                if visible:
                    role = roles[tag]
                    if role == STYLESHEET:
                        value, value_end = _value(page, name_end, REL)
                        role = KILL if _contains(page, value, value_end, STYLE_SHEET) else PLAIN
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
                if pres and tag != PRE and (role == BLOCK or role == BREAK):
                    role = PLAIN
                    if starts:
                        size = _end_line(text, begin, size, table)
                if starts and tag == MATH:
                    formula, formula_gap = size, gap
                elif starts and formula >= 0 and name > 0:
                    value, value_end = _value(page, name_end, ENCODING)
                    if value_end - value == len(TEX) and matches(page, value, TEX):
                        if formula >= begin:
                            size, gap = formula, formula_gap
                    else:
                        value, value_end = _value(page, name_end, CLASS)
                        if matches(page, name, ANNOTATION) or _contains(page, value, value_end, KATEX):
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
    return text[:size], columns[:, :count].copy(), parents[:elements], truncated, nodes, most_attributes


@jit
def _name(page: Bytes, place: int) -> tuple[np.uint64, int]:
    """Hash of the name that begins here, in lower case, and where it ends."""
    hashed = np.uint64(0)
    while place < len(page) and not ENDS_NAME[page[np.uint64(place)]]:
        hashed = (hashed + np.uint64(LOWER[page[np.uint64(place)]])) * HASH_FACTOR
        place += 1
    return hashed, place


@jit
def _attribute(page: Bytes, place: int) -> tuple[int, int, int, int]:
    """Where the attribute that begins here and its name end, and the bounds of its value."""
    end = len(page)
    place += 1
    while place < end and not ENDS_ATTRIBUTE[page[np.uint64(place)]]:
        place += 1
    name_end = place
    while place < end and IS_BLANK[page[np.uint64(place)]]:
        place += 1
    if place == end or page[np.uint64(place)] != EQUALS:
        return place, name_end, place, place
    place += 1
    while place < end and IS_BLANK[page[np.uint64(place)]]:
        place += 1
    quote, begin = page[np.uint64(place)] if place < end else 0, place
    if quote == QUOTE or quote == APOSTROPHE:
        begin += 1
        place = begin
        while place < end and page[np.uint64(place)] != quote:
            place += 1
        return min(place + 1, end), name_end, begin, place
    while place < end and page[np.uint64(place)] != GREATER and not IS_BLANK[page[np.uint64(place)]]:
        place += 1
    return place, name_end, begin, place


@jit
def _next_attribute(page: Bytes, place: int) -> int:
    """Where the next attribute of a tag begins, or its end at ">" or "/>"."""
    end = len(page)
    while place < end and (
        IS_BLANK[page[np.uint64(place)]] or (page[np.uint64(place)] == SLASH and not (place + 1 < end and page[np.uint64(place + 1)] == GREATER))
    ):
        place += 1
    return place


@jit
def _ends_tag(page: Bytes, place: int) -> bool:
    return place == len(page) or page[np.uint64(place)] == GREATER or page[np.uint64(place)] == SLASH


@jit
def _value(page: Bytes, place: int, wanted: Bytes) -> tuple[int, int]:
    """Bounds of the value of the first attribute of this name; equal ones where there is none."""
    place = _next_attribute(page, place)
    while not _ends_tag(page, place):
        name = place
        place, name_end, value, value_end = _attribute(page, name)
        if name_end - name == len(wanted) and matches(page, name, wanted):
            return value, value_end
        place = _next_attribute(page, place)
    return 0, 0


@jit
def _after(page: Bytes, place: int, byte: int) -> int:
    """Where the first such byte from here on ends, or the page."""
    while place < len(page) and page[np.uint64(place)] != byte:
        place += 1
    return min(place + 1, len(page))


@jit
def matches(page: Bytes, place: int, word: Bytes) -> bool:
    """Whether this word begins here, in any case."""
    if place + len(word) > len(page):
        return False
    for k in range(len(word)):
        if LOWER[page[place + k]] != word[k]:
            return False
    return True


@jit
def _contains(page: Bytes, place: int, end: int, word: Bytes) -> bool:
    """Whether this word is in the page from here to there, in any case."""
    for begin in range(place, end - len(word) + 1):
        if matches(page, begin, word):
            return True
    return False


@jit
def _marks(page: Bytes, name: int, end: int) -> int:
    """Marks of a tag by what its name contains: the word h2, or select."""
    marks = IN_SELECT if _contains(page, name, end, SELECT) else 0
    for place in range(name, end - 1):
        if LOWER[page[np.uint64(place)]] == LOWER_H and DIGITS[page[np.uint64(place + 1)]] < 10:
            if not (place > name and IN_WORD[page[place - 1]]) and not (place + 2 < end and IN_WORD[page[np.uint64(place + 2)]]):
                marks |= MINOR_HEADING
    return marks


@jit
def _comment_end(page: Bytes, place: int) -> int:
    """Where the comment whose text begins here ends."""
    if matches(page, place, COMMENT_END[2:]):
        return place + 1
    if matches(page, place, COMMENT_END[1:]):
        return place + 2
    while place < len(page):
        if page[np.uint64(place)] == HYPHEN:
            if matches(page, place, COMMENT_END):
                return place + 3
            if matches(page, place, OTHER_COMMENT_END):
                return place + 4
        place += 1
    return place


@jit
def _raw_end(page: Bytes, place: int, hashed: np.uint64, mode: int) -> int:
    """Where the end tag begins of a tag whose content is text; a <script> within a comment in a script has its own."""
    in_comment = in_script = False
    while place < len(page):
        byte = page[np.uint64(place)]
        if byte == LESS_SIGN and place + 1 < len(page):
            is_end = page[np.uint64(place + 1)] == SLASH
            if mode == SCRIPT and not in_comment and matches(page, place, COMMENT_BEGIN):
                in_comment = True
                place += 1
            elif is_end or (in_comment and not in_script):
                other, name_end = _name(page, place + 2 if is_end else place + 1)
                if other == hashed and name_end < len(page):
                    if in_comment and not is_end:
                        in_script = True
                    elif in_script:
                        in_script = False
                    else:
                        return place
        elif byte == HYPHEN and in_comment and matches(page, place, COMMENT_END):
            in_comment = in_script = False
        place += 1
    return place


@jit
def _closed_by(names: NDArray[np.uint64], tags: NDArray[np.int64], height: int, hashed: np.uint64, tag: int) -> int:
    """How many tags remain open after the end tag of this name."""
    for k in range(height - 1, -1, -1):
        if names[k] == hashed:
            return k
        if PRIORITIES[tags[k]] > PRIORITIES[tag]:
            break
    return height


@jit
def _reference(page: Bytes, place: int, references: Lookup) -> tuple[int, int, int]:
    """Code points of the reference to characters that begins here, the second mostly 0, and its bytes; 0 for none."""
    end, begin = len(page), place
    place += 1
    if place < end and page[np.uint64(place)] == HASH_SIGN:
        base, code = 10, 0
        place += 1
        if place < end and LOWER[page[np.uint64(place)]] == LOWER_X:
            base = 16
            place += 1
        first = place
        while place < end and DIGITS[page[np.uint64(place)]] < base:
            code = min(code * base + DIGITS[page[np.uint64(place)]], MAX_CODE)
            place += 1
        if place == first:
            return 0, 0, 0
        if 0x80 <= code < 0xA0:
            code = C1_CODES[code - 0x80]
        elif not code or 0xD800 <= code < 0xE000 or code == MAX_CODE:
            code = REPLACEMENT
        return code, 0, place - begin + (place < end and page[np.uint64(place)] == SEMICOLON)
    hashed, value, length = np.uint64(0), MISSING, 0
    while place < end and place - begin <= LONGEST_ENTITY and IN_WORD[page[np.uint64(place)]]:
        hashed = (hashed + np.uint64(page[np.uint64(place)])) * HASH_FACTOR
        place += 1
        if place - begin <= LONGEST_UNENDED + 1:
            found = find(references, hashed)
            if found != MISSING:
                value, length = found, place - begin
    if place < end and page[np.uint64(place)] == SEMICOLON:
        found = find(references, (hashed + np.uint64(SEMICOLON)) * HASH_FACTOR)
        if found != MISSING:
            value, length = found, place + 1 - begin
    if value == MISSING:
        return 0, 0, 0
    return value & 0xFFFFFFFF, value >> 32, length


@jit
def _write(text: Bytes, size: int, code: int) -> int:
    """Write a character; where the text ends then."""
    if code < 0x80:
        text[np.uint64(size)] = code
        return size + 1
    width = 2 if code < 0x800 else 3 if code < 0x10000 else 4
    text[np.uint64(size)] = (0xF00 >> width) & 0xFF | code >> 6 * (width - 1)
    for k in range(1, width):
        text[size + k] = 0x80 | code >> 6 * (width - 1 - k) & 0x3F
    return size + width


@jit
def _end_line(text: Bytes, begin: int, size: int, table: NDArray[np.uint8]) -> int:
    """End a line of a paragraph that begins here, unless it is the first and blank; where the text ends then."""
    while size > begin and text[size - 1] != LINE_FEED:
        code, width = code_before(text, size)
        if not table[code] & SPACE:
            break
        size -= width
    if size > begin:
        text[np.uint64(size)] = LINE_FEED
        size += 1
    return size
