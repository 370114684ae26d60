"""How many words a text has: what ``texts.word_spans`` would find, without their places."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mtnlg_data.words import jit

from .texts import Texts, is_ascii, word_spans

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLANK = 32
PIECE = 512  # bytes, or up to the next blank: most pieces of most texts are ASCII


@jit
def count_words(texts: Texts, table: NDArray[np.uint8], marks: bool) -> NDArray[np.int64]:
    """How many words there are before each text and after the last: the third that ``word_spans`` returns."""
    data, bounds = texts
    counts = np.zeros(len(bounds), np.int64)
    longest = 0
    for text in range(len(bounds) - 1):
        longest = max(longest, bounds[text + 1] - bounds[text])
    room, begins = np.empty(longest + 3, np.uint8), np.empty(longest, np.uint8)
    for text in range(len(bounds) - 1):
        counts[text + 1] = counts[text]
        end = bounds[text]
        while end < bounds[text + 1]:
            begin, end = end, min(end + PIECE, bounds[text + 1])
            while end < bounds[text + 1] and data[end] != BLANK:  # which no word has in it
                end += 1
            if is_ascii(data, begin, end):
                counts[text + 1] += _count_ascii_words(data[begin:end], room, begins, marks)
            else:
                counts[text + 1] += word_spans(Texts(data, np.array([begin, end])), table, marks)[2][1]
    return counts


@jit
def _count_ascii_words(data: NDArray[np.uint8], room: NDArray[np.uint8], begins: NDArray[np.uint8], marks: bool) -> int:
    """Words of an ASCII text, by a loop without branches, which the processor runs on many bytes at a time."""
    size = len(data)
    room[:2], room[2 : size + 2], room[size + 2] = BLANK, data, BLANK
    for place in range(size):
        byte, before, following = room[place + 2], room[place + 1], room[place + 3]
        if marks:
            word = _is_word(byte) | (_is_joiner(byte) & _is_word(before) & _is_word(following))
            word_before = _is_word(before) | (_is_joiner(before) & _is_word(room[place]) & _is_word(byte))
            mark = (not word) & (not _is_space(byte)) & (byte != before)
            begins[place] = (word & (not word_before)) | mark
        else:
            begins[place] = _is_space(before) & (not _is_space(byte))
    words = 0
    for place in range(size):
        words += begins[place]
    return words


@jit
def _is_word(byte: np.uint8) -> np.bool_:
    """Whether an ASCII character has ``WORD``."""
    letter = np.uint8((byte | np.uint8(32)) - np.uint8(97)) < np.uint8(26)
    found: np.bool_ = letter | (np.uint8(byte - np.uint8(48)) < np.uint8(10)) | (byte == np.uint8(95))
    return found


@jit
def _is_joiner(byte: np.uint8) -> np.bool_:
    """Whether an ASCII character has ``JOINER``: one of ' , . : ;"""
    low = (byte == np.uint8(39)) | (byte == np.uint8(44)) | (byte == np.uint8(46))
    found: np.bool_ = low | (byte == np.uint8(58)) | (byte == np.uint8(59))
    return found


@jit
def _is_space(byte: np.uint8) -> np.bool_:
    """Whether an ASCII character has ``SPACE``."""
    control = (np.uint8(byte - np.uint8(9)) < np.uint8(5)) | (np.uint8(byte - np.uint8(28)) < np.uint8(4))
    found: np.bool_ = control | (byte == np.uint8(32))
    return found
