r"""Words of texts, of one of these kinds; a table of character classes directs the loop that finds all but the first.

    letters     runs of letters and digits of any script and "_", what Python's ``\w`` matches, with what extends them
                (`characters.EXTEND`: vowel signs, accents, joiners); where a script puts no spaces between words, each
                of its characters
    unicode     as letters, but a joiner may stand between two of a run (don't, 3.5, צה"ל), signs belong to the
                character before them, and runs of one other mark are words too
    whitespace  runs of characters other than white space
    characters  each character except white space

The first two are the words of UAX #29, without and with its rules WB6, WB7 and WB7a to WB12, which join letters and
digits over punctuation: signatures, decontamination and quality ignore punctuation, rules that count words do not.

Running sums over the words of a batch give count, characters and hash of any n-gram in constant time:

    prefix[k] = sum_(i < k) b_i A**i     over the bytes b_i of all words before word k, without those between words
    hash of words j to k = (prefix[k] - prefix[j]) A**-(bytes before j), modulo 2**64, A = CHARACTER_BASE

So the hash of an n-gram is that of its words joined without spaces.
"""

from __future__ import annotations

import unicodedata
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from .arrays import join_texts
from .characters import (
    DIGIT,
    DIGIT_JOINERS,
    EXTEND,
    GERESH,
    HALF,
    HEBREW_LETTERS,
    IS_LETTER,
    JOINERS,
    LETTER,
    LETTER_JOINERS,
    MARK,
    PARTING,
    QUARTER,
    SCRIPT_BIT,
    SIGNS,
    SPACE,
    character_kinds,
    character_table,
    code_at,
)
from .compiled import jit
from .hashing import CHARACTER_BASE, LONGEST_SUM, fmix64_scalar, long_word_hash

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from mtnlg_data.array_types import Bools, Int64s, UInt8s, UInt32s, UInt64s

    from .arrays import Texts

Split = Literal["unicode", "whitespace", "characters"]
#: Classes of characters: between words; in a run; a word by itself; continues any word; joins letters, digits, both or
#: Hebrew letters, and is a mark otherwise; a mark, which forms a word with adjacent equal ones.
BETWEEN, IN_WORD, ALONE, SIGN, JOINS_LETTERS, JOINS_DIGITS, JOINS, JOINS_HEBREW, SYMBOL = range(9)
HEBREW, NUMERIC = 64, 128  # beside ``IN_WORD``: a Hebrew letter or a digit, where joiners ask
APOSTROPHE = ord("'")
INVERSES = np.uint64(pow(int(CHARACTER_BASE), -1, 1 << 64)) ** np.arange(65, dtype=np.uint64)  # A**-n of n bytes
Spans = tuple["Int64s", "Int64s", "Int64s"]


class Words(NamedTuple):
    """Words of several texts; text t has words ``bounds[t]`` to ``bounds[t + 1]``.

    ``prefix`` and ``characters`` are sums over all words before a word, and so have one entry more. ``inverse[k]`` is
    the factor for the hash of an n-gram that begins with word k.
    """

    bounds: Int64s
    prefix: UInt64s
    inverse: UInt64s
    characters: Int64s
    has_letter: Bools
    is_mark: Bools
    script: UInt8s  # numbers of scripts, as `characters.SCRIPT_BIT` has them


class HashedWords(NamedTuple):
    """The words of a batch of strings, in order; text t has words ``bounds[t]`` to ``bounds[t + 1]``."""

    hashes: UInt64s
    starts: Int64s  # first character of each word in all texts, joined by ``join_texts``
    ends: Int64s  # one past its last character
    bounds: Int64s
    text_starts: Int64s  # first character of each text


@cache
def word_classes(split: Split) -> UInt8s:
    """The class of every code point."""
    kinds, table = character_kinds(), character_table()
    classes = np.full(len(kinds), IN_WORD if split == "whitespace" else ALONE, np.uint8)
    if split == "unicode":
        classes = np.array([SYMBOL, SIGN, IN_WORD, ALONE, ALONE], np.uint8)[kinds]
        signs = [code for code in np.flatnonzero(kinds > LETTER).tolist() if unicodedata.category(chr(code)) in SIGNS]
        classes[signs] = SIGN
        classes[table & DIGIT > 0] |= NUMERIC
        for hebrew in HEBREW_LETTERS:
            classes[hebrew][kinds[hebrew] == LETTER] |= HEBREW
        for kind, joiners in enumerate((LETTER_JOINERS, DIGIT_JOINERS, JOINERS, '"'), JOINS_LETTERS):
            classes[[*map(ord, joiners)]] = kind
        classes[GERESH] = IN_WORD
        classes[[*map(ord, PARTING)]] = BETWEEN
    classes[table & SPACE > 0] = BETWEEN
    return classes


@jit
def word_spans(data: NDArray[np.unsignedinteger[Any]], bounds: Int64s, classes: UInt8s) -> Spans:
    """Begin and end of every word, and the bounds of each text's words; texts are UTF-8 bytes or code points."""
    most = bounds[-1] - bounds[0] + 2
    starts, ends, word_bounds = np.empty(most, np.int64), np.empty(most, np.int64), np.zeros(len(bounds), np.int64)
    count = np.uint64(0)
    for text in range(len(bounds) - 1):
        place, end = bounds[text], bounds[text + 1]
        last = run = BETWEEN  # what a character must be to continue the word; the class of the last of a run
        while place < end:
            code, size = code_at(data, place)
            following, class_ = place + size, classes[code]
            kind = int(class_ & ~(HEBREW | NUMERIC))
            if kind > ALONE:  # as few are
                joins = False
                if SIGN < kind < SYMBOL and last == IN_WORD:
                    after = classes[code_at(data, following)[0]] if following < end else BETWEEN
                    joins = (run ^ after) & ~HEBREW == 0 and kind != (JOINS_LETTERS if run & NUMERIC else JOINS_DIGITS)
                    joins = joins and (kind != JOINS_HEBREW or run & after & HEBREW != 0)
                    if code == APOSTROPHE and run & HEBREW and not joins:
                        last, kind = ALONE, SIGN  # the word ends with it
                if kind == SIGN:
                    if last != BETWEEN:
                        ends[count] = following
                    place = following
                    continue
                kind = IN_WORD if joins else SYMBOL + int(code)
            else:
                run = class_
            # No branch per word, which no processor predicts: a value stored where no word begins is overwritten by the
            # next.
            is_word = kind != BETWEEN
            starts[count] = place
            count += np.uint64(is_word & ((kind != last) | (kind == ALONE)))
            ends[count + np.uint64(not is_word)] = following
            last, place = kind, following
        word_bounds[text + 1] = count
    return starts[:count].copy(), ends[1 : count + np.uint64(1)].copy(), word_bounds


def find_words(texts: Texts, split: Split) -> Words:
    """The words of these texts."""
    starts, ends, bounds = word_spans(*texts, word_classes(split))
    return Words(bounds, *_sum_words(texts.data, starts, ends, character_table()))


@jit
def _sum_words(data: UInt8s, starts: Int64s, ends: Int64s, table: UInt8s) -> tuple[NDArray[Any], ...]:
    count = len(starts)
    prefix, inverse = np.zeros(count + 1, np.uint64), np.empty(count, np.uint64)
    characters = np.zeros(count + 1, np.int64)
    has_letter, is_mark, script = np.empty(count, np.bool_), np.empty(count, np.bool_), np.empty(count, np.uint8)
    total, power, inverse_power = np.uint64(0), np.uint64(1), np.uint64(1)
    for word in range(count):
        inverse[word] = inverse_power
        place, length, some, every = starts[word], 0, np.uint8(0), np.uint8(255)
        while place < ends[word]:
            code, size = code_at(data, place)
            some, every = some | table[code], every & table[code]
            length += 1
            for byte in range(place, place + size):
                total += np.uint64(data[byte]) * power
                power *= CHARACTER_BASE
            place += size
        most, rest = divmod(place - starts[word], len(INVERSES) - 1)
        for _ in range(most):
            inverse_power *= INVERSES[-1]
        inverse_power *= INVERSES[rest]
        prefix[word + 1] = total
        characters[word + 1] = characters[word] + length
        has_letter[word], is_mark[word] = some & IS_LETTER != 0, every & MARK != 0
        script[word] = some >> SCRIPT_BIT
    return prefix, inverse, characters, has_letter, is_mark, script


@jit
def characters_per_word(words: Words, first: int, last: int) -> float:
    """Characters, with their signs, that make a word on average; 1 unless most words are of scripts without spaces.

    A Han character or kana is half a word; in Thai and related scripts, a letter and each of its signs is a quarter.
    """
    quarters = unspaced = spaced = 0
    for word in range(first, last):
        if words.script[word] in (QUARTER, HALF):
            unspaced += 1
            quarters += words.script[word] * (words.characters[word + 1] - words.characters[word])
        else:
            spaced += not words.is_mark[word]
    return max(1.0, 4 * unspaced / quarters) if unspaced > spaced else 1.0  # split at white space, a word is long


def hashed_words(texts: Sequence[str]) -> HashedWords:
    """Find and hash the words of these texts as they are, split by letters; fold the texts first to ignore case."""
    codes, text_bounds = join_texts([*texts, ""])  # each ends with a separator
    hashes, (starts, ends) = np.empty(len(codes), np.uint64), np.empty((2, len(codes)), np.int64)
    count = hash_words(codes, 0, len(codes), character_kinds(), hashes, starts, ends)
    bounds = np.searchsorted(starts[:count], text_bounds[:-1])
    return HashedWords(hashes[:count], starts[:count], ends[:count], bounds, text_bounds)


@jit
def hash_words(  # noqa: PLR0917  (numba takes no keywords)
    codes: UInt32s, begin: int, end: int, kinds: UInt8s, hashes: UInt64s, starts: Int64s, ends: Int64s
) -> int:
    """Fill in the hash and place of each word of ``codes[begin:end]``, split by letters; return how many there are.

    The last character must be between words. One pass finds and hashes: two take half as long again.
    """
    count = length = 0
    total, power = np.uint64(0), np.uint64(1)
    for place in range(begin, end):
        code = codes[place]
        kind = kinds[code]
        if kind == LETTER or (kind == EXTEND and length):
            total += np.uint64(code) * power
            power *= CHARACTER_BASE
            length += 1
            continue
        if length:
            is_long = length > LONGEST_SUM
            hashes[count] = long_word_hash(codes[place - length : place]) if is_long else fmix64_scalar(total)
            starts[count], ends[count] = place - length, place
            count += 1
            total, power, length = np.uint64(0), np.uint64(1), 0
        if kind > LETTER:
            hashes[count] = fmix64_scalar(np.uint64(code))
            starts[count], ends[count] = place, place + 1
            count += 1
    return count
