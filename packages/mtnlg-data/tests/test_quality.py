"""The quality filter: it learns, it draws by the paper's rule, and only the seed and the ids decide a draw."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtnlg_data.classifier import Classifier, _bucket, _distinct_by_arrays, area_under_curve, hashed, train
from mtnlg_data.console import Failure
from mtnlg_data.document import Document, batches, shard_name, write_documents
from mtnlg_data.engine import Local, manifest_path
from mtnlg_data.files import sha256, write_json
from mtnlg_data.quality import QualitySettings, draws, keep_probability, quality
from mtnlg_data.words import runs_of, words_of

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from mtnlg_data.engine import Summary

SETTINGS = QualitySettings(sample=150)


# --- the draw --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("score", "alpha", "chance"), [(0.0, 3, 0.125), (0.5, 3, 0.2963), (1.0, 3, 1.0), (0.0, 9, 2**-9)]
)
def test_the_chance_to_be_kept_is_the_papers(score: float, alpha: float, chance: float) -> None:
    assert keep_probability(np.array([score]), alpha)[0] == pytest.approx(chance, abs=1e-4)


def test_the_chance_is_that_of_a_pareto_draw_above_one_minus_the_score() -> None:
    pareto = np.random.default_rng(0).pareto(3.0, 200_000)
    for score in (0.0, 0.3, 0.7, 0.95):
        # 5 standard errors of a share over 200,000 draws
        assert keep_probability(np.array([score]), 3.0)[0] == pytest.approx((pareto > 1 - score).mean(), abs=5 * 0.0012)


def test_draws_are_uniform_and_depend_on_seed_purpose_and_id_alone() -> None:
    ids = [f"crawl/{number}" for number in range(20_000)]
    values = draws(1, "pareto", ids)
    assert values.min() >= 0
    assert values.max() < 1
    # chi-squared over 20 cells has mean 19 and standard deviation 6.2
    cells = np.histogram(values, 20, (0, 1))[0]
    assert ((cells - 1000) ** 2 / 1000).sum() < 19 + 5 * 6.2
    assert (draws(1, "pareto", ids[::-1])[::-1] == values).all()
    for other in (draws(2, "pareto", ids), draws(1, "sample", ids)):
        assert abs(np.corrcoef(values, other)[0, 1]) < 5 / np.sqrt(len(ids))


# --- the classifier --------------------------------------------------------------------------------------------------


@given(st.lists(st.text(max_size=80), max_size=6))
def test_with_and_without_numba_a_text_falls_into_the_same_buckets(texts: list[str]) -> None:
    words = words_of([text.lower() for text in texts])
    singles, pairs = (_bucket(hashes) for hashes in (words.hashes, runs_of(words.hashes, 2)))
    found, begins = hashed(texts)
    by_arrays, bounds = _distinct_by_arrays(singles, pairs, words.bounds)
    assert begins.tolist() == bounds.tolist()
    for begin, end in pairwise(begins):
        assert sorted(found[begin:end]) == by_arrays[begin:end].tolist()


def test_a_score_is_the_logistic_of_the_mean_weight_of_its_distinct_buckets() -> None:
    rng = np.random.default_rng(0)
    model = Classifier(rng.integers(-(1 << 20), 1 << 20, 1 << 20).astype(np.int32), 12345)
    text = "One two three one two, ONE two!"
    buckets, bounds = hashed([text])
    assert bounds.tolist() == [0, 3 + 4]  # one two three | one-two two-three three-one two-one
    logit = (model.weights[buckets].astype(float).sum() / np.sqrt(7) + 12345) / (1 << 20)
    assert model.scores(["", text, ""])[1] == pytest.approx(1 / (1 + np.exp(-logit)), rel=1e-12)


@given(st.lists(st.text(max_size=200), min_size=1, max_size=6))
def test_a_score_does_not_depend_on_the_texts_beside_it(texts: list[str]) -> None:
    model = Classifier(np.arange(-(1 << 19), 1 << 19, dtype=np.int32) * 50, 7)
    together = model.scores(texts)
    assert together.tolist() == [model.scores([text])[0] for text in texts]


def test_what_is_learnt_tells_good_from_bad_and_is_the_same_every_time(tmp_path: Path, corpus: ModuleType) -> None:
    texts = [corpus.text(n, good=n % 2 == 0) for n in range(400)]
    labels = np.arange(400) % 2 == 0
    models = [train(lambda rows: [texts[row] for row in rows], labels[:300], 1, 5) for _ in range(2)]
    assert (models[0].weights == models[1].weights).all()
    models[0].save(tmp_path / "model.npy")
    scores = Classifier.load(tmp_path / "model.npy").scores(texts[300:])
    assert area_under_curve(scores[labels[300:]], scores[~labels[300:]]) > 0.99
    assert (models[1].scores(texts[300:]) == scores).all()


@given(st.lists(st.integers(0, 5), min_size=1), st.lists(st.integers(0, 5), min_size=1))
def test_the_area_counts_pairs_in_order_and_ties_as_half(good: list[int], bad: list[int]) -> None:
    pairs = [(g > b) + (g == b) / 2 for g in good for b in bad]
    assert area_under_curve(np.array(good, float), np.array(bad, float)) == pytest.approx(np.mean(pairs))


# --- the stage -------------------------------------------------------------------------------------------------------


def write_shards(
    folder: Path, corpus: ModuleType, cut: int, documents: int = 400
) -> tuple[list[Path], dict[str, Summary]]:
    """Books, good; a crawl, half of it bad; and code, which is neither: each over ``cut`` shards."""
    texts = {
        "books": [corpus.text(number) for number in range(documents)],
        "crawl": [corpus.text(1000 + number, good=number % 2 == 0) for number in range(documents)],
        "code": ["x = 1"] * 10,
    }
    shards = []
    for source, own in texts.items():
        rows = [Document(f"{source}/{number}", source, text) for number, text in enumerate(own)]
        for part in range(cut):
            path = folder / shard_name(source, part)
            write_documents(path, batches(rows[part::cut]))
            write_json(manifest_path(path), {"key": "", "sha256": sha256(path), "summary": {}})
            shards.append(path)
    counts = {source: sum(map(len, own)) for source, own in texts.items()}
    before = {source: {"documents_out": len(own), "characters_out": counts[source]} for source, own in texts.items()}
    return shards, before


def judge(folder: Path, corpus: ModuleType, cut: int = 1, **how: int) -> tuple[Summary, dict[str, float]]:
    shards, before = write_shards(folder, corpus, cut, **how)
    account = quality(shards, folder / "out", SETTINGS, ["crawl"], ["books"], before=before, engine=Local(1))
    kept = [row for path in sorted((folder / "out").glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    return account, {row["id"]: row["score"] for row in kept}


def test_good_documents_stay_and_most_bad_ones_go_and_the_account_adds_up(tmp_path: Path, corpus: ModuleType) -> None:
    account, kept = judge(tmp_path, corpus)
    good = sum(int(name.partition("/")[2]) % 2 == 0 for name in kept)
    bad = len(kept) - good
    assert good > 3 * bad
    assert account["sources"]["crawl"]["dropped"] == {"low_quality": 400 - len(kept)}
    assert account["sources"]["code"]["documents_out"] == 10
    found = account["quality"]
    # Half of what the classifier is told is bad is good: it cannot be right about more than three quarters.
    assert 0.55 < found["accuracy"] < 0.95
    assert 0.55 < found["auc"] < 0.95
    assert len(found["edges"]) == 21
    assert sum(found["candidates"]) == 400
    assert sum(found["kept"]) == len(kept)
    assert 0 < sum(found["positives"]) <= found["held_out"]
    assert found["trained_on"] + found["held_out"] == pytest.approx(300, abs=50)  # a sample by draws, not by count


def test_the_cut_into_shards_changes_no_draw_and_no_score(tmp_path: Path, corpus: ModuleType) -> None:
    assert judge(tmp_path / "one", corpus, cut=1)[1] == judge(tmp_path / "three", corpus, cut=3)[1]


def test_too_few_documents_to_learn_from_are_one_line(tmp_path: Path, corpus: ModuleType) -> None:
    with pytest.raises(Failure, match=r"19 documents of books against 19 of crawl are too few.*20 of each"):
        judge(tmp_path, corpus, documents=19)
