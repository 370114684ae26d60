"""C4's rules (Raffel et al. 2020, 2.2): remove lines that are not prose, drop pages of placeholders and code.

Lines are those of ``str.splitlines``; words are separated by white space. A line is removed for the first of these:

    c4_longest_word          a word of more characters than the limit
    c4_terminal_punctuation  no full stop, question mark, exclamation mark or quotation mark at its end, or an ellipsis
    c4_fewest_words          fewer words than the limit
    c4_javascript            the word JavaScript
    c4_policy                a phrase about cookies, terms of use or privacy

A text is dropped if a line that has reached these rules has "lorem ipsum" or a curly bracket, or if the lines that are
kept have too few sentences. ``c4_citations`` removes Wikipedia's marks, such as [1] and [edit], from each line before
its end and its phrases are checked. Phrases match in any case. A sentence ends with a character of Unicode's property
Sentence_Terminal before white space or closing marks; not with an ellipsis, nor with the full stop after a single
letter, as in J. or U.S.

In other scripts, a line may end with any such character; a full-width one needs no white space after it; a letter of
Thai or a related script ends a sentence before white space and at the end of a line. A character of a script without
spaces counts as half or a quarter of a word, and is never part of a long word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mtnlg_data.quantities import characters, words
from mtnlg_data.settings import setting
from mtnlg_data.text.arrays import Texts, column_of, texts_of
from mtnlg_data.text.characters import (
    DIGIT,
    HALF,
    IS_LETTER,
    MARK,
    QUARTER,
    SCRIPT_BIT,
    SPACE,
    TERMINAL,
    character_table,
    code_at,
    code_before,
    ends_sentence,
    line_end,
    strip,
)
from mtnlg_data.text.compiled import jit
from mtnlg_data.transfer.urls import FilePath

from .gopher import FULL_STOP, ends_with_ellipsis
from .lists import read_lines
from .repetition import LINE_FEED
from .rules import Effect, Rule, edit

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from mtnlg_data.array_types import Bools, Int64s, UInt8s
    from mtnlg_data.text.batch import TextBatch

    from .settings import FilterSettings

#: Rule numbers, in the order in which a line is checked.
BAD_WORDS, LONGEST_WORD, CITATIONS, TERMINAL_PUNCTUATION, FEWEST_WORDS, LOREM_IPSUM, JAVASCRIPT, CURLY_BRACKET = range(
    8
)
POLICY, FEWEST_SENTENCES, KEPT = 8, 9, -1
POLICIES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
PHRASES = {"lorem ipsum": LOREM_IPSUM, "javascript": JAVASCRIPT, "{": CURLY_BRACKET, **dict.fromkeys(POLICIES, POLICY)}
#: A text without a match has no phrase; Arrow tests a whole batch at once. "[" may begin a citation, whose removal may
#: join the two parts of a phrase.
MAY_HOLD = rf"(?i)\{{|\[|{'|'.join(phrase for phrase in PHRASES if phrase != '{')}"
CITATION_MARKS = ("[edit]", "[citation needed]")
END_MARKS = (33, 34, 39, 46, 63)  # ! " ' . ?
FULL_WIDTH = (0x3002, 0xFF61)  # the first and the last mark that ends a sentence without a space
BRACKET, CLOSING_BRACKET, BLANK = map(ord, "[] ")
BAD_WORD_FILES = setting((), "For c4_bad_words: files of words; a document with any of them is dropped.")


class Phrases(NamedTuple):
    """Concatenated phrases, and where each begins."""

    letters: UInt8s
    bounds: Int64s

    @classmethod
    def of(cls, phrases: Iterable[str]) -> Phrases:
        """Concatenate these phrases, which must be ASCII."""
        return cls(np.frombuffer("".join(phrases).encode(), np.uint8), np.cumsum([0, *map(len, phrases)]))


class LineRules(NamedTuple):
    """Which rules apply, by number, and what they look for."""

    asked: Bools
    longest_word: int
    fewest_words: int
    phrases: Phrases  # in lower case, found in any
    phrase_rules: Int64s
    citations: Phrases


RULES = [
    Rule("c4_bad_words", settings={"bad_word_files": (tuple[FilePath, ...], BAD_WORD_FILES)}),
    Rule(
        "c4_longest_word",
        Effect.CUT,
        limit=characters(1000, "Maximum word length per line (C4's code: 1000).", ge=1),
    ),
    Rule("c4_citations", Effect.REPLACE),
    Rule("c4_terminal_punctuation", Effect.CUT),
    Rule("c4_fewest_words", Effect.CUT, limit=words(5, "Minimum words per line (C4: 5).")),
    Rule("c4_lorem_ipsum"),
    Rule("c4_javascript", Effect.CUT),
    Rule("c4_curly_bracket"),
    Rule("c4_policy", Effect.CUT),
    Rule(
        "c4_fewest_sentences",
        at_least=setting(
            3, "Minimum sentences per document, in the lines that are kept (C4: 3).", unit="sentences", ge=0
        ),
    ),
]


@edit("c4", source="C4", rules=RULES)
class C4:
    """The rules that are asked for."""

    def __init__(self, settings: FilterSettings, asked: Collection[str]) -> None:
        files = settings.bad_word_files if "c4_bad_words" in asked else ()
        self._bad_words = [word for file in files for some in read_lines(file) for word in some]
        self._rules = LineRules(
            np.array([rule.name in asked for rule in RULES]),
            settings.c4_longest_word,
            settings.c4_fewest_words,
            Phrases.of(PHRASES),
            np.array([*PHRASES.values()]),
            Phrases.of(CITATION_MARKS),
        )

    def __call__(self, batch: TextBatch) -> tuple[pa.LargeStringArray, Int64s]:
        """The kept lines; per rule and document, whether it breaks the rule, or the number of edits or sentences."""
        column, has_bad = batch.column, np.zeros(len(batch), np.bool_)
        if self._bad_words:
            has_bad = has_word(column, self._bad_words)
            column = pc.if_else(pa.array(has_bad), "", column)
        may_hold = np.asarray(pc.match_substring_regex(column, MAY_HOLD))
        data, bounds, numbers = _edit(texts_of(column), may_hold, self._rules, character_table())
        numbers[BAD_WORDS] = has_bad
        return column_of(Texts(data, bounds)), numbers


def has_word(column: pa.LargeStringArray, words: Sequence[str]) -> Bools:
    """Which texts have one of these words or phrases, in any case, with no letter, digit or underscore next to it."""
    escaped = "|".join("".join(f"\\x{{{ord(character):x}}}" for character in word) for word in sorted(set(words)))
    pattern = rf"(?i)(?:^|[^\pL\pN_])(?:{escaped})(?:[^\pL\pN_]|$)"
    return np.asarray(pc.match_substring_regex(column, pattern))


@jit
def _edit(texts: Texts, may_hold: Bools, rules: LineRules, table: UInt8s) -> tuple[UInt8s, Int64s, Int64s]:
    data, bounds = texts
    count = len(bounds) - 1
    out, out_bounds = np.empty(bounds[-1] - bounds[0] + count, np.uint8), np.zeros(count + 1, np.int64)
    numbers = np.zeros((len(rules.asked), count), np.int64)
    for text in range(count):
        written = out_begin = out_bounds[text]
        begin, end = bounds[text], bounds[text + 1]
        while begin < end:
            stop, following = line_end(data, begin, end, table)
            first, last = strip(data, begin, stop, table)
            begin = following
            line = written
            words = rules.fewest_words  # or more, which nobody asks
            if last - first > rules.longest_word or not _has_words(data, first, last, rules.fewest_words):
                words, longest = _measure_words(data, first, last, table)
                if rules.asked[LONGEST_WORD] and longest > rules.longest_word:
                    numbers[LONGEST_WORD, text] += 1
                    continue
            written, citations = _copy_line(data[first:last], out[written:], rules, may_hold[text], table)
            numbers[CITATIONS, text] += citations
            written += line
            rule = _broken_rule(out[line:written], words, rules, may_hold[text], table)
            if rule == KEPT:
                numbers[FEWEST_SENTENCES, text] += count_sentences(out[line:written], table)
                out[written] = LINE_FEED
                written += 1
                continue
            numbers[rule, text] += 1
            written = line
            if rule in (LOREM_IPSUM, CURLY_BRACKET):
                break
        first, last = strip(out, out_begin, written, table)
        for place in range(first, last):
            out[out_begin + place - first] = out[place]
        out_bounds[text + 1] = out_begin + last - first
    return out[: out_bounds[-1]].copy(), out_bounds, numbers


@jit
def _measure_words(data: UInt8s, begin: int, end: int, table: UInt8s) -> tuple[int, int]:
    """Number of words between white space, and the length of the longest."""
    words = longest = length = quarters = 0
    while begin < end:
        code, size = code_at(data, begin)
        script = table[code] >> SCRIPT_BIT
        is_unspaced = script in (QUARTER, HALF)
        quarters += script * is_unspaced
        length = 0 if is_unspaced or table[code] & SPACE else length + 1
        words += length == 1
        longest = max(longest, length)
        begin += size
    return words + quarters // 4, longest


@jit
def _has_words(data: UInt8s, begin: int, end: int, words: int) -> bool:
    """Whether there are surely at least ``words``: so many pieces between blanks have printable ASCII characters."""
    after_blank = True
    for place in range(begin, end):
        if words <= 0:
            return True
        byte = data[place]
        if byte == BLANK:
            after_blank = True
        elif after_blank and BLANK < byte < 0x7F:
            words -= 1
            after_blank = False
    return words <= 0


@jit
def _is_at(line: UInt8s, place: int, phrases: Phrases, phrase: int, fold: bool) -> bool:
    """Whether this phrase begins at this byte; with ``fold`` in any case, if the phrase is in lower case."""
    begin, end = phrases.bounds[phrase], phrases.bounds[phrase + 1]
    if place + end - begin > len(line):
        return False
    for letter in range(begin, end):
        byte = line[place + letter - begin]
        if fold and 65 <= byte <= 90:
            byte += 32
        if byte != phrases.letters[letter]:
            return False
    return True


@jit
def _copy_line(line: UInt8s, out: UInt8s, rules: LineRules, may_hold: bool, table: UInt8s) -> tuple[int, int]:
    """Copy a line, without its citation marks if ``rules`` say so; returns bytes written and marks removed."""
    written = place = marks = 0
    if not (rules.asked[CITATIONS] and may_hold):
        out[: len(line)] = line
        return len(line), 0
    while place < len(line):
        size = 0
        if line[place] == BRACKET:
            size = _citation_bytes(line, place, rules.citations, table)
        if size:
            marks += 1
            place += size
        else:
            out[written] = line[place]
            written += 1
            place += 1
    return written, marks


@jit
def _citation_bytes(line: UInt8s, place: int, citations: Phrases, table: UInt8s) -> int:
    """Length of the citation mark that begins at this bracket; 0 where there is none."""
    close = place + 1
    while close < len(line):
        code, size = code_at(line, close)
        if code == CLOSING_BRACKET:
            return close + 1 - place
        if not table[code] & DIGIT:
            break
        close += size
    for mark in range(len(citations.bounds) - 1):
        if _is_at(line, place, citations, mark, False):
            return int(citations.bounds[mark + 1] - citations.bounds[mark])
    return 0


@jit
def _broken_rule(line: UInt8s, words: int, rules: LineRules, may_hold: bool, table: UInt8s) -> int:
    """The first rule that a line breaks after ``LONGEST_WORD``; ``KEPT`` for none."""
    if rules.asked[TERMINAL_PUNCTUATION] and not _is_ended(line, table):
        return TERMINAL_PUNCTUATION
    if rules.asked[FEWEST_WORDS] and words < rules.fewest_words:
        return FEWEST_WORDS
    broken = len(rules.asked)
    for place in range(len(line) if may_hold else 0):
        for phrase, rule in enumerate(rules.phrase_rules):
            if rule < broken and rules.asked[rule] and _is_at(line, place, rules.phrases, phrase, True):
                broken = rule
    return int(broken) if broken < len(rules.asked) else KEPT


@jit
def _is_ended(line: UInt8s, table: UInt8s) -> bool:
    if not len(line) or ends_with_ellipsis(line, 0, len(line)):
        return False
    if line[-1] < 0x80:
        return bool(line[-1] in END_MARKS)
    return ends_sentence(table[code_before(line, len(line))[0]])


@jit
def count_sentences(data: UInt8s, table: UInt8s) -> int:
    """Number of sentences in these bytes, the last of which need not end; 0 if there is only white space."""
    sentences = 0
    ended = True  # the next character that is neither white space nor a mark begins a sentence
    may_end = False
    after = np.uint8(0)  # properties of the character before
    letters = 0  # of the word so far, since its last full stop
    place = 0
    while place < len(data):
        code, size = code_at(data, place)
        kind = table[code]
        if kind & SPACE:
            ended |= may_end or after >> SCRIPT_BIT == QUARTER
            may_end, letters = False, 0
        elif not sentences:
            sentences, ended = 1, False
        if kind & TERMINAL:
            is_ellipsis = code == FULL_STOP and (
                (place > 0 and data[place - 1] == FULL_STOP) or (place + 1 < len(data) and data[place + 1] == FULL_STOP)
            )
            may_end = may_end or not (is_ellipsis or (code == FULL_STOP and letters == 1))
            letters = 0
            ended |= FULL_WIDTH[0] <= code <= FULL_WIDTH[1]
        elif not kind & (SPACE | MARK):
            sentences += ended
            ended = may_end = False
            letters = letters + 1 if kind & IS_LETTER else 2
            following = place + size
            while following < len(data) and data[following] < 0x80 and not table[data[following]] & (SPACE | MARK):
                following += 1  # an ASCII character that is TERMINAL is a MARK too
            if following > place + size:
                letters, size = 2, following - place  # two or more
        place += size
        after = kind
    return sentences
