"""Hashes and places of what may recur in texts: documents, lines, and windows of tokens.

A passage of at least k tokens recurs if, and only if, each of its windows of k tokens does. So only equal windows are
searched, and they cover what a suffix array would find. Comparing all windows would take one hash per token; instead a
window is compared only if its *anchor* recurs (winnowing: Schleimer et al. 2003). The anchor is the half-window, k // 2
tokens, with the lowest hash in the window, the last one on ties. Equal windows have equal anchors in equal places, and
neighbouring windows share anchors: for k = 50 about one token in 13 begins an anchor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mtnlg_data.filters.lists import is_in
from mtnlg_data.text.arrays import texts_of
from mtnlg_data.text.characters import SPACE, character_table, code_at, count_characters, is_ascii, strip
from mtnlg_data.text.compiled import jit
from mtnlg_data.text.hashing import WORD_BASE, fmix64, hash_span, hash_spans
from mtnlg_data.text.words import word_classes, word_spans

if TYPE_CHECKING:
    from mtnlg_data.array_types import Int64s, UInt8s, UInt64s
    from mtnlg_data.text.arrays import Texts

LINE_FEED, BLANK = 10, np.uint8(32)


class Items(NamedTuple):
    """Things that may recur in a batch of texts: their hashes, texts, and first and end byte (exclusive) in these."""

    keys: UInt64s
    texts: Int64s
    begins: Int64s
    ends: Int64s


class Windows(NamedTuple):
    """All windows of a batch: their first tokens and their anchors; the half-windows' hashes; the tokens' places."""

    firsts: Int64s
    anchors: Int64s
    halves: UInt64s
    sums: UInt64s
    starts: Int64s
    ends: Int64s


def find_documents(column: pa.LargeStringArray) -> Items:
    """The texts themselves, hashed regardless of their white space."""
    texts = texts_of(column)
    keys = _hash_texts(texts, character_table())
    return Items(keys, np.arange(len(keys)), np.zeros(len(keys), np.int64), np.diff(texts.bounds))


@jit
def _hash_texts(texts: Texts, table: UInt8s) -> UInt64s:
    """Hash of every text with its words joined by one space."""
    data, bounds = texts
    keys = np.empty(len(bounds) - 1, np.uint64)
    joined = np.empty((bounds[1:] - bounds[:-1]).max() if len(keys) else 0, np.uint8)
    for text in range(len(keys)):
        part = data[bounds[text] : bounds[text + 1]]
        length = len(part)
        if not _blank_spaces(part, joined) or (length and joined[0] == BLANK) or _has_pair(joined[:length]):
            length = _join_words(part, joined, table)
        keys[text] = hash_span(joined, 0, length - 1 if length and joined[length - 1] == BLANK else length)
    return keys


@jit
def _blank_spaces(part: UInt8s, blanked: UInt8s) -> bool:
    """Copy a text with a blank for each white space character of ASCII; returns whether all of the text is ASCII.

    Like ``_has_pair`` it has no branch and no index but its counter, so that many bytes are handled at a time.
    """
    bits = np.uint8(0)
    for place in range(len(part)):
        byte = part[place]
        is_space = (byte >= 9) & (byte <= 13) | (byte >= 28) & (byte <= 32)
        blanked[place] = BLANK if is_space else byte
        bits = np.uint8(bits | byte)
    return bool(bits < 0x80)


@jit
def _has_pair(blanked: UInt8s) -> bool:
    """Whether a blank follows another."""
    firsts, seconds, pair = blanked[:-1], blanked[1:], np.uint8(0)
    for place in range(len(seconds)):
        pair = np.uint8(pair | ((firsts[place] == BLANK) & (seconds[place] == BLANK)))
    return bool(pair)


@jit
def _join_words(part: UInt8s, joined: UInt8s, table: UInt8s) -> int:
    """Copy a text with one blank for each run of white space, and none before the first word; returns its length."""
    one = np.uint64(1)  # unsigned indices need no test for negative ones
    size, after_space = np.uint64(0), one
    place, end = 0, len(part)
    if is_ascii(part, place, end):  # without a branch per word, which would be mispredicted
        for byte in part:
            is_space = np.uint64(table[byte] & SPACE != 0)
            joined[size] = BLANK if is_space else byte
            size += one - (is_space & after_space)
            after_space = is_space
        place = end
    while place < end:
        code, width = code_at(part, place)
        is_space = np.uint64(table[code] & SPACE != 0)
        if not is_space:
            for byte in part[place : place + width]:
                joined[size] = byte
                size += one
        elif not after_space:
            joined[size] = BLANK
            size += one
        after_space = is_space
        place += width
    return int(np.int64(size))


def find_lines(column: pa.LargeStringArray, shortest: int) -> Items:
    """The lines of at least ``shortest`` characters, hashed regardless of case and of the white space around them."""
    texts, lowered = texts_of(column), texts_of(pc.utf8_lower(column))
    return Items(*_lines(texts, _line_feeds(texts), lowered, _line_feeds(lowered), character_table(), shortest))


def _line_feeds(texts: Texts) -> Int64s:
    begin, end = texts.bounds[0], texts.bounds[-1]
    return np.asarray(begin + np.flatnonzero(texts.data[begin:end] == LINE_FEED))


@jit
def _lines(  # noqa: PLR0917  (numba takes no keywords)
    texts: Texts,
    feeds: Int64s,
    lowered: Texts,
    low_feeds: Int64s,
    table: UInt8s,
    shortest: int,
) -> tuple[UInt64s, Int64s, Int64s, Int64s]:
    """Lines as ``Items``. Lower-casing may change byte lengths but not line ends, so both texts are read in step."""
    most = len(texts.bounds) + len(feeds)
    keys, rows = np.empty(most, np.uint64), np.empty(most, np.int64)
    begins, ends = np.empty(most, np.int64), np.empty(most, np.int64)
    count = feed = 0
    for text in range(len(texts.bounds) - 1):
        place, low = texts.bounds[text], lowered.bounds[text]
        while place < texts.bounds[text + 1]:
            stop, low_stop = texts.bounds[text + 1], lowered.bounds[text + 1]
            if feed < len(feeds) and feeds[feed] < stop:
                stop, low_stop = feeds[feed], low_feeds[feed]
                feed += 1
            first, last = strip(lowered.data, low, low_stop, table)
            if count_characters(lowered.data, first, last) >= shortest:
                keys[count], rows[count] = hash_span(lowered.data, first, last), text
                first, last = strip(texts.data, place, stop, table)
                begins[count], ends[count] = first - texts.bounds[text], last - texts.bounds[text]
                count += 1
            place, low = stop + 1, low_stop + 1
    return keys[:count].copy(), rows[:count].copy(), begins[:count].copy(), ends[:count].copy()


def find_windows(texts: Texts, length: int) -> Windows:
    """The windows of ``length`` tokens of every text."""
    half = length // 2
    starts, ends, bounds = word_spans(*texts, word_classes("unicode"))
    sums = _sums(hash_spans(texts.data, starts, ends))
    halves = _window_hashes(sums, np.arange(max(0, len(starts) - half + 1)), half)
    return Windows(*_anchors(bounds, halves, length, half), halves, sums, starts, ends)


@jit
def _sums(hashes: UInt64s) -> UInt64s:
    sums = np.zeros(len(hashes) + 1, np.uint64)
    for token in range(len(hashes)):
        sums[token + 1] = sums[token] * WORD_BASE + hashes[token]
    return sums


def _window_hashes(sums: UInt64s, firsts: Int64s, length: int) -> UInt64s:
    power = np.uint64(pow(int(WORD_BASE), length, 1 << 64))
    return fmix64(sums[firsts + length] - sums[firsts] * power)


@jit
def _anchors(bounds: Int64s, halves: UInt64s, length: int, half: int) -> tuple[Int64s, Int64s]:
    """First token of every window that lies in one text, and of its anchor; both ascend."""
    firsts, anchors = np.empty(len(halves), np.int64), np.empty(len(halves), np.int64)
    count = 0
    for text in range(len(bounds) - 1):
        anchor = -1
        for first in range(int(bounds[text]), int(bounds[text + 1]) - length + 1):
            begin = last = first + length - half
            if anchor < first:
                begin = anchor = first
            for place in range(begin, last + 1):
                if halves[place] <= halves[anchor]:
                    anchor = place
            firsts[count], anchors[count] = first, anchor
            count += 1
    return firsts[:count].copy(), anchors[:count].copy()


def anchor_keys(windows: Windows) -> UInt64s:
    """Hash of each anchor."""
    return windows.halves[windows.anchors[_changes(windows.anchors)]]


def _changes(anchors: Int64s) -> Int64s:
    """Numbers of the windows whose anchor is not that of the window before."""
    return np.flatnonzero(np.diff(anchors, prepend=-1))


def windows_with(windows: Windows, texts: Texts, length: int, repeated: UInt64s) -> Items:
    """The windows whose anchors are among ``repeated``, which ascends."""
    changes = _changes(windows.anchors)
    recurs = is_in(windows.halves[windows.anchors[changes]], repeated)
    firsts = windows.firsts[np.repeat(recurs, np.diff(np.append(changes, len(windows.anchors))))]
    begins, ends = windows.starts[firsts], windows.ends[firsts + length - 1]
    rows = np.searchsorted(texts.bounds, begins, side="right") - 1
    keys = _window_hashes(windows.sums, firsts, length)
    return Items(keys, rows, begins - texts.bounds[rows], ends - texts.bounds[rows])
