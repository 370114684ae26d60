"""The quality filter: it learns, it draws by the paper's rule, and only the seed and the ids decide a draw."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import language_model as language_models
import numpy as np
import pyarrow.parquet as pq
import pytest
import small_corpus as corpus
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from shards import run_here, stored_rows, write_shards
from sklearn.linear_model import SGDClassifier

from mtnlg_data import Document, Quality, load_recipe
from mtnlg_data.console import Failure, UsageFailure
from mtnlg_data.quality import classifier
from mtnlg_data.quality.classifier import Classifier, fit_classifier, hash_features, open_scorer, roc_auc
from mtnlg_data.quality.draws import keep_probability, uniform_draws

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from mtnlg_data.engine import Summary

SOURCES = {"books": {"curated": True}, "crawl": {"filtered": True}, "code": {}}


# --- the draw --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [3.0, 9.0])  # MT-NLG's, GPT-3's
def test_chance_is_a_pareto_draw_above_one_minus_score(alpha: float) -> None:
    pareto = np.random.default_rng(0).pareto(alpha, 200_000)
    for score in (0.0, 0.3, 0.7, 0.95):
        # 5 standard errors of a share over 200,000 draws
        assert keep_probability(np.array([score]), alpha)[0] == pytest.approx(
            (pareto > 1 - score).mean(), abs=5 * 0.0012
        )


def test_draws_are_uniform_and_depend_on_seed_purpose_and_id() -> None:
    ids = [f"crawl/{number}" for number in range(20_000)]
    values = uniform_draws(1, "pareto", ids)
    assert values.min() >= 0
    assert values.max() < 1
    # chi-squared over 20 cells has mean 19 and standard deviation 6.2
    cells = np.histogram(values, 20, (0, 1))[0]
    assert ((cells - 1000) ** 2 / 1000).sum() < 19 + 5 * 6.2
    assert (uniform_draws(1, "pareto", ids[::-1])[::-1] == values).all()
    for other in (uniform_draws(2, "pareto", ids), uniform_draws(1, "sample", ids)):
        assert abs(np.corrcoef(values, other)[0, 1]) < 5 / np.sqrt(len(ids))


# --- the classifier --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seed", "count"), [(1, 300), (9, 60)])
def test_learnt_weights_are_scikit_learns(monkeypatch: pytest.MonkeyPatch, seed: int, count: int) -> None:
    monkeypatch.setattr(classifier, "BATCH_TEXTS", 128)
    texts, labels = [corpus.text(n, good=n % 3 == 0) for n in range(count)], np.arange(count) % 3 == 0
    oracle = SGDClassifier(loss="log_loss", alpha=1e-4, average=True, random_state=seed)

    def features(rows: list[int]) -> csr_array:
        buckets, bounds = hash_features([texts[row] for row in rows])
        values = np.repeat(np.diff(bounds) ** -0.5, np.diff(bounds))
        of_texts = csr_array((values, buckets, bounds.astype(np.int32)), (len(rows), classifier.BUCKETS))
        of_texts.sort_indices()
        return of_texts

    for epoch in range(3):
        order = np.random.default_rng([seed, epoch]).permutation(count)
        for rows in np.split(order, range(128, count, 128)):
            oracle.partial_fit(features(rows.tolist()), labels[rows], classes=[False, True])
    model = fit_classifier(lambda rows: [texts[row] for row in rows], labels, seed, 3)
    assert (model.weights == np.rint(oracle.coef_[0] * (1 << 20))).all()
    assert model.bias == round(oracle.intercept_[0] * (1 << 20))
    assert model.scores(texts) == pytest.approx(oracle.predict_proba(features([*range(count)]))[:, 1], rel=1e-4)


def _write_array(path: Path, values: Any) -> None:  # noqa: ANN401  (any array)
    with path.open("wb") as file:
        np.save(file, values, allow_pickle=True)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.write_bytes(b"\x80\x04K\x01."), "not a classifier trained by quality"),
        (lambda path: _write_array(path, np.array([print], object)), "not a classifier trained by quality"),
        (lambda path: _write_array(path, np.zeros(10, np.int32)), r"40 bytes of int32 \(10,\)"),
        (
            lambda path: path.write_bytes(path.read_bytes()[:-1]),
            "not a classifier trained by quality: 4194311 bytes",
        ),
        (
            lambda path: path.write_bytes(path.read_bytes()[:-4] + bytes(4)),
            "trained on features of version 0, not 3; train it again",
        ),
    ],
)
def test_file_that_is_no_classifier_is_refused_unrun(
    tmp_path: Path, spoil: Callable[[Path], object], message: str
) -> None:
    path = tmp_path / "classifier.npy"
    Classifier(np.zeros(1 << 20, np.int32), 7).save(path)
    assert Classifier.load(path).bias == 7
    spoil(path)
    with pytest.raises(Failure, match=rf"classifier\.npy: .*{message}"):
        Classifier.load(path)


@given(st.lists(st.integers(0, 5), min_size=1), st.lists(st.integers(0, 5), min_size=1))
def test_the_area_counts_pairs_in_order_and_ties_as_half(good: list[int], bad: list[int]) -> None:
    pairs = [(g > b) + (g == b) / 2 for g in good for b in bad]
    assert roc_auc(np.array(good, float), np.array(bad, float)) == pytest.approx(np.mean(pairs))


# --- the stage -------------------------------------------------------------------------------------------------------


def filter_corpus(
    folder: Path,
    *,
    sources: Mapping[str, Mapping[str, bool]] = SOURCES,
    cut: int = 1,
    documents: int = 400,
    step: int = 1,
    **settings: Any,  # noqa: ANN401
) -> tuple[Summary, dict[str, float]]:
    """Books, good; a crawl, half of it bad; and code, which is neither: each over ``cut`` shards."""
    texts = {
        "books": [corpus.text(number) for number in range(documents)],
        "crawl": [corpus.text(1000 + number, good=number % 2 == 0) for number in range(documents)],
        "code": ["x = 1"] * 10,
    }
    rows = [Document(f"{source}/{n}", source, text) for source, own in texts.items() for n, text in enumerate(own)]
    shards = write_shards(folder, rows[::step], cut)
    quality = Quality(sources=sources, **({"sample": 150} | settings))
    summary = run_here(quality, shards, folder / "out")
    kept = stored_rows(sorted((folder / "out").glob("*.parquet")))
    return summary, {row["id"]: row["score"] for row in kept}


@pytest.fixture(scope="module")
def filtered(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Summary, dict[str, float]]:
    """The folder of a finished stage, its summary, and the scores of what it kept; read-only."""
    folder = tmp_path_factory.mktemp("filtered")
    return folder, *filter_corpus(folder)


def test_good_documents_stay_and_counts_add_up(filtered: tuple[Path, Summary, dict[str, float]]) -> None:
    _, summary, kept = filtered
    good = sum(int(name.partition("/")[2]) % 2 == 0 for name in kept)
    bad = len(kept) - good
    assert good > 3 * bad
    assert summary["sources"]["crawl"]["dropped"] == {"low_quality": 400 - len(kept)}
    assert summary["sources"]["code"]["documents_out"] == 10
    measured = summary["quality"]
    # Half of the negatives are good texts, so the accuracy cannot exceed three quarters.
    assert 0.55 < measured["accuracy"] < 0.95
    assert 0.55 < measured["auc"] < 0.95
    assert len(measured["edges"]) == 21
    assert sum(measured["candidates"]) == 400
    assert sum(measured["kept"]) == len(kept)
    assert 0 < sum(measured["positives"]) <= measured["held_out"]
    assert measured["trained_on"] + measured["held_out"] == pytest.approx(300, abs=50)  # sampled by draws


def test_scores_and_draws_ignore_shards_and_order(
    filtered: tuple[Path, Summary, dict[str, float]], tmp_path: Path
) -> None:
    for name, cut, step in (("three", 3, 1), ("backwards", 1, -1)):
        summary, kept = filter_corpus(tmp_path / name, cut=cut, step=step)
        assert kept == filtered[2]
        assert summary["quality"] == filtered[1]["quality"]


def test_another_alpha_draws_again_and_trains_nothing_again(tmp_path: Path) -> None:
    summary, kept = filter_corpus(tmp_path)
    trained = (tmp_path / "out" / "classifier.npy").stat().st_mtime_ns
    again, fewer = filter_corpus(tmp_path, alpha=9.0)
    assert (tmp_path / "out" / "classifier.npy").stat().st_mtime_ns == trained
    assert fewer.items() < kept.items()
    assert again["quality"]["auc"] == summary["quality"]["auc"]


def test_positives_per_curated_source_follow_the_recipe(tmp_path: Path) -> None:
    sources = SOURCES | {"code": {"curated": True}}
    options: dict[str, Any] = {"sources": sources, "sample": 800_000}
    filter_corpus(tmp_path, positives={"books": 100, "code": 0}, **options)
    samples = (tmp_path / "out" / "state" / "samples").glob("*.parquet")
    counts = Counter(source for path in samples for source in pq.read_table(path)["source"].to_pylist())
    assert counts["code"] == 0
    assert counts["books"] == pytest.approx(100, abs=5 * 100**0.5)  # drawn one by one: a standard deviation of 9
    assert counts["crawl"] == pytest.approx(100, abs=5 * 100**0.5)
    with pytest.raises(Failure, match=r"quality\.positives\.web: not a curated source; those are books, code"):
        filter_corpus(tmp_path, positives={"web": 1}, **options)


# --- a model that is given -------------------------------------------------------------------------------------------


def test_foreign_classifier_scores_as_where_it_was_trained(
    filtered: tuple[Path, Summary, dict[str, float]], tmp_path: Path
) -> None:
    folder, _, kept = filtered
    model = folder / "out" / "classifier.npy"
    for name, sources in (("two", SOURCES), ("uncurated", SOURCES | {"books": {}})):
        summary, again = filter_corpus(tmp_path / name, model=model, sources=sources)
        assert again == kept
        assert {*summary["quality"]} == {"edges", "candidates", "kept"}
        assert not (tmp_path / name / "out" / "classifier.npy").exists()


def test_recipe_with_a_model_needs_no_curated_source(tmp_path: Path) -> None:
    (tmp_path / "data.toml").write_text(RECIPE)
    with pytest.raises(
        UsageFailure, match=r"no source has curated = true to train a classifier on, and quality\.model names"
    ):
        load_recipe(tmp_path)
    recipe = load_recipe(tmp_path, ["quality.model=models/a.npy", "tokenize.tokenizer=./gpt2"])
    assert recipe.step("quality").settings.model == tmp_path / "data" / "models" / "a.npy"
    assert recipe.step("tokenize").settings.tokenizer == str(tmp_path / "data" / "gpt2")
    by_name = load_recipe(tmp_path, ["quality.model=models/a.npy", "tokenize.tokenizer=gpt2"])
    assert by_name.step("tokenize").settings.tokenizer == "gpt2"


RECIPE = """
input = "data"

[sources.crawl]
kind = "jsonl"
paths = ["*.jsonl"]
weight = 1.0
filtered = true

[tokenize]
tokenizer = "tokenizer.json"
"""


def test_a_model_of_fasttext_gives_its_probability_of_the_label(tmp_path: Path) -> None:
    fasttext = pytest.importorskip("fasttext", reason="fasttext-predict is not installed")
    path = language_models.train(tmp_path / "model.bin", {"hq": ["good news"], "cc": ["bad offer"]})
    labels, chances = fasttext.load_model(str(path)).predict("good news bad", k=2)
    expected = dict(zip(labels, chances, strict=True))
    assert 0.5 < expected["__label__hq"] < 0.99
    for label, chance in expected.items():  # a line break is a space
        assert open_scorer(path, label).scores(["good news bad", "good\nnews bad"]) == pytest.approx(chance, abs=1e-4)


# --- refusals --------------------------------------------------------------------------------------------------------


def test_too_few_documents_to_learn_from_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"19 documents of books and 19 of crawl are too few.*20 of each"):
        filter_corpus(tmp_path, documents=19)
