"""The parts of deduplication, each against an oracle: datasketch, scipy, plain Python."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from datasketch import MinHash
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from mtnlg_data.dedup.minhash import (
    _sign,
    content_hashes,
    folded_codes,
    hash_words,
    minhash,
    new_signatures,
    permutations,
    sign,
)
from mtnlg_data.dedup.union_find import components, new_forest, unite
from mtnlg_data.dedup.verify import (
    Candidates,
    ShingleSets,
    draw_pivots,
    verify_buckets,
    verify_pairs,
)
from mtnlg_data.text.arrays import texts_of
from mtnlg_data.text.characters import character_kinds, fold_case
from mtnlg_data.text.words import hashed_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@given(
    values=st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=30), min_size=1, max_size=4),
    seed=st.integers(0, 2**32 - 1),
)
def test_signatures_match_datasketch(values: list[list[int]], seed: int) -> None:
    a, b = permutations(260, seed)
    flat = np.array(list(itertools.chain(*values)), np.uint64) << np.uint64(32)
    bounds = np.cumsum([0, *map(len, values)])
    ours = minhash(flat, bounds, a, b)
    assert ours.dtype == np.uint32
    for text, signature in zip(values, ours, strict=True):
        theirs = MinHash(260, seed=seed, hashfunc=lambda value: value, scheme="affine32")
        theirs.update_batch(text)
        assert signature.tolist() == theirs.hashvalues.tolist()


@given(
    st.lists(
        st.text("aAÉ_é9 .\nİΣς漢カไ\u0e31\U0001d400\0ह\u093f\u0301\u200d", max_size=9).map(lambda text: text * 9),
        max_size=5,
    )
)
@example(["aÉ" * 33, "x" * 64 + " " + "Σ" * 65 + ".b"])
def test_utf8_words_hash_like_folded_strings(texts: list[str]) -> None:
    words = hashed_words([fold_case(text) for text in texts])
    column = texts_of(pa.array(texts, pa.large_string()))
    hashes, bounds, characters = hash_words(*column, folded_codes(), character_kinds())
    assert hashes.tolist() == words.hashes.tolist()
    assert bounds.tolist() == words.bounds.tolist()
    assert characters.tolist() == [len(re.findall("[漢カไ\u0e31]", text)) for text in texts]


def test_batches_are_signed_by_one_compiled_loop() -> None:
    texts = pa.array(["one two three four five six"] * 4, pa.large_string())
    counts, contents, keys = new_signatures(4, 2)
    compiled = []
    for rows in (slice(4), slice(1), slice(1, 4)):
        sign(texts[rows], ("word", 5), permutations(4, 1), (counts[rows], contents[rows], keys[rows]))
        compiled.append(len(_sign.compiled.signatures))  # type: ignore[attr-defined]
    assert compiled == compiled[:1] * 3  # those of other tests are among them


@given(texts=st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=1, max_size=8))
def test_content_hashes_are_equal_where_shingles_and_repeats_are(texts: list[list[int]]) -> None:
    shingles = np.array(list(itertools.chain(*texts)), np.uint64)
    bounds = np.cumsum([0, *map(len, texts)])
    hashes = content_hashes(shingles, bounds)
    for one, other in itertools.combinations(range(len(texts)), 2):
        equal = sorted(texts[one]) == sorted(texts[other])
        assert [(half[one] == half[other]) for half in hashes] == [equal, equal]


# --- verification ----------------------------------------------------------------------------------------------------


def store_sets(sets_: Sequence[NDArray[np.uint64]]) -> ShingleSets:
    """Store the sets back to back, the last first."""
    ends = np.cumsum([len(one) for one in sets_[::-1]])[::-1].astype(np.int64)
    values = np.concatenate([np.empty(0, np.uint64), *sets_[::-1]])
    return ShingleSets(values, ends - np.array([len(one) for one in sets_], np.int64), ends)


def verified(
    sizes: Sequence[int], draws: NDArray[np.int64], times: NDArray[np.int64], sets: ShingleSets, threshold: float
) -> NDArray[np.int64]:
    """The verified pairs of buckets of so many candidates each, which stand one after another."""
    found = verify_buckets(np.arange(len(times)), np.array(sizes), draws, times, sets, threshold)
    return np.concatenate([np.empty((0, 2), np.int64), *found])


small_sets = st.lists(st.sets(st.integers(0, 6), min_size=1), min_size=2, max_size=12)


@given(
    sets_=st.lists(small_sets, min_size=1, max_size=3),
    draws_=st.lists(st.integers(0, 2**63 - 1), min_size=33, max_size=33),
)
def test_a_bucket_of_twelve_is_compared_in_full(sets_: list[list[set[int]]], draws_: list[int]) -> None:
    """A document that is no pair's duplicate was compared with every pivot: no two of them are similar."""
    flat = list(itertools.chain(*sets_))
    stored = store_sets([np.array(sorted(one), np.uint64) for one in flat])
    bounds = np.cumsum([0, *map(len, sets_)])
    turns, times = np.array(draws_).reshape(3, 11)[: len(sets_)], np.arange(len(flat)) % 3 + 1
    pairs = verified([*map(len, sets_)], turns, times, stored, 0.8)
    for one, other in pairs.tolist():
        assert len(flat[one] & flat[other]) / len(flat[one] | flat[other]) >= 0.8
    removed = set(pairs[:, 1].tolist())
    assert len(removed) == len(pairs)
    for begin, end in itertools.pairwise(bounds.tolist()):
        assert all(begin <= one < end for pair in pairs.tolist() for one in pair if begin <= pair[0] < end)
        left = [number for number in range(begin, end) if number not in removed]
        for one, other in itertools.combinations(left, 2):
            assert len(flat[one] & flat[other]) / len(flat[one] | flat[other]) < 0.8


def no_order(candidates: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    return np.zeros(candidates, np.uint64), np.ones(candidates, np.int64)


def test_candidate_of_many_copies_is_drawn_in_proportion() -> None:
    """Of 40 near copies of one page, which is there 10,000 times, none is left to the chance of another pivot."""
    page = np.arange(100, dtype=np.uint64)
    sets_ = [page] + [np.sort(np.append(page[n % 2 * 10 :][:90], 1000 + n).astype(np.uint64)) for n in range(40)]
    turns = draw_pivots(np.arange(50, dtype=np.uint64), 0, 1, 1)
    found = [
        len(verified([41], turn[None], times, store_sets(sets_), 0.85))
        for turn in turns
        for times in (np.where(np.arange(41) == 0, 10_000, 1),)
    ]
    assert found.count(40) >= 49  # 0.2 of 50 draws miss the page in the mean


@pytest.mark.parametrize("candidates", [2, 3])
def test_a_pair_that_just_reaches_the_threshold_is_a_duplicate(candidates: int) -> None:
    """In a bucket of two, and in a larger one whose third candidate is like neither."""
    sets_ = [np.arange(4, dtype=np.uint64), np.arange(5, dtype=np.uint64), np.arange(90, 99, dtype=np.uint64)]
    places, sets = np.arange(candidates), store_sets(sets_[:candidates])
    group = Candidates(places, *no_order(candidates), np.ones((candidates, 1), np.uint64), sets)
    for threshold, pairs in ((0.8, [[0, 1]]), (np.nextafter(0.8, 1), [])):
        assert np.sort(np.concatenate(list(verify_pairs(group, threshold, 11, 1)))).tolist() == pairs


# --- components ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("nodes", "links"), [(21, 0), (21, 3), (21, 12), (60, 55), (200, 190)])
def test_components_are_scipys_and_numbered_by_lowest_node(nodes: int, links: int) -> None:
    """Many links in random order grow trees of many levels, where the root of a node is far above its parent."""
    rng = np.random.default_rng(nodes * links)
    for _ in range(60):
        pairs = rng.integers(0, nodes, (links, 2))
        parent = new_forest(nodes)
        for batch in np.array_split(pairs, 5):
            unite(parent, *batch.T)
        graph = coo_array((np.ones(links), (pairs[:, 0], pairs[:, 1])), shape=(nodes, nodes))
        _, theirs = connected_components(graph, directed=False)
        linked, component = components(parent)
        assert linked.tolist() == sorted({*pairs.ravel().tolist()})
        firsts = list(dict.fromkeys(theirs[linked].tolist()))
        assert component.tolist() == [firsts.index(label) for label in theirs[linked]]
