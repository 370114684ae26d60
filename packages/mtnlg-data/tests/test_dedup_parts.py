"""The parts of deduplication, each against an oracle: datasketch, plain Python, a plain union-find."""

from __future__ import annotations

import hashlib
import itertools
import re
from typing import TYPE_CHECKING

import numpy as np
from datasketch import MinHash
from hypothesis import given
from hypothesis import strategies as st

from mtnlg_data.dedup.bands import buckets
from mtnlg_data.dedup.graph import components
from mtnlg_data.dedup.ragged import Ragged, write_ragged
from mtnlg_data.dedup.representative import representatives
from mtnlg_data.dedup.signature import NO_KEY, _minhash_by_arrays, band_keys, minhash, permutations, shingles
from mtnlg_data.dedup.verify import EDGE, _shared_by_arrays, duplicates, jaccard, shared

if TYPE_CHECKING:
    import pytest
    from numpy.typing import NDArray

sorted_sets = st.sets(st.integers(-(2**63), 2**63 - 1), max_size=40).map(
    lambda values: np.array(sorted(values), np.int64)
)


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
    assert _minhash_by_arrays(flat, bounds, a, b).tolist() == ours.tolist()


@given(
    texts=st.lists(st.text(alphabet="aAbÉé .\n", max_size=30), max_size=6),
    kind=st.sampled_from(["word", "character"]),
    length=st.integers(1, 6),
)
def test_shingles_are_runs_of_lower_cased_words_or_characters_and_a_short_text_is_one(
    texts: list[str], kind: str, length: int
) -> None:
    values, bounds = shingles(texts, kind, length)  # type: ignore[arg-type]
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
    one=st.lists(st.integers(0, 2**32 - 1), min_size=12, max_size=12),
    changed=st.sets(st.integers(0, 11)),
)
def test_two_texts_share_the_key_of_a_band_exactly_where_all_its_rows_agree(one: list[int], changed: set[int]) -> None:
    other = [value ^ (place in changed) for place, value in enumerate(one)]
    keys = band_keys(np.array([one, other], np.uint32), 4)
    assert (keys != NO_KEY).all()
    agrees = [not changed & set(range(3 * band, 3 * band + 3)) for band in range(4)]
    assert (keys[0] == keys[1]).tolist() == agrees


@given(keys=st.lists(st.integers(0, 5), max_size=40))
def test_a_bucket_holds_the_documents_of_one_key_and_those_without_a_key_are_in_none(keys: list[int]) -> None:
    members, sizes = buckets(np.array(keys, np.uint64))
    ours = [part.tolist() for part in np.split(members, np.cumsum(sizes)[:-1])] if len(sizes) else []
    plain = [[i for i, key in enumerate(keys) if key == wanted] for wanted in range(1, 6)]
    assert ours == [documents for documents in plain if len(documents) > 1]


@given(one=sorted_sets, other=sorted_sets)
def test_the_intersection_is_counted_exactly_with_and_without_numba(
    one: NDArray[np.int64], other: NDArray[np.int64]
) -> None:
    common = len(set(one.tolist()) & set(other.tolist()))
    assert shared(one, other) == _shared_by_arrays(one, other) == common
    if len(one):
        assert jaccard(one, other) == common / len(set(one.tolist()) | set(other.tolist()))


@given(
    sets=st.lists(st.sets(st.integers(0, 6), min_size=1), min_size=2, max_size=12),
    draws=st.lists(st.integers(0, 10**9), min_size=11, max_size=11),
)
def test_every_pair_of_a_bucket_of_twelve_is_joined_or_below_the_threshold_or_behind_a_pivot(
    sets: list[set[int]], draws: list[int]
) -> None:
    """What no edge touches as a duplicate was compared with every pivot: no two such documents are alike."""
    arrays = [np.array(sorted(one)) for one in sets]
    edges = duplicates(list(range(len(sets))), arrays.__getitem__, 0.8, iter(draws))
    for one, other, similarity in edges:
        assert similarity == len(sets[one] & sets[other]) / len(sets[one] | sets[other]) >= 0.8
    removed = {other for _, other, _ in edges}
    assert len(removed) == len(edges)
    left = [number for number in range(len(sets)) if number not in removed]
    for one, other in itertools.combinations(left, 2):
        assert len(sets[one] & sets[other]) / len(sets[one] | sets[other]) < 0.8


def test_a_bucket_gets_no_more_rounds_than_it_has_draws() -> None:
    different = [np.array([number]) for number in range(30)]
    asked: list[int] = []

    def shingles_of(number: int) -> NDArray[np.int64]:
        asked.append(number)
        return different[number]

    assert duplicates(list(range(30)), shingles_of, 0.8, iter([0] * 11)) == []
    assert len(asked) == sum(1 + 29 - turn for turn in range(11))


@given(edges=st.lists(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=10), min_size=1, max_size=4))
def test_components_are_those_of_a_plain_union_find(
    edges: list[list[tuple[int, int]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("edges")
    paths = [folder / f"{number}.npy" for number in range(len(edges))]
    for path, band in zip(paths, edges, strict=True):
        np.save(path, np.array([(one, other, 1.0) for one, other in band], EDGE))
    parent = list(range(21))

    def root(node: int) -> int:
        return node if parent[node] == node else root(parent[node])

    for one, other in itertools.chain(*edges):
        parent[max(root(one), root(other))] = min(root(one), root(other))
    touched = sorted(set(itertools.chain(*itertools.chain(*edges))))
    roots = list(dict.fromkeys(root(node) for node in touched))
    nodes, component = components(paths)
    assert nodes.tolist() == touched
    assert component.tolist() == [roots.index(root(node)) for node in touched]


def test_the_best_source_stays_and_among_equals_the_lowest_hash_whatever_the_order() -> None:
    ids, sources = ["a", "b", "c", "d", "e"], ["web", "books", "books", "unknown", "web"]
    component = np.array([0, 0, 0, 1, 1])
    kept = representatives(ids, sources, component, ["books", "web"])
    assert sources[kept[0]] == "books"
    assert ids[kept[1]] == "e"
    back = representatives(ids[::-1], sources[::-1], component[::-1], ["books", "web"])
    assert [ids[k] for k in kept] == [ids[::-1][k] for k in back]
    many = [f"web/{number}" for number in range(20)]
    (lowest,) = representatives(many, ["web"] * 20, np.zeros(20, np.int64), ["web"])
    assert many[lowest] == min(many, key=lambda name: hashlib.blake2b(name.encode(), digest_size=8).digest())


@given(arrays=st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5), max_size=10))
def test_a_ragged_file_gives_its_arrays_back(arrays: list[list[int]], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("ragged") / "x"
    halves = [arrays[:3], arrays[3:]]
    parts = [
        (np.array(list(itertools.chain(*half)), np.int64), np.array([len(one) for one in half], np.int64))
        for half in halves
    ]
    assert write_ragged(path, parts) == len(arrays)
    ragged = Ragged(path)
    assert [ragged[number].tolist() for number in range(len(ragged))] == arrays
