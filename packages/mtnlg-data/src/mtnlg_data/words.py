r"""Words of texts: where they are, and 64-bit hashes of them and of runs of them.

A word is a longest run of the characters that Python's ``\w`` matches: letters and digits of any script, and "_". With
c_0, c_1, ... the code points of a word and w_0, w_1, ... the hashes of words that follow one another, modulo 2**64:

    hash of a word          mix(sum_i c_i A**i)
    hash of n words         mix(sum_j w_j B**(n - 1 - j))

``mix`` is the finalizer of MurmurHash3, a bijection. Texts come in batches, so that a thousand short ones cost little
more than one long one.

Loops compiled by numba, and what stands in for them where Python is newer than numba's wheels.
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


A = np.uint64(0x9E3779B97F4A7C15)
B = np.uint64(0xD6E8FEB86659FD93)
SEPARATOR = "\n"
CHARACTERS_AT_ONCE = 1_000_000  # what is worked on stays in the processor's caches


F = TypeVar("F", bound="Callable[..., Any]")

HAS_NUMBA = find_spec("numba") is not None


def compiled(instead: F) -> Callable[[F], F]:
    """Decorate loops over arrays: numba compiles them once a machine; without numba ``instead`` is the function.

    ``instead`` is the same function in NumPy and gives the same bits, so that where a run goes on never shows.
    """

    def choose(loops: F) -> F:
        if not HAS_NUMBA:
            return instead
        import numba  # noqa: PLC0415  (only where there is one)

        return cast("F", numba.njit(cache=True)(loops))

    return choose


def compiled_if_possible(loops: F) -> F:
    """Decorate loops that, without numba, run as they stand: others call them, or nothing in NumPy is like them."""
    return compiled(instead=loops)(loops)


class Words(NamedTuple):
    """The words of a batch of texts, in order; text t has words ``bounds[t]`` to ``bounds[t + 1]``."""

    hashes: NDArray[np.uint64]
    starts: NDArray[np.int64]  # first character of each word in its text
    ends: NDArray[np.int64]  # one past its last
    bounds: NDArray[np.int64]


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """MurmurHash3's 64-bit finalizer: every bit of the input moves every bit of the output."""
    values = values ^ (values >> np.uint64(33))
    values = values * np.uint64(0xFF51AFD7ED558CCD)
    values = values ^ (values >> np.uint64(33))
    values = values * np.uint64(0xC4CEB9FE1A85EC53)
    return values ^ (values >> np.uint64(33))


@compiled_if_possible
def mixed(value: np.uint64) -> np.uint64:
    """``mix`` of one value, inside compiled loops."""
    value = np.uint64((value ^ (value >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD))
    value = np.uint64((value ^ (value >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53))
    return np.uint64(value ^ (value >> np.uint64(33)))


def fold(text: str) -> str:
    """The text in lower case, every character in its place: offsets into the one are offsets into the other.

    ``str.lower`` alone makes two characters of one ("İ"), and one of two ("Σ") by what stands around it.
    """
    return text.replace("İ", "i").lower().replace("ς", "\N{GREEK SMALL LETTER SIGMA}")


def portions(texts: list[str]) -> Iterator[list[str]]:
    """The texts in turn, about ``CHARACTERS_AT_ONCE`` at once."""
    first = characters = 0
    for place, text in enumerate(texts, 1):
        characters += len(text)
        if characters >= CHARACTERS_AT_ONCE:
            yield texts[first:place]
            first, characters = place, 0
    if first < len(texts):
        yield texts[first:]


def words_of(texts: Sequence[str]) -> Words:
    """The words of these texts, hashed as they are: fold the texts first where case is not to count."""
    codes, begins = joined(texts)
    hashes, starts, ends = spans(codes, word_characters())
    bounds = np.searchsorted(starts, begins)
    shift = np.repeat(begins[:-1], np.diff(bounds))
    return Words(hashes, starts - shift, ends - shift, bounds)


def joined(texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """The characters of these texts, parted by ``SEPARATOR``, and where each begins, with the end of the last."""
    lengths = np.fromiter((len(text) + 1 for text in texts), np.int64, len(texts))
    return code_points(SEPARATOR.join(texts)), np.concatenate([[0], np.cumsum(lengths)])


def runs_of(hashes: NDArray[np.uint64], length: int, places: NDArray[np.int64] | None = None) -> NDArray[np.uint64]:
    """The hash of ``length`` hashes in a row, at these places; by default at every place that has so many after it.

    It does not know of texts: runs may begin in one of a batch and end in the next.
    """
    count = max(0, len(hashes) - length + 1)
    total = np.zeros(count if places is None else len(places), np.uint64)
    for j in range(length):
        total *= B
        total += hashes[j : j + count] if places is None else hashes[places + j]
    return mix(total)


def code_points(text: str) -> NDArray[np.uint32]:
    """The characters of a text as numbers."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


@cache
def word_characters() -> NDArray[np.bool_]:
    """For every code point, whether it is part of words."""
    table = np.zeros(sys.maxunicode + 1, np.bool_)
    for run in re.finditer(r"\w+", "".join(map(chr, range(sys.maxunicode + 1)))):
        table[run.start() : run.end()] = True
    return table


def _spans_by_arrays(
    codes: NDArray[np.uint32], table: NDArray[np.bool_]
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
    inside = np.concatenate([[False], table[codes], [False]])
    edges = np.flatnonzero(inside[1:] != inside[:-1])
    starts, ends = edges[::2], edges[1::2]
    if not len(starts):
        return np.empty(0, np.uint64), starts, ends
    powers = np.concatenate([[np.uint64(1)], np.full(int((ends - starts).max()), A)])
    np.multiply.accumulate(powers, out=powers)
    lengths = ends - starts
    where = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    terms = codes[inside[1:-1]].astype(np.uint64) * powers[where]
    return mix(np.add.reduceat(terms, np.cumsum(lengths) - lengths)), starts, ends


@compiled(instead=_spans_by_arrays)
def spans(
    codes: NDArray[np.uint32], table: NDArray[np.bool_]
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
    """Of every word its hash, its first place, and one past its last."""
    size = (len(codes) + 1) // 2
    hashes, starts, ends = np.empty(size, np.uint64), np.empty(size, np.int64), np.empty(size, np.int64)
    count, inside = 0, False
    total = power = np.uint64(0)
    for place in range(len(codes)):
        code = codes[place]
        if table[code]:
            if not inside:
                inside, total, power = True, np.uint64(0), np.uint64(1)
                starts[count] = place
            total += np.uint64(code) * power
            power *= A
        elif inside:
            inside = False
            hashes[count], ends[count] = mixed(total), place
            count += 1
    if inside:
        hashes[count], ends[count] = mixed(total), len(codes)
        count += 1
    return hashes[:count].copy(), starts[:count].copy(), ends[:count].copy()
