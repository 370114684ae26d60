r"""Words of texts: their positions, and 64-bit hashes of words and word n-grams; plus the numba decorators.

A word is a maximal run of characters that Python's ``\w`` matches: letters and digits of any script, and "_". With
c_0, c_1, ... the code points of a word and w_0, w_1, ... the hashes of consecutive words, modulo 2**64:

    hash of a word          fmix64(sum_i c_i A**i)               A = CHARACTER_BASE
    hash of an n-gram       fmix64(sum_j w_j B**(n - 1 - j))     B = WORD_BASE

``fmix64`` is the finalizer of MurmurHash3, a bijection. Texts are hashed in batches, so that a thousand short ones cost
little more than one long one. Loops are compiled by numba; where Python is newer than numba's wheels, NumPy versions
with the same results take their place.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

F = TypeVar("F", bound="Callable[..., Any]")

CHARACTER_BASE = np.uint64(0x9E3779B97F4A7C15)
WORD_BASE = np.uint64(0xD6E8FEB86659FD93)
SEPARATOR = "\n"
BATCH_CHARACTERS = 1_000_000  # keeps a batch's arrays in the processor's caches


def jit(fallback: F) -> Callable[[F], F]:
    """Compile a loop with numba, cached on disk; without numba, use ``fallback``, its NumPy version, in its place.

    The fallback returns the same bits, so a run may continue on a machine without numba.
    """

    def decorate(loop: F) -> F:
        if find_spec("numba") is None:
            return fallback
        import numba  # noqa: PLC0415  (optional)

        return cast("F", numba.njit(cache=True)(loop))

    return decorate


def jit_or_python(loop: F) -> F:
    """Compile a loop with numba; without numba it runs as plain Python."""
    return jit(fallback=loop)(loop)


class Words(NamedTuple):
    """The words of a batch of texts, in order; text t has words ``bounds[t]`` to ``bounds[t + 1]``."""

    hashes: NDArray[np.uint64]
    starts: NDArray[np.int64]  # first character of each word in its text
    ends: NDArray[np.int64]  # one past its last character
    bounds: NDArray[np.int64]


def text_batches(texts: list[str]) -> Iterator[list[str]]:
    """Split texts into consecutive batches of about ``BATCH_CHARACTERS`` characters."""
    begin = characters = 0
    for end, text in enumerate(texts, 1):
        characters += len(text)
        if characters >= BATCH_CHARACTERS:
            yield texts[begin:end]
            begin, characters = end, 0
    if begin < len(texts):
        yield texts[begin:]


def fold_case(text: str) -> str:
    """Lower-case a text and keep its length, so that offsets into the folded text hold for the original.

    ``str.lower`` alone turns "İ" into two characters and lower-cases "Σ" by its neighbours.
    """
    return text.replace("İ", "i").lower().replace("ς", "\N{GREEK SMALL LETTER SIGMA}")


def find_words(texts: Sequence[str]) -> Words:
    """Find and hash the words of these texts as they are; fold the texts first to ignore case."""
    codes, text_bounds = join_texts(texts)
    hashes, starts, ends = word_spans(codes, word_character_table())
    bounds = np.searchsorted(starts, text_bounds)
    offsets = np.repeat(text_bounds[:-1], np.diff(bounds))
    return Words(hashes, starts - offsets, ends - offsets, bounds)


def join_texts(texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Code points of all texts with ``SEPARATOR`` between them, and bounds: text t begins at ``bounds[t]``."""
    lengths = np.fromiter((len(text) + 1 for text in texts), np.int64, len(texts))
    return code_points(SEPARATOR.join(texts)), np.concatenate([[0], np.cumsum(lengths)])


def code_points(text: str) -> NDArray[np.uint32]:
    """The code points of a text."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


@cache
def word_character_table() -> NDArray[np.bool_]:
    r"""Table over all code points: True where ``\w`` matches."""
    table = np.zeros(sys.maxunicode + 1, np.bool_)
    for match in re.finditer(r"\w+", "".join(map(chr, range(sys.maxunicode + 1)))):
        table[match.start() : match.end()] = True
    return table


def _word_spans_numpy(
    codes: NDArray[np.uint32], table: NDArray[np.bool_]
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
    inside = np.concatenate([[False], table[codes], [False]])
    edges = np.flatnonzero(inside[1:] != inside[:-1])
    starts, ends = edges[::2], edges[1::2]
    if not len(starts):
        return np.empty(0, np.uint64), starts, ends
    powers = np.concatenate([[np.uint64(1)], np.full(int((ends - starts).max()), CHARACTER_BASE)])
    np.multiply.accumulate(powers, out=powers)
    lengths = ends - starts
    exponents = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    terms = codes[inside[1:-1]].astype(np.uint64) * powers[exponents]
    return fmix64(np.add.reduceat(terms, np.cumsum(lengths) - lengths)), starts, ends


@jit(fallback=_word_spans_numpy)
def word_spans(
    codes: NDArray[np.uint32], table: NDArray[np.bool_]
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
    """Hash, start and end (one past the last code point) of every word in ``codes``."""
    size = (len(codes) + 1) // 2
    hashes, starts, ends = np.empty(size, np.uint64), np.empty(size, np.int64), np.empty(size, np.int64)
    count, inside = 0, False
    total = power = np.uint64(0)
    for position in range(len(codes)):
        code = codes[position]
        if table[code]:
            if not inside:
                inside, total, power = True, np.uint64(0), np.uint64(1)
                starts[count] = position
            total += np.uint64(code) * power
            power *= CHARACTER_BASE
        elif inside:
            inside = False
            hashes[count], ends[count] = fmix64_scalar(total), position
            count += 1
    if inside:
        hashes[count], ends[count] = fmix64_scalar(total), len(codes)
        count += 1
    return hashes[:count].copy(), starts[:count].copy(), ends[:count].copy()


def ngram_hashes(hashes: NDArray[np.uint64], n: int, starts: NDArray[np.int64] | None = None) -> NDArray[np.uint64]:
    """Hash of the n hashes from each of ``starts`` on; by default from every position with n hashes left.

    Text bounds are not looked at: an n-gram may begin in one text of a batch and end in the next.
    """
    count = max(0, len(hashes) - n + 1)
    total = np.zeros(count if starts is None else len(starts), np.uint64)
    for j in range(n):
        total *= WORD_BASE
        total += hashes[j : j + count] if starts is None else hashes[starts + j]
    return fmix64(total)


def fmix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """MurmurHash3's 64-bit finalizer: every input bit affects every output bit."""
    values = values ^ (values >> np.uint64(33))
    values = values * np.uint64(0xFF51AFD7ED558CCD)
    values = values ^ (values >> np.uint64(33))
    values = values * np.uint64(0xC4CEB9FE1A85EC53)
    return values ^ (values >> np.uint64(33))


@jit_or_python
def fmix64_scalar(value: np.uint64) -> np.uint64:
    """``fmix64`` of one value, for use inside compiled loops."""
    value = np.uint64((value ^ (value >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD))
    value = np.uint64((value ^ (value >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53))
    return np.uint64(value ^ (value >> np.uint64(33)))
