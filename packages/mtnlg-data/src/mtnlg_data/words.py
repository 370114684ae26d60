r"""Words of texts: their positions, and 64-bit hashes of words and word n-grams; plus the numba decorators.

A word is a maximal run of characters that Python's ``\w`` matches: letters and digits of any script, and "_". Where a
script puts no spaces between words, each of its characters is a word of its own. With c_0, c_1, ... the code points of
a word and w_0, w_1, ... the hashes of consecutive words, modulo 2**64:

    hash of a word          fmix64(sum_i c_i A**i)               A = CHARACTER_BASE
      over 64 characters    fmix64(sum_i fmix64(c_i + 2**32 i))
    hash of an n-gram       fmix64(sum_j w_j B**(n - 1 - j))     B = WORD_BASE

``fmix64`` is the finalizer of MurmurHash3, a bijection. Without it in the sum, Thue-Morse words of 1,024 letters have
equal hashes whatever A is. Texts are hashed in batches, so that a thousand short ones cost little more than one long
one. Loops are compiled by numba.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numba.extending
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

F = TypeVar("F", bound="Callable[..., Any]")

CHARACTER_BASE = np.uint64(0x9E3779B97F4A7C15)
WORD_BASE = np.uint64(0xD6E8FEB86659FD93)
SEPARATOR = "\n"
LONGEST_SUM = 64  # characters of the longest word whose hash is a sum of powers
BATCH_CHARACTERS = 1_000_000  # keeps a batch's arrays in the processor's caches

#: Kinds of characters. Those of scripts without spaces are words by themselves: of Han, kana, bopomofo, Yi, Tangut and
#: Nushu; or of Thai, Lao, Burmese, Khmer and Tai, vowel signs and tone marks included.
NO_WORD, LETTER, EAST_ASIAN, SOUTHEAST_ASIAN = range(4)
SCRIPTS_WITHOUT_SPACES = {
    EAST_ASIAN: "\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3038-\u303c\u3041-\u312f\u31a0-\u31bf\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\ua000-\ua48c\uf900-\ufaff\uff66-\uff9f"
    "\U00016fe0-\U00018dff\U0001aff0-\U0001b2ff\U00020000-\U0003ffff",
    SOUTHEAST_ASIAN: "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf\ua9e0-\ua9ff\uaa60-\uaadf"
    "\U00011700-\U0001174f",
}


def jit(loop: F) -> F:
    """Compile a loop with numba, cached on disk."""
    return cast("F", numba.njit(cache=True)(loop))


@numba.extending.intrinsic  # type: ignore[untyped-decorator]
def wide_vectors(_typing: object) -> object:
    """In a compiled loop: vectors of 512 bits, where LLVM takes 256 though the processor has them.

    Minima of products of 32 bits are a quarter faster so.
    """

    def generate(context: Any, builder: Any, _signature: object, _values: object) -> object:  # noqa: ANN401
        if isinstance(attributes := builder.function.attributes, set):  # whose own ``add`` knows few of LLVM's
            set.add(attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return numba.types.none(), generate


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
    hashes, starts, ends = word_spans(codes, character_kinds())
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
def character_kinds() -> NDArray[np.uint8]:
    r"""Table over all code points: ``LETTER`` where ``\w`` matches, or the kind of a script without spaces."""
    everything = "".join(map(chr, range(sys.maxunicode + 1)))
    kinds = np.full(len(everything), NO_WORD, np.uint8)
    for match in re.finditer(r"\w+", everything):
        kinds[match.start() : match.end()] = LETTER
    for kind, ranges in SCRIPTS_WITHOUT_SPACES.items():
        for match in re.finditer(f"[{ranges}]", everything):
            code = match.start()
            is_sign = kind == SOUTHEAST_ASIAN and unicodedata.category(match[0]) in {"Mn", "Mc"}
            if kinds[code] == LETTER or is_sign:
                kinds[code] = kind
    return kinds


@jit
def long_word_hash(codes: NDArray[np.uint32]) -> np.uint64:
    """Hash of a word of more than ``LONGEST_SUM`` characters."""
    total = np.uint64(0)
    for place in range(len(codes)):
        total += fmix64_scalar((np.uint64(place) << np.uint64(32)) + np.uint64(codes[place]))
    return np.uint64(fmix64_scalar(total))


@jit
def word_spans(
    codes: NDArray[np.uint32], kinds: NDArray[np.uint8]
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
    """Hash, start and end (one past the last code point) of every word in ``codes``."""
    size = len(codes)
    hashes, starts, ends = np.empty(size, np.uint64), np.empty(size, np.int64), np.empty(size, np.int64)
    count, inside = 0, False
    total = power = np.uint64(0)
    for position in range(len(codes) + 1):
        kind = kinds[codes[position]] if position < len(codes) else NO_WORD
        if kind == LETTER:
            if not inside:
                inside, total, power = True, np.uint64(0), np.uint64(1)
                starts[count] = position
            total += np.uint64(codes[position]) * power
            power *= CHARACTER_BASE
            continue
        if inside:
            inside = False
            start = starts[count]
            is_long = position - start > LONGEST_SUM
            hashes[count] = long_word_hash(codes[start:position]) if is_long else fmix64_scalar(total)
            ends[count] = position
            count += 1
        if kind != NO_WORD:
            hashes[count] = fmix64_scalar(np.uint64(codes[position]))
            starts[count], ends[count] = position, position + 1
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


@jit
def fmix64_scalar(value: np.uint64) -> np.uint64:
    """``fmix64`` of one value, for use inside compiled loops."""
    value = np.uint64((value ^ (value >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD))
    value = np.uint64((value ^ (value >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53))
    return np.uint64(value ^ (value >> np.uint64(33)))
