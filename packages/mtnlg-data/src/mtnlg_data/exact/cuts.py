"""Cuts: the spans of each text that repeats cover, and the texts without them.

White space next to a cut is removed with it, except on one side: the side with more line ends, or else the side after
the cut. So paragraphs stay apart, and words of one line stay on one line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mtnlg_data.text.arrays import Texts
from mtnlg_data.text.characters import character_table, space_begin, space_end
from mtnlg_data.text.compiled import jit

from .tokens import LINE_FEED

if TYPE_CHECKING:
    from mtnlg_data.array_types import Int64s, Integers, UInt8s
LOW = (1 << 32) - 1


def merge_spans(spans: Integers) -> Int64s:
    """Merge spans (row, first byte, end byte exclusive) that overlap or touch; sorted by row and place."""
    rows, begins, ends = spans.astype(np.int64).T
    begins, ends = rows << 32 | begins, rows << 32 | ends
    order = np.argsort(begins, kind="stable")
    begins, reach = begins[order], np.maximum.accumulate(ends[order])
    apart = np.ones(len(begins), np.bool_)
    apart[1:] = begins[1:] > reach[:-1]
    first = np.flatnonzero(apart)
    last = np.append(first[1:], len(begins))[: len(first)] - 1
    return np.stack([begins[first] >> 32, begins[first] & LOW, reach[last] & LOW], axis=1)


def cut_texts(texts: Texts, spans: Int64s) -> Texts:
    """The texts without these merged spans; the row of a span is the number of its text."""
    return Texts(*_cut(texts, spans, np.searchsorted(spans[:, 0], np.arange(len(texts.bounds))), character_table()))


@jit
def _cut(texts: Texts, spans: Int64s, bounds: Int64s, table: UInt8s) -> tuple[UInt8s, Int64s]:
    data = texts.data
    out = np.empty(texts.bounds[-1] - texts.bounds[0], np.uint8)
    out_bounds = np.zeros(len(texts.bounds), np.int64)
    for text in range(len(texts.bounds) - 1):
        begin, end = texts.bounds[text], texts.bounds[text + 1]
        place, written, span = begin, out_bounds[text], bounds[text]
        while span < bounds[text + 1]:
            left, right = begin + spans[span, 1], begin + spans[span, 2]
            before, after = space_begin(data, place, left, table), space_end(data, right, end, table)
            span += 1
            while span < bounds[text + 1] and begin + spans[span, 1] <= after:
                right = begin + spans[span, 2]
                after = space_end(data, right, end, table)
                span += 1
            written = _copy(data, place, before, out, written)
            if written > out_bounds[text] and after < end:
                if _line_feeds(data, before, left) > _line_feeds(data, right, after):
                    written = _copy(data, before, left, out, written)
                else:
                    written = _copy(data, right, after, out, written)
            place = after
        out_bounds[text + 1] = _copy(data, place, end, out, written)
    return out[: out_bounds[-1]].copy(), out_bounds


@jit
def _line_feeds(data: UInt8s, begin: int, end: int) -> int:
    count = 0
    for place in range(begin, end):
        count += data[place] == LINE_FEED
    return count


@jit
def _copy(data: UInt8s, begin: int, end: int, out: UInt8s, written: int) -> int:
    """Copy bytes ``begin`` to ``end`` to ``out`` from ``written`` on; returns where they end there."""
    for place in range(begin, end):
        out[written] = data[place]
        written += 1
    return written
