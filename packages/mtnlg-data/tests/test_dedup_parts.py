"""The parts of deduplication, each against an oracle: datasketch, scipy, plain Python."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from datasketch import MinHash
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from mtnlg_data.dedup.clusters import link_bands, write_clusters
from mtnlg_data.dedup.copies import find_copies
from mtnlg_data.dedup.minhash import (
    content_hashes,
    folded_codes,
    hash_shingles,
    hash_words,
    minhash,
    permutations,
)
from mtnlg_data.dedup.union_find import components, new_forest, unite
from mtnlg_data.dedup.verify import (
    Candidates,
    ShingleSets,
    draw_pivots,
    intersection_size,
    jaccard,
    verify_buckets,
    verify_pairs,
)
from mtnlg_data.exchange import Numbering, Rows, write_rows
from mtnlg_data.job import Done
from mtnlg_data.text.arrays import texts_of
from mtnlg_data.text.characters import character_kinds, fold_case
from mtnlg_data.text.hashing import hash_strings
from mtnlg_data.text.words import hashed_words

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

sorted_sets = st.sets(st.integers(0, 2**64 - 1), max_size=40).map(lambda values: np.array(sorted(values), np.uint64))


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
    texts=st.lists(st.text(alphabet="aAbÉé .\n", max_size=30), max_size=6),
    kind=st.sampled_from(["word", "character"]),
    length=st.integers(1, 6),
)
def test_shingles_are_runs_of_lower_cased_words_or_characters(texts: list[str], kind: str, length: int) -> None:
    values, bounds = hash_shingles(pa.array(texts, pa.large_string()), kind, length)  # type: ignore[arg-type]
    known: dict[tuple[str, ...], int] = {}
    for number, text in enumerate(texts):
        low = text.lower()
        units = re.findall(r"\w+", low) if kind == "word" else list(" ".join(low.split()))
        n = min(length, len(units))
        runs = [tuple(units[i : i + n]) for i in range(len(units) - n + 1)] if units else []
        ours = values[bounds[number] : bounds[number + 1]].tolist()
        assert len(ours) == len(runs)
        assert all(known.setdefault(run, value) == value for run, value in zip(runs, ours, strict=True))
    assert len(set(known.values())) == len(known)


@given(
    st.lists(
        st.text("aAÉ_é9 .\nİΣς漢カไ\u0e31\U0001d400\0ह\u093f\u0301\u200d", max_size=9).map(lambda text: text * 9),
        max_size=5,
    )
)
@example(["aÉ" * 33, "x" * 64 + " " + "Σ" * 65 + ".b"])
def test_words_of_utf8_hash_as_those_of_folded_strings(texts: list[str]) -> None:
    words = hashed_words([fold_case(text) for text in texts])
    column = texts_of(pa.array(texts, pa.large_string()))
    hashes, bounds, characters = hash_words(*column, folded_codes(), character_kinds())
    assert hashes.tolist() == words.hashes.tolist()
    assert bounds.tolist() == words.bounds.tolist()
    assert characters.tolist() == [len(re.findall("[漢カไ\u0e31]", text)) for text in texts]


@settings(max_examples=40)  # through files
@given(
    keys=st.lists(st.lists(st.integers(0, 9), max_size=12), min_size=1, max_size=3),
    size=st.sampled_from([16, 64, 9999]),
)
def test_clusters_are_scipys_components_of_shared_keys(
    keys: list[list[int]], size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Document n has the n-th key of each list; a cluster goes by its lowest document, one of one is none."""
    folder, numbering = tmp_path_factory.mktemp("clusters"), Numbering(12)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mtnlg_data.exchange.RUN_BYTES", size)
        with write_rows(Rows.path(folder, 0)) as rows:
            for band, of_band in enumerate(keys):
                rows.add(np.array(of_band, np.uint64) + np.uint64(10 * band), {"document": np.arange(len(of_band))})
        (bands,) = Rows(folder, [None], "", print).ranges(1)
        link_bands(bands, folder / "links")
        write_clusters([Done(folder / "links", "")], Rows.path(folder / "roots", 0), numbering=numbering)
        (roots,) = Rows(folder / "roots", [None], "", print).ranges(1)
        documents = numbering.numbers(roots.column("sort", np.uint64)).tolist()
        found = dict(zip(documents, roots.column("root", np.int64).tolist(), strict=True))
    twos = [(own, *pair) for own in keys for pair in itertools.combinations(range(len(own)), 2)]
    pairs = [(one, other) for own, one, other in twos if own[one] == own[other]]
    array = np.array(pairs, np.int64).reshape(-1, 2)
    graph = coo_array((np.ones(len(pairs)), (array[:, 0], array[:, 1])), shape=(12, 12))
    _, component = connected_components(graph, directed=False)
    linked = {document for pair in pairs for document in pair}
    assert found == {document: component.tolist().index(component[document]) for document in sorted(linked)}


@given(texts=st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=1, max_size=8))
def test_content_hashes_are_equal_where_shingles_and_repeats_are(texts: list[list[int]]) -> None:
    shingles = np.array(list(itertools.chain(*texts)), np.uint64)
    bounds = np.cumsum([0, *map(len, texts)])
    hashes = content_hashes(shingles, bounds)
    for one, other in itertools.combinations(range(len(texts)), 2):
        equal = sorted(texts[one]) == sorted(texts[other])
        assert [(half[one] == half[other]) for half in hashes] == [equal, equal]


def test_kept_copy_may_be_alone_in_its_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mtnlg_data.exchange.RUN_BYTES", 4 * 40)  # four rows
    numbering, same = Numbering(9), np.full(9, 7, np.uint64)
    books, web = hash_strings(pa.array(["books", "web"]))
    sources = np.array([web] * 8 + [books])
    with write_rows(Rows.path(tmp_path, 0)) as runs:
        runs.add(same, {"high": same, "source": sources, "order": same, "document": np.arange(9)})
    (contents,) = Rows(tmp_path, [None], "", print).ranges(1)
    assert [len(table) for table in contents.tables()] == [4, 4, 1]
    find_copies(contents, Rows.path(tmp_path / "copies", 0), numbering=numbering, priority=["books"])
    (copies,) = Rows(tmp_path / "copies", [None], "", print).ranges(1)
    pairs = zip(*(copies.column(name, np.uint64).tolist() for name in ("sort", "other", "stays")), strict=True)
    ours = [(key >> numbering.shift, other, stays) for key, other, stays in pairs]
    assert sorted(ours) == sorted([*((n, 8, True) for n in range(8)), *((8, n, False) for n in range(8))])


# --- verification ----------------------------------------------------------------------------------------------------


def store_sets(sets_: Sequence[NDArray[np.uint64]]) -> ShingleSets:
    """Store the sets back to back, the last first."""
    ends = np.cumsum([len(one) for one in sets_[::-1]])[::-1].astype(np.int64)
    values = np.concatenate([np.empty(0, np.uint64), *sets_[::-1]])
    return ShingleSets(values, ends - np.array([len(one) for one in sets_], np.int64), ends)


@given(one=sorted_sets, other=sorted_sets)
def test_intersection_and_jaccard_match_sets(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> None:
    expected = len(set(one.tolist()) & set(other.tolist()))
    assert intersection_size(one, other) == expected
    if len(one):
        (similarity,) = jaccard(np.array([[0, 1]]), store_sets([one, other]))
        assert similarity == expected / len(set(one.tolist()) | set(other.tolist()))


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


def no_order(candidates: int) -> tuple[NDArray[np.uint32], NDArray[np.uint64], NDArray[np.int64]]:
    return np.zeros(candidates, np.uint32), np.zeros(candidates, np.uint64), np.ones(candidates, np.int64)


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
