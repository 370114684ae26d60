"""The parts of deduplication, each against an oracle: datasketch, scipy, plain Python."""

from __future__ import annotations

import hashlib
import itertools
import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from datasketch import MinHash
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from mtnlg_data.dedup import representatives, verify
from mtnlg_data.dedup.bands import NO_KEY, BandUnit, SignatureRun, link_bands, read_links, run_file_bytes, write_run
from mtnlg_data.dedup.candidates import keys_of_rows, shingle_sets
from mtnlg_data.dedup.clusters import GROUP_BYTES, group_ends
from mtnlg_data.dedup.minhash import (
    _minhash_numpy,
    _shingle_ngrams_numpy,
    band_keys,
    hash_shingles,
    minhash,
    permutations,
    shingle_ngrams,
)
from mtnlg_data.dedup.representatives import choose_representatives
from mtnlg_data.dedup.union_find import _unite_scipy, components, new_forest, unite
from mtnlg_data.dedup.verify import (
    Candidates,
    ShingleSets,
    _intersection_size_numpy,
    buckets,
    draw_pivots,
    gather_candidates,
    intersection_size,
    jaccard,
    verify_buckets,
    verify_pairs,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

sorted_sets = st.sets(st.integers(0, 2**64 - 1), max_size=40).map(lambda values: np.array(sorted(values), np.uint64))


@given(
    values=st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=30), min_size=1, max_size=4),
    seed=st.integers(0, 2**32 - 1),
)
def test_signatures_are_datasketchs_bit_for_bit_with_and_without_numba(values: list[list[int]], seed: int) -> None:
    a, b = permutations(260, seed)
    flat = np.array(list(itertools.chain(*values)), np.uint32)
    bounds = np.cumsum([0, *map(len, values)])
    ours = minhash(flat, bounds, a, b)
    assert ours.dtype == np.uint32
    for text, signature in zip(values, ours, strict=True):
        theirs = MinHash(260, seed=seed, hashfunc=lambda value: value, scheme="affine32")
        theirs.update_batch(text)
        assert signature.tolist() == theirs.hashvalues.tolist()
    assert _minhash_numpy(flat, bounds, a, b).tolist() == ours.tolist()


@given(
    texts=st.lists(st.text(alphabet="aAbÉé .\n", max_size=30), max_size=6),
    kind=st.sampled_from(["word", "character"]),
    length=st.integers(1, 6),
)
def test_shingles_are_runs_of_lower_cased_words_or_characters_and_a_short_text_is_one(
    texts: list[str], kind: str, length: int
) -> None:
    values, bounds = hash_shingles(texts, kind, length)  # type: ignore[arg-type]
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


@given(texts=st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=9), max_size=5), length=st.integers(1, 4))
def test_numba_and_numpy_make_the_same_runs(texts: list[list[int]], length: int) -> None:
    units = np.array(list(itertools.chain(*texts)), np.uint64)
    bounds = np.cumsum([0, *map(len, texts)])
    out = np.cumsum([0, *(max(len(text) - length + 1, min(1, len(text))) for text in texts)])
    assert shingle_ngrams(units, bounds, out).tolist() == _shingle_ngrams_numpy(units, bounds, out).tolist()


@given(
    one=st.lists(st.integers(0, 2**32 - 1), min_size=12, max_size=12),
    changed=st.sets(st.integers(0, 11)),
)
def test_two_texts_share_the_key_of_a_band_exactly_where_all_its_rows_agree(one: list[int], changed: set[int]) -> None:
    other = [value ^ (place in changed) for place, value in enumerate(one)]
    keys = band_keys(np.array([one, other], np.uint32), 4)
    assert (keys != NO_KEY).all()
    agrees = [not changed & set(range(3 * band, 3 * band + 3)) for band in range(4)]
    assert (keys[0] == keys[1]).tolist() == agrees


@settings(max_examples=40)  # through files
@given(
    shards=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=12), min_size=1, max_size=4),
    parts=st.integers(1, 3),
)
def test_links_join_the_documents_of_one_key_and_no_others_over_shards_and_parts(
    shards: list[list[int]], parts: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Keys over the whole 64-bit range, 0 for a document without a key; the second of two bands is linked."""
    folder = tmp_path_factory.mktemp("runs")
    keys = [np.array(shard, np.uint64) * np.uint64(2**64 // 6) for shard in shards]
    firsts = np.cumsum([0, *map(len, shards)])
    runs = [SignatureRun(folder / f"{n}.run", int(firsts[n]), len(shard), 2) for n, shard in enumerate(shards)]
    for run, own in zip(runs, keys, strict=True):
        write_run(run.path, np.stack([np.ones_like(own), own]), np.arange(len(own), dtype=np.uint32))
    parent = new_forest(int(firsts[-1]))
    for part in range(parts):
        unit = BandUnit(range(1, 2), part, parts, runs, "", folder / f"{part}.links")
        assert link_bands(unit)["links"] == sum(map(len, read_links(unit.output)))
        for pairs in read_links(unit.output):
            unite(parent, pairs)
    flat = np.concatenate(keys)
    nodes, component = components(parent)
    ours = {frozenset(nodes[component == number].tolist()) for number in set(component.tolist())}
    plain = {frozenset(np.flatnonzero(flat == key).tolist()) for key in set(flat.tolist()) - {0}}
    assert ours == {members for members in plain if len(members) > 1}


@settings(max_examples=40)
@given(keys=st.lists(st.lists(st.integers(0, 2**64 - 1), min_size=3, max_size=3), min_size=1, max_size=20))
def test_a_run_gives_back_the_keys_and_counts_of_any_rows(
    keys: list[list[int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    by_row = np.array(keys, np.uint64)
    counts = np.arange(len(keys), dtype=np.uint32)
    run = SignatureRun(tmp_path_factory.mktemp("run") / "x", 0, len(keys), 3)
    write_run(run.path, by_row.T.copy(), counts)
    rows = np.arange(0, len(keys), 2)
    assert keys_of_rows(run, rows).tolist() == by_row[rows].tolist()
    assert run.counts.tolist() == counts.tolist()
    assert (np.diff(run.keys.astype(object), axis=1) >= 0).all()
    assert run.path.stat().st_size == run_file_bytes(len(keys), 3)


@given(sizes=st.lists(st.integers(1, 6), max_size=30), data=st.data())
def test_a_group_ends_with_the_cluster_that_fills_it(sizes: list[int], data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.integers(1, GROUP_BYTES), min_size=sum(sizes), max_size=sum(sizes)))
    begins = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])[:-1]
    ends = group_ends(begins, np.array(weights, np.int64)).tolist()
    assert ends == sorted(set(ends))
    assert ends[-1:] == ([sum(sizes)] if sizes else [])
    assert set(ends) <= {*begins.tolist(), sum(sizes)}
    for begin, end in itertools.pairwise([0, *ends]):
        last = max(first for first in begins.tolist() if first < end)
        assert sum(weights[begin:last]) < GROUP_BYTES  # without its last cluster it was not full
        assert end == sum(sizes) or sum(weights[:end]) // GROUP_BYTES > sum(weights[:begin]) // GROUP_BYTES


@given(keys=st.lists(st.integers(1, 5), max_size=40))
def test_a_bucket_holds_the_candidates_of_one_key(keys: list[int]) -> None:
    members, sizes = buckets(np.array(keys, np.uint64))
    ours = [part.tolist() for part in np.split(members, np.cumsum(sizes)[:-1])] if len(sizes) else []
    plain = [[i for i, key in enumerate(keys) if key == wanted] for wanted in range(1, 6)]
    assert ours == [candidates for candidates in plain if len(candidates) > 1]


@given(texts=st.lists(st.lists(st.integers(0, 9), max_size=12), max_size=6))
def test_sets_are_the_shingles_of_each_text_once_ascending(texts: list[list[int]]) -> None:
    flat = np.array(list(itertools.chain(*texts)), np.uint64)
    values, bounds = shingle_sets(flat, np.cumsum([0, *map(len, texts)]))
    ours = [values[begin:end].tolist() for begin, end in itertools.pairwise(bounds.tolist())]
    assert ours == [sorted(set(text)) for text in texts]


# --- verification ----------------------------------------------------------------------------------------------------


def store_sets(sets_: Sequence[NDArray[np.uint64]]) -> ShingleSets:
    """Store the sets back to back, the last first."""
    ends = np.cumsum([len(one) for one in sets_[::-1]])[::-1].astype(np.int64)
    values = np.concatenate([np.empty(0, np.uint64), *sets_[::-1]])
    return ShingleSets(values, ends - np.array([len(one) for one in sets_], np.int64), ends)


@given(one=sorted_sets, other=sorted_sets)
def test_the_intersection_is_counted_exactly_with_and_without_numba(
    one: NDArray[np.uint64], other: NDArray[np.uint64]
) -> None:
    expected = len(set(one.tolist()) & set(other.tolist()))
    assert intersection_size(one, other) == _intersection_size_numpy(one, other) == expected
    if len(one):
        (similarity,) = jaccard(np.array([[0, 1]]), store_sets([one, other]))
        assert similarity == expected / len(set(one.tolist()) | set(other.tolist()))


plain_verified = getattr(verify_buckets, "py_func", verify_buckets)  # what runs where there is no numba
small_sets = st.lists(st.sets(st.integers(0, 6), min_size=1), min_size=2, max_size=12)


@given(
    sets_=st.lists(small_sets, min_size=1, max_size=3),
    draws_=st.lists(st.integers(0, 2**63 - 1), min_size=33, max_size=33),
)
def test_every_pair_of_a_bucket_of_twelve_is_joined_or_below_the_threshold_or_behind_a_pivot(
    sets_: list[list[set[int]]], draws_: list[int]
) -> None:
    """A document that is no pair's duplicate was compared with every pivot: no two of them are similar."""
    flat = list(itertools.chain(*sets_))
    stored = store_sets([np.array(sorted(one), np.uint64) for one in flat])
    bounds = np.cumsum([0, *map(len, sets_)])
    turns = np.array(draws_).reshape(3, 11)[: len(sets_)]
    pairs = verify_buckets(np.arange(len(flat)), bounds, turns, stored, 0.8)
    assert pairs.tolist() == plain_verified(np.arange(len(flat)), bounds, turns, stored, 0.8).tolist()
    for one, other in pairs.tolist():
        assert len(flat[one] & flat[other]) / len(flat[one] | flat[other]) >= 0.8
    removed = set(pairs[:, 1].tolist())
    assert len(removed) == len(pairs)
    for begin, end in itertools.pairwise(bounds.tolist()):
        assert all(begin <= one < end for pair in pairs.tolist() for one in pair if begin <= pair[0] < end)
        left = [number for number in range(begin, end) if number not in removed]
        for one, other in itertools.combinations(left, 2):
            assert len(flat[one] & flat[other]) / len(flat[one] | flat[other]) < 0.8


@pytest.mark.parametrize("candidates", [2, 3])
def test_a_pair_that_just_reaches_the_threshold_is_a_duplicate(candidates: int) -> None:
    """In a bucket of two, and in a larger one whose third candidate is like neither."""
    sets_ = [np.arange(4, dtype=np.uint64), np.arange(5, dtype=np.uint64), np.arange(90, 99, dtype=np.uint64)]
    places, sets = np.arange(candidates), store_sets(sets_[:candidates])
    group = Candidates(places, places, pa.table({}), np.ones((candidates, 1), np.uint64), sets)
    for threshold, pairs in ((0.8, [[0, 1]]), (np.nextafter(0.8, 1), [])):
        assert np.sort(np.concatenate(list(verify_pairs(group, threshold, 11, 1)))).tolist() == pairs


@pytest.mark.parametrize("rounds", [1, 2, 11])
def test_a_bucket_gets_no_more_rounds_than_it_has_draws(rounds: int) -> None:
    """Each round finds one of the thirty pairs of twins in the bucket."""
    twins = store_sets([np.array([number // 2], np.uint64) for number in range(60)])
    turns = draw_pivots(np.array([7], np.uint64), 3, rounds, 1)
    pairs = verify_buckets(np.arange(60), np.array([0, 60]), turns, twins, 0.8)
    assert len(pairs) == rounds
    assert (pairs // 2 == pairs[:, :1] // 2).all()


def test_draws_depend_on_seed_band_key_and_round_and_on_nothing_else() -> None:
    keys = np.array([3, 5, 2**64 - 1], np.uint64)
    numbers = draw_pivots(keys, 2, 11, 1)
    assert numbers.shape == (3, 11)
    assert (numbers >= 0).all()
    assert draw_pivots(keys[1:], 2, 5, 1).tolist() == numbers[1:, :5].tolist()
    assert len({*numbers.ravel(), *draw_pivots(keys, 3, 11, 1).ravel(), *draw_pivots(keys, 2, 11, 2).ravel()}) == 99


# --- components ------------------------------------------------------------------------------------------------------


@given(links=st.lists(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=10), min_size=1, max_size=4))
def test_components_are_scipys_and_numbered_by_their_first_documents(links: list[list[tuple[int, int]]]) -> None:
    parent, parent_scipy = new_forest(21), new_forest(21)
    for batch in links:
        unite(parent, np.array(batch, np.int64).reshape(-1, 2))
        _unite_scipy(parent_scipy, np.array(batch, np.int64).reshape(-1, 2))
    everything = np.array(list(itertools.chain(*links)), np.int64).reshape(-1, 2)
    graph = coo_array((np.ones(len(everything)), (everything[:, 0], everything[:, 1])), shape=(21, 21))
    _, theirs = connected_components(graph, directed=False)
    nodes, component = components(parent)
    assert nodes.tolist() == sorted(set(everything.ravel().tolist()))
    firsts = list(dict.fromkeys(theirs[nodes].tolist()))
    assert component.tolist() == [firsts.index(label) for label in theirs[nodes]]
    assert [part.tolist() for part in components(parent_scipy)] == [nodes.tolist(), component.tolist()]


def test_components_of_graphs_with_deep_trees_are_scipys() -> None:
    """Links in random order grow trees of many levels, where the root of a node is far above its parent."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        links = rng.integers(0, 60, (55, 2))
        parent = new_forest(60)
        for batch in np.array_split(links, 5):
            unite(parent, batch)
        graph = coo_array((np.ones(len(links)), (links[:, 0], links[:, 1])), shape=(60, 60))
        _, theirs = connected_components(graph, directed=False)
        nodes, component = components(parent)
        firsts = list(dict.fromkeys(theirs[nodes].tolist()))
        assert component.tolist() == [firsts.index(label) for label in theirs[nodes]]


def test_the_best_source_stays_and_among_equals_the_lowest_hash_whatever_the_order() -> None:
    ids, sources = ["a", "b", "c", "d", "e"], ["web", "books", "books", "unknown", "web"]
    component = np.array([0, 0, 0, 1, 1])
    kept = choose_representatives(pa.array(ids), pa.array(sources), component, ["books", "web"])
    assert sources[kept[0]] == "books"
    assert ids[kept[1]] == "e"
    back = choose_representatives(pa.array(ids[::-1]), pa.array(sources[::-1]), component[::-1], ["books", "web"])
    assert [ids[k] for k in kept] == [ids[::-1][k] for k in back]
    many = [f"web/{number}" for number in range(20)]
    (lowest,) = choose_representatives(pa.array(many), pa.array(["web"] * 20), np.zeros(20, np.int64), ["web"])
    assert many[lowest] == min(many, key=lambda name: hashlib.blake2b(name.encode(), digest_size=8).digest())


def test_of_keys_with_one_hash_the_lowest_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(representatives, "_key_hash", lambda key: key.startswith("b"))
    keys, component = pa.array(["b1", "c", "a2", "a1", "b0", "b2"]), np.array([1, 0, 0, 0, 1, 1])
    kept = choose_representatives(keys, pa.array(["web"] * 6), component, [])
    assert keys.take(pa.array(kept)).to_pylist() == ["a1", "b0"]


def write_candidates(folder: Path, files: list[list[list[int]]]) -> list[tuple[Path, list[int]]]:
    """Files of candidates with these sets, and the batches of each."""
    written, place = [], 0
    for number, sets in enumerate(files):
        places = list(range(place, place := place + len(sets)))
        names = [f"d{each}" for each in places]
        columns = {
            "place": pa.array(places, pa.int64()),
            "number": pa.array(places, pa.int64()),
            **dict.fromkeys(("id", "key", "source"), pa.array(names)),
            "keys": pa.array([[each] for each in places], pa.list_(pa.uint64(), 1)),
            "shingles": pa.array(sets, pa.large_list(pa.uint64())),
        }
        path = folder / f"{number}.arrow"
        with pa.ipc.new_file(str(path), pa.table(columns).schema) as writer:
            writer.write_batch(pa.record_batch(columns))
        written.append((path, [0]))
    return written


@pytest.mark.parametrize("collide", [False, True])
def test_equal_sets_are_in_memory_once_and_unequal_ones_of_one_hash_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collide: bool
) -> None:
    if collide:
        monkeypatch.setattr(verify, "_hash_sets", lambda _, offsets: np.zeros(len(offsets) - 1, np.uint64))
    files = [[[1, 2, 3], [4, 5, 6], [1, 2, 3]], [[1, 2, 3], [7, 8], [4, 5, 6], [1, 2, 3]] * 50]
    sets = gather_candidates(write_candidates(tmp_path, files), tmp_path).sets
    read = [sets.values[begin:end].tolist() for begin, end in zip(sets.starts, sets.ends, strict=True)]
    assert read == [each for file in files for each in file]
    if not collide:
        assert len(sets.values) == 3 + 3 + 2
