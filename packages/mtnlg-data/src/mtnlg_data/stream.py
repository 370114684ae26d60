"""TokenStream: training samples by number, blended and shuffled with nothing to build (contract 1).

Sample n is a pure function of (stores, weights, seed, sequence length, n): no iterator, no state, no index file. With S
the sequence length, for each source k of integer weight u_k, sum u = U = 2**32:

    windows     a split's T tokens hold W = (T - 1) // S windows; window i is tokens [i S, i S + S + 1)
    epochs      draw d of a source reads window permutation(seed, source, d // W)(d mod W), so every window of an
                epoch comes once before any comes twice
    quotas      after n samples, n a multiple of the block B, source k has given A_k(n) of them: the largest-remainder
                apportionment of n u_k / U. A block's quota is q_k = A_k(n + B) - A_k(n): what one block gave too much
                or too little, the following ones correct (paper.md 4.4); B u_k >= U makes every q_k >= 0
    inside      the j-th sample (from 0) of source k in a block stands at (j + 1/2) / q_k of it; ties go to the earlier
                source. This is the order of Webster's (Sainte-Lague's) rule, and any place in it is found directly

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
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, Self, SupportsIndex

import numpy as np
from pydantic import Field, ValidationError, model_validator

from mtnlg_data.tokens.store import TokenStore

from .console import Failure
from .settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

Split = Literal["train", "validation"]

ORDER_VERSION = 1
UNITS = 1 << 32
SMALLEST_BLOCK = 1024


class TokenStream(Protocol):
    """Training samples by number. The same number gives the same sample on every machine and in every layout."""

    @property
    def seq_length(self) -> int:
        """Inputs of a sample; it holds one token more, the last target."""

    @property
    def vocab_size(self) -> int:
        """Every token is in [0, vocab_size)."""

    @property
    def fingerprint(self) -> str:
        """Of data, weights, seed and order: a checkpoint refuses to resume on another."""

    def __len__(self) -> int:
        """Samples that may be asked for."""

    def __getitem__(self, sample: int) -> NDArray[np.int32]:
        """Sample ``sample``, shape [seq_length + 1]. Raises ``IndexError`` outside [0, len)."""


class BlendSource(Settings):
    """One store of a blend, as in blend.json."""

    name: str
    prefix: str = Field(description="of the .bin/.idx pair, from blend.json's folder")
    weight: float = Field(gt=0)
    documents: int = Field(ge=0)
    tokens: int = Field(ge=0)
    sha256: str = Field(description="TokenStore.checksum")


class Blend(Settings):
    """What blend.json holds: the stores, how they are mixed, and what is held out."""

    seed: int
    vocabulary: int = Field(gt=0)
    eod: int = Field(ge=0)
    validation: float = Field(ge=0, lt=1, description="share of each source's documents, from its end")
    sources: tuple[BlendSource, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _can_be_blended(self) -> Self:
        names = [source.name for source in self.sources]
        if len(set(names)) < len(names):
            raise ValueError(f"sources share a name: {', '.join(names)}")
        least = min(self.sources, key=lambda source: source.weight)
        if least.weight * UNITS < sum(source.weight for source in self.sources):
            raise ValueError(f"weight {least.weight} of {least.name} is under 2**-32 of all; leave it out")
        return self


def read_blend(tokens: Path) -> Blend:
    """The blend of a folder of stores. Raises ``Failure`` naming the file."""
    path = tokens / "blend.json"
    try:
        return Blend.model_validate_json(path.read_bytes())
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}; it is written by the tokenize stage of mtnlg-data") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = "".join(f"{part}: " for part in first["loc"])
        raise Failure(f"{path}: {where}{first['msg'].removeprefix('Value error, ')}") from None


def open_stream(tokens: Path, seq_length: int, split: Split = "train", samples: int | None = None) -> BlendedStream:
    """The samples of a folder that holds blend.json and its stores; ``samples`` of them, or one nominal pass.

    A source whose validation documents fill no window is left out of the validation stream; in the training stream
    that is a ``Failure``, as is any missing or truncated file.
    """
    if seq_length < 1 or (samples is not None and samples < 0):
        raise ValueError(f"seq_length = {seq_length} must be positive and samples = {samples} not negative")
    blend = read_blend(tokens)
    runs = [_Run.open(tokens, blend, source, seq_length, split) for source in blend.sources]
    full = [run for run in runs if run.windows]
    if not full or (split == "train" and len(full) < len(runs)):
        short = next(run for run in runs if not run.windows)
        raise Failure(
            f"{short.store.prefix}.bin: {short.tokens} {split} tokens are fewer than one sample of {seq_length} + 1; "
            f"lower the sequence length, or give {short.name} more documents"
        )
    return BlendedStream(blend, full, seq_length, split, samples)


class _Run(NamedTuple):
    """One source's part of a split: a run of its store's tokens."""

    name: str
    weight: float
    store: TokenStore
    start: int
    tokens: int
    windows: int

    @classmethod
    def open(cls, tokens: Path, blend: Blend, source: BlendSource, seq_length: int, split: Split) -> _Run:
        store = TokenStore(tokens / source.prefix)
        if (store.documents, store.tokens) != (source.documents, source.tokens):
            raise Failure(
                f"{store.prefix}.bin: holds {store.documents} documents of {store.tokens} tokens where "
                f"{tokens / 'blend.json'} says {source.documents} of {source.tokens}; run the tokenize stage again"
            )
        boundary = store.offset(store.documents - held_out(store.documents, blend.validation))
        start, stop = (0, boundary) if split == "train" else (boundary, store.tokens)
        windows = max(0, stop - start - 1) // seq_length
        return cls(source.name, source.weight, store, start, stop - start, windows)


def held_out(documents: int, validation: float) -> int:
    """How many of a source's documents, the last ones, are for validation: the share, rounded.

    With two documents or more and a share above zero, each side gets at least one.
    """
    if documents < 2 or validation == 0:
        return 0
    parts, whole = validation.as_integer_ratio()
    return min(max((2 * parts * documents + whole) // (2 * whole), 1), documents - 1)


class BlendedStream:
    """The ``TokenStream`` of a blend; made by ``open_stream``. Memory grows with the number of sources alone."""

    def __init__(self, blend: Blend, runs: Sequence[_Run], seq_length: int, split: Split, samples: int | None) -> None:
        self.seq_length = seq_length
        self.vocab_size = blend.vocabulary
        self.seed = blend.seed
        self.runs = tuple(runs)
        self.blender = Blender([run.weight for run in runs])
        self.fingerprint = _fingerprint(blend, seq_length, split)
        self._samples = sum(run.windows for run in runs) if samples is None else samples
        self._permutations: dict[int, tuple[int, Permutation]] = {}

    def __len__(self) -> int:
        """Samples that may be asked for."""
        return self._samples

    def __getitem__(self, sample: SupportsIndex) -> NDArray[np.int32]:
        """Sample ``sample``, shape [seq_length + 1], the caller's own.

        Raises ``IndexError`` outside [0, len), and ``Failure`` where a store is no longer what it was.
        """
        source, window = self.locate(sample)
        run = self.runs[source]
        start = run.start + window * self.seq_length
        tokens = run.store.read(start, start + self.seq_length + 1).astype(np.int32)
        if not 0 <= tokens.min() <= tokens.max() < self.vocab_size:
            wrong = int(np.flatnonzero((tokens < 0) | (tokens >= self.vocab_size))[0])
            raise Failure(
                f"{run.store.prefix}.bin: token {start + wrong}, {tokens[wrong]}, is outside the vocabulary of "
                f"{self.vocab_size}; tokenize it again with this tokenizer"
            )
        return tokens

    def locate(self, sample: SupportsIndex) -> tuple[int, int]:
        """Which of ``runs`` sample ``sample`` comes from, and which of its windows."""
        number = operator.index(sample)
        if not 0 <= number < self._samples:
            raise IndexError(f"sample {number} of {self._samples}")
        source, draw = self.blender.draw(number)
        epoch, position = divmod(draw, self.runs[source].windows)
        return source, self._permutation(source, epoch)(position)

    def _permutation(self, source: int, epoch: int) -> Permutation:
        """Of the epoch that this source was last asked for: neighbours in a batch share it."""
        known = self._permutations.get(source)
        if known is None or known[0] != epoch:
            run = self.runs[source]
            known = self._permutations[source] = (epoch, Permutation(run.windows, self.seed, run.name, epoch))
        return known[1]


def _fingerprint(blend: Blend, seq_length: int, split: Split) -> str:
    units = apportion(UNITS, _integers([source.weight for source in blend.sources]))
    sources = [(source.name, source.sha256, unit) for source, unit in zip(blend.sources, units, strict=True)]
    parts = [ORDER_VERSION, blend.seed, blend.vocabulary, blend.validation, seq_length, split, sources]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class Blender:
    """Which source sample n comes from, and the how-manieth of that source it is."""

    def __init__(self, weights: Sequence[float]) -> None:
        self.units = apportion(UNITS, _integers(weights))
        self.block = max(SMALLEST_BLOCK, 1 << (-(-UNITS // min(self.units)) - 1).bit_length())
        self._last = (-1, [0], [0])

    def draw(self, sample: int) -> tuple[int, int]:
        """The source of ``sample`` and how many samples that source gave before it."""
        block, position = divmod(sample, self.block)
        _, before, quotas = self._quotas(block)
        source, rank = position_in_block(quotas, position)
        return source, before[source] + rank

    def _quotas(self, block: int) -> tuple[int, list[int], list[int]]:
        last = self._last  # one tuple, read and replaced whole: threads may share a stream
        if last[0] != block:
            before = apportion(block * self.block, self.units)
            after = apportion((block + 1) * self.block, self.units)
            last = self._last = (block, before, [b - a for a, b in zip(before, after, strict=True)])
        return last


def apportion(total: int, weights: Sequence[int]) -> list[int]:
    """``total`` in whole parts by integer weights, each within one of its exact share: largest remainder first.

    Of equal remainders the earlier wins. Exact for integers of any size.
    """
    whole = sum(weights)
    parts, remainders = zip(*(divmod(total * weight, whole) for weight in weights), strict=True)
    shares = list(parts)
    for k in sorted(range(len(shares)), key=lambda k: -remainders[k])[: total - sum(parts)]:
        shares[k] += 1
    return shares


def _integers(weights: Sequence[float]) -> list[int]:
    """Integers in exactly the proportions of these floats."""
    fractions = [Fraction(weight) for weight in weights]
    common = math.lcm(*(fraction.denominator for fraction in fractions))
    return [int(fraction * common) for fraction in fractions]


def position_in_block(quotas: Sequence[int], position: int) -> tuple[int, int]:
    """(source, rank in that source) of the sample at ``position`` of a block, ordered by (rank + 1/2) / quota.

    ``position`` counts from 0 and is below sum(quotas). The samples that stand before the point x of the block are, for
    each source, its x q_k rounded: they number at most x B + K/2. So begin K/2 early and take the few left one by one.
    """
    block = sum(quotas)
    early = max(0, position - (len(quotas) + 1) // 2)
    ranks = [(2 * early * quota + block - 1) // (2 * block) for quota in quotas]
    ahead = [(_midpoint(ranks[k], quota), k) for k, quota in enumerate(quotas) if quota]
    heapq.heapify(ahead)
    for _ in range(position - sum(ranks)):
        k = ahead[0][1]
        ranks[k] += 1
        heapq.heapreplace(ahead, (_midpoint(ranks[k], quotas[k]), k))
    source = ahead[0][1]
    return source, ranks[source]


def _midpoint(rank: int, quota: int) -> int:
    """(rank + 1/2) / quota times 2**65, cut to an integer: exact for comparing where quotas are at most 2**32.

    Two midpoints that differ do so by 1 / (2 q q') or more.
    """
    return ((2 * rank + 1) << 64) // quota


class Permutation:
    """A bijection of [0, size) fixed by (seed, source, epoch), computed pointwise in O(1) memory.

    A Feistel network over the 2h bits that hold ``size``, walked along its cycle until it falls below ``size``: in the
    mean fewer than four steps (Black and Rogaway 2002, "Ciphers with arbitrary finite domains").
    """

    ROUNDS = 6

    def __init__(self, size: int, seed: int, source: str, epoch: int) -> None:
        self.size = size
        self._half = max(1, ((size - 1).bit_length() + 1) // 2)
        self._mask = (1 << self._half) - 1
        digest = hashlib.blake2b(json.dumps([seed, source, epoch]).encode(), digest_size=8 * self.ROUNDS).digest()
        self._keys = [int.from_bytes(digest[8 * i : 8 * i + 8], "little") for i in range(self.ROUNDS)]

    def __call__(self, position: int) -> int:
        """Where ``position`` goes."""
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
