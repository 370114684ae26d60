"""TokenStream: training samples by number, blended and shuffled without building an index (contract 1).

Sample n is a pure function of (stores, weights, seed, sequence length, n): no iterator, no state, no index file. With S
the sequence length, for each source k of integer weight u_k, sum u = U = 2**32:

    windows     a split's T tokens hold W = (T - 1) // S windows; window i is tokens [i S, i S + S + 1)
    epochs      draw d of a source reads window permutation(seed, source, d // W)(d mod W), so an epoch reads every
                window once before the next epoch reads any
    quotas      A_k(n) of the first n samples, n a multiple of the block B, come from source k: the largest-remainder
                apportionment of n u_k / U. A block's quota is q_k = A_k(n + B) - A_k(n), so later blocks correct the
                rounding of earlier ones (paper.md 4.4); B u_k >= U makes every q_k >= 0
    inside      within a block, sample j (from 0) of source k is at position (j + 1/2) / q_k; ties go to the earlier
                source. This is the order of Webster's (Sainte-Lague's) rule; any position is computed directly

With K sources of shares w_k = u_k / U and c_k(n) the samples of source k among the first n: |c_k(n) - n w_k| < 1 at
every block's end, < 3/2 + (K/2) (w_k + 2/B) after any sample, so at most twice that in any run of consecutive samples.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import math
import operator
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, SupportsIndex

import numpy as np

from mtnlg_data.tokens.blend import UNITS, Blend, BlendSource, held_out, read_blend
from mtnlg_data.tokens.store import TokenStore
from mtnlg_data.transfer.urls import location

from .console import Failure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mtnlg_data.transfer.urls import Location

    from .array_types import Bools, Int32s

Split = Literal["train", "validation"]

ORDER_VERSION = 1
MIN_BLOCK = 1024


class TokenStream(Protocol):
    """Training samples by number: the same number gives the same sample on every machine and in every layout."""

    @property
    def seq_length(self) -> int:
        """Input tokens of a sample; the sample has one token more, the last target."""

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary: every token is in [0, vocab_size)."""

    @property
    def fingerprint(self) -> str:
        """Digest of data, weights, seed and order; a checkpoint resumes only on a stream with the same one."""

    def __len__(self) -> int:
        """Number of samples."""

    def __getitem__(self, sample: int) -> Int32s:
        """Sample ``sample``, shape [seq_length + 1]. Raises ``IndexError`` outside [0, len)."""


class Sample(NamedTuple):
    """A sample's tokens; for each, whether it is trained on (None: all are) and whether a document begins with it."""

    tokens: Int32s
    counts: Bools | None = None
    begins: Bools | None = None


class DocumentStream(TokenStream, Protocol):
    """A stream that knows where documents begin, and may have a mask of the tokens to train on."""

    @property
    def masked(self) -> bool:
        """Whether there is a mask: some tokens are not trained on."""

    def sample(self, sample: int) -> Sample:
        """Sample ``sample`` with its mask and documents. Raises ``IndexError`` outside [0, len)."""


def open_stream(
    tokens: Location | str, seq_length: int, split: Split = "train", samples: int | None = None
) -> BlendedStream:
    """The samples of a folder with blend.json and its stores: ``samples`` of them, or one nominal pass.

    A source whose tokens of the split do not fill one window is left out, and named in ``left_out``. Raises ``Failure``
    if all sources are left out, and for a missing or truncated file.
    """
    if seq_length < 1 or (samples is not None and samples < 0):
        raise ValueError(f"seq_length = {seq_length} must be positive and samples = {samples} not negative")
    tokens = location(tokens)
    blend = read_blend(tokens)
    ranges = [_SourceRange.open(tokens, blend, source, seq_length, split) for source in blend.sources]
    sources = [source for source in ranges if source.windows]
    left_out = [
        f"{short.store.prefix}.bin: {short.tokens} {split} tokens do not fill one sample of {seq_length} + 1"
        for short in ranges
        if not short.windows
    ]
    if not sources:
        raise Failure(f"{left_out[0]}; lower the sequence length, or give {ranges[0].name} more documents")
    stream = BlendedStream(blend, sources, seq_length, split, samples)
    stream.left_out = tuple(left_out)
    return stream


class _SourceRange(NamedTuple):
    """The tokens of one source that belong to a split: ``tokens`` of its store, from ``start``."""

    name: str
    weight: float
    store: TokenStore
    start: int
    tokens: int
    windows: int
    mask: TokenStore | None
    checksums: tuple[str, str]  # of store and mask, as in blend.json

    @classmethod
    def open(cls, tokens: Location, blend: Blend, source: BlendSource, seq_length: int, split: Split) -> _SourceRange:
        store = TokenStore(tokens / source.prefix)
        if (store.documents, store.tokens) != (source.documents, source.tokens):
            raise Failure(
                f"{store.prefix}.bin: holds {store.documents} documents of {store.tokens} tokens where "
                f"{tokens / 'blend.json'} says {source.documents} of {source.tokens}; run the tokenize stage again"
            )
        mask = TokenStore(tokens / f"{source.prefix}.mask") if source.mask else None
        if mask and mask.tokens != store.tokens:
            raise Failure(f"{mask.prefix}.bin: a mask of {mask.tokens} tokens for {store.tokens}; tokenize again")
        boundary = store.offset(store.documents - held_out(store.documents, blend.validation))
        start, stop = (0, boundary) if split == "train" else (boundary, store.tokens)
        windows = max(0, stop - start - 1) // seq_length
        checksums = source.sha256, source.mask
        return cls(source.name, source.weight, store, start, stop - start, windows, mask, checksums)


class BlendedStream:
    """The ``TokenStream`` of a blend, made by ``open_stream``; its memory grows only with the number of sources."""

    def __init__(
        self, blend: Blend, sources: Sequence[_SourceRange], seq_length: int, split: Split, samples: int | None
    ) -> None:
        self.left_out: tuple[str, ...] = ()  # a line for each source of the blend without a window
        self.seq_length = seq_length
        self.vocab_size = blend.vocabulary
        self.seed = blend.seed
        self.sources = tuple(sources)
        self.masked = any(source.mask for source in sources)
        self.blender = Blender([source.weight for source in sources])
        self.fingerprint = _fingerprint(blend, seq_length, split)
        self._samples = sum(source.windows for source in sources) if samples is None else samples
        self._permutations: dict[int, tuple[int, Permutation]] = {}

    @property
    def checksums(self) -> dict[tuple[Path, Path], str]:
        """``TokenStore.checksum`` of every store and mask, as blend.json has it, by their files."""
        stores = {source.store.files: source.checksums[0] for source in self.sources}
        return stores | {source.mask.files: source.checksums[1] for source in self.sources if source.mask}

    def __len__(self) -> int:
        """Number of samples."""
        return self._samples

    def __getitem__(self, sample: SupportsIndex) -> Int32s:
        """Sample ``sample``, shape [seq_length + 1], in an array of the caller's own.

        Raises ``IndexError`` outside [0, len), and ``Failure`` if a store has been changed or damaged since.
        """
        source, start, stop = self._range(sample)
        return self._read(source, start, stop)

    def sample(self, sample: SupportsIndex) -> Sample:
        """Sample ``sample`` with its mask and documents. Raises as ``__getitem__``."""
        source, start, stop = self._range(sample)
        begins = np.zeros(stop - start, np.bool_)
        begins[source.store.starts(start, stop) - start] = True
        counts = None if source.mask is None else source.mask.read(start, stop) != 0
        return Sample(self._read(source, start, stop), counts, begins)

    def _range(self, sample: SupportsIndex) -> tuple[_SourceRange, int, int]:
        """Source, first token and end (exclusive) of a sample."""
        number, window = self.locate(sample)
        source = self.sources[number]
        start = source.start + window * self.seq_length
        return source, start, start + self.seq_length + 1

    def _read(self, source: _SourceRange, start: int, stop: int) -> Int32s:
        tokens = source.store.read(start, stop)
        if not 0 <= tokens.min() <= tokens.max() < self.vocab_size:
            wrong = int(np.flatnonzero((tokens < 0) | (tokens >= self.vocab_size))[0])
            raise Failure(
                f"{source.store.prefix}.bin: token {start + wrong}, {tokens[wrong]}, is outside the vocabulary of "
                f"{self.vocab_size}; tokenize it again with this tokenizer"
            )
        return tokens.astype(np.int32)

    def locate(self, sample: SupportsIndex) -> tuple[int, int]:
        """(source, window) of a sample: its place in ``sources``, and the window of that source it reads."""
        number = operator.index(sample)
        if not 0 <= number < self._samples:
            raise IndexError(f"sample {number} of {self._samples}")
        source, draw = self.blender.draw(number)
        epoch, position = divmod(draw, self.sources[source].windows)
        return source, self._permutation(source, epoch)(position)

    def _permutation(self, number: int, epoch: int) -> Permutation:
        """The permutation of a source's epoch; the last one of each source is cached, for its neighbours in a batch."""
        cached = self._permutations.get(number)
        if cached is None or cached[0] != epoch:
            source = self.sources[number]
            cached = self._permutations[number] = (epoch, Permutation(source.windows, self.seed, source.name, epoch))
        return cached[1]


def _fingerprint(blend: Blend, seq_length: int, split: Split) -> str:
    units = apportion(UNITS, _integers([source.weight for source in blend.sources]))
    sources = [
        (source.name, source.sha256, unit, *([source.mask] if source.mask else []))
        for source, unit in zip(blend.sources, units, strict=True)
    ]
    parts = [ORDER_VERSION, blend.seed, blend.vocabulary, blend.validation, seq_length, split, sources]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class Blender:
    """Maps a sample's number to its source and to its number within that source."""

    def __init__(self, weights: Sequence[float]) -> None:
        self.units = apportion(UNITS, _integers(weights))
        self.block = max(MIN_BLOCK, 1 << (-(-UNITS // min(self.units)) - 1).bit_length())
        self._cached = (-1, [0], [0])

    def draw(self, sample: int) -> tuple[int, int]:
        """(source, draw) of a sample; ``draw`` counts the earlier samples of that source."""
        block, position = divmod(sample, self.block)
        _, before, quotas = self._quotas(block)
        ranks, source = position_in_block(quotas, position)
        return source, before[source] + ranks[source]

    def drawn(self, samples: int) -> list[int]:
        """How many of the first ``samples`` samples are of each source."""
        block, position = divmod(samples, self.block)
        _, before, quotas = self._quotas(block)
        return [a + b for a, b in zip(before, position_in_block(quotas, position)[0], strict=True)]

    def _quotas(self, block: int) -> tuple[int, list[int], list[int]]:
        """(block, samples of each source before it, quotas in it)."""
        cached = self._cached  # one tuple, read and replaced as a whole: threads may share a stream
        if cached[0] != block:
            before = apportion(block * self.block, self.units)
            after = apportion((block + 1) * self.block, self.units)
            cached = self._cached = (block, before, [b - a for a, b in zip(before, after, strict=True)])
        return cached


def apportion(total: int, weights: Sequence[int]) -> list[int]:
    """Split ``total`` into integers in proportion to integer weights, by the largest remainder.

    Each part is within one of its exact share; of equal remainders the earlier wins. Exact for integers of any size.
    """
    weight_sum = sum(weights)
    parts, remainders = zip(*(divmod(total * weight, weight_sum) for weight in weights), strict=True)
    shares = list(parts)
    for k in sorted(range(len(shares)), key=lambda k: -remainders[k])[: total - sum(parts)]:
        shares[k] += 1
    return shares


def _integers(weights: Sequence[float]) -> list[int]:
    """Integers in exactly the proportions of these floats."""
    fractions = [Fraction(weight) for weight in weights]
    common = math.lcm(*(fraction.denominator for fraction in fractions))
    return [int(fraction * common) for fraction in fractions]


def position_in_block(quotas: Sequence[int], position: int) -> tuple[list[int], int]:
    """How many samples of each source are before ``position`` of a block, and the source of the sample there.

    ``position`` is in [0, sum(quotas)); samples are ordered by (rank + 1/2) / quota.
    Before the point x of the block, source k has x q_k samples, rounded, so all sources have at most x B + K/2: start
    K/2 early, and take the few remaining samples one by one.
    """
    block = sum(quotas)
    early = max(0, position - (len(quotas) + 1) // 2)
    ranks = [(2 * early * quota + block - 1) // (2 * block) for quota in quotas]
    heap = [(_midpoint(ranks[k], quota), k) for k, quota in enumerate(quotas) if quota]
    heapq.heapify(heap)
    for _ in range(position - sum(ranks)):
        k = heap[0][1]
        ranks[k] += 1
        heapq.heapreplace(heap, (_midpoint(ranks[k], quotas[k]), k))
    return ranks, heap[0][1]


def _midpoint(rank: int, quota: int) -> int:
    """(rank + 1/2) / quota times 2**65, truncated to an integer; comparisons are exact for quotas up to 2**32.

    Two different midpoints differ by at least 1 / (2 q q').
    """
    return ((2 * rank + 1) << 64) // quota


class Permutation:
    """A bijection of [0, size) fixed by (seed, source, epoch), computed pointwise in O(1) memory.

    A Feistel network over the 2h bits that hold ``size``, applied again until its value is below ``size``: fewer than
    four times on average (Black and Rogaway 2002, "Ciphers with arbitrary finite domains").
    """

    ROUNDS = 6

    def __init__(self, size: int, seed: int, source: str, epoch: int) -> None:
        self.size = size
        self._half = max(1, ((size - 1).bit_length() + 1) // 2)
        self._mask = (1 << self._half) - 1
        digest = hashlib.blake2b(json.dumps([seed, source, epoch]).encode(), digest_size=8 * self.ROUNDS).digest()
        self._keys = [int.from_bytes(digest[8 * i : 8 * i + 8], "little") for i in range(self.ROUNDS)]

    def __call__(self, position: int) -> int:
        """The image of ``position``."""
        half, mask, value = self._half, self._mask, position
        while True:
            left, right = value >> half, value & mask
            for key in self._keys:
                mixed = (right + key) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
                mixed = (mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93 & 0xFFFFFFFFFFFFFFFF
                left, right = right, left ^ (mixed >> 32 & mask)
            value = left << half | right
            if value < self.size:
                return value
