"""The quality filter: it learns, it draws by the paper's rule, and only the seed and the ids decide a draw."""

from __future__ import annotations

import math
import struct
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import small_corpus as corpus
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from shards import run_here, stored_rows, write_shard
from sklearn.linear_model import SGDClassifier

from mtnlg_data import Quality
from mtnlg_data.console import Failure, UsageFailure
from mtnlg_data.document import shard_name
from mtnlg_data.quality import classifier
from mtnlg_data.quality.classifier import Classifier, fit_classifier, hash_features, open_scorer, roc_auc
from mtnlg_data.quality.draws import keep_probability, uniform_draws
from mtnlg_data.recipe import load_recipe
from mtnlg_data.schema import Document
from mtnlg_data.text.hashing import ngram_hashes
from mtnlg_data.text.words import hashed_words

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from mtnlg_data.engine import Summary

SOURCES = {"books": {"curated": True}, "crawl": {"filtered": True}, "code": {}}


# --- the draw --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("score", "alpha", "chance"), [(0.0, 3, 0.125), (0.5, 3, 0.2963), (1.0, 3, 1.0), (0.0, 9, 2**-9)]
)
def test_the_chance_to_be_kept_is_the_papers(score: float, alpha: float, chance: float) -> None:
    assert keep_probability(np.array([score]), alpha)[0] == pytest.approx(chance, abs=1e-4)


def test_chance_is_a_pareto_draw_above_one_minus_score() -> None:
    pareto = np.random.default_rng(0).pareto(3.0, 200_000)
    for score in (0.0, 0.3, 0.7, 0.95):
        # 5 standard errors of a share over 200,000 draws
        assert keep_probability(np.array([score]), 3.0)[0] == pytest.approx((pareto > 1 - score).mean(), abs=5 * 0.0012)


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


@given(st.text(max_size=300))
def test_buckets_are_of_words_and_word_pairs(text: str) -> None:
    words = hashed_words([text.lower()]).hashes.tolist()
    pairs = [int(ngram_hashes(np.array(pair, np.uint64), 2)[0]) for pair in pairwise(words)]
    buckets, bounds = hash_features([text])
    assert bounds.tolist() == [0, len(buckets)]
    assert sorted(buckets.tolist()) == sorted({value >> 44 for value in words + pairs})


def test_score_is_logistic_of_mean_bucket_weight() -> None:
    rng = np.random.default_rng(0)
    model = Classifier(rng.integers(-(1 << 20), 1 << 20, 1 << 20).astype(np.int32), 12345)
    text = "One two three one two, ONE two!"
    buckets, bounds = hash_features([text])
    assert bounds.tolist() == [0, 3 + 4]  # one two three | one-two two-three three-one two-one
    logit = (model.weights[buckets].astype(float).sum() / np.sqrt(7) + 12345) / (1 << 20)
    assert model.scores(["", text, ""])[1] == pytest.approx(1 / (1 + np.exp(-logit)), rel=1e-12)


def test_training_separates_good_from_bad_reproducibly(tmp_path: Path) -> None:
    texts = [corpus.text(n, good=n % 2 == 0) for n in range(400)]
    labels = np.arange(400) % 2 == 0
    models = [fit_classifier(lambda rows: [texts[row] for row in rows], labels[:300], 1, 5) for _ in range(2)]
    assert (models[0].weights == models[1].weights).all()
    models[0].save(tmp_path / "model.npy")
    models[1].save(tmp_path / "again.npy")
    assert (tmp_path / "model.npy").read_bytes() == (tmp_path / "again.npy").read_bytes()
    scores = Classifier.load(tmp_path / "model.npy").scores(texts[300:])
    assert roc_auc(scores[labels[300:]], scores[~labels[300:]]) > 0.99
    assert (models[1].scores(texts[300:]) == scores).all()


@pytest.mark.parametrize(("seed", "count"), [(1, 300), (9, 60)])
def test_learnt_weights_are_scikit_learns(monkeypatch: pytest.MonkeyPatch, seed: int, count: int) -> None:
    monkeypatch.setattr(classifier, "BATCH_TEXTS", 128)
    texts, labels = [corpus.text(n, good=n % 3 == 0) for n in range(count)], np.arange(count) % 3 == 0
    oracle = SGDClassifier(loss="log_loss", alpha=1e-4, average=True, random_state=seed)
    for epoch in range(3):
        order = np.random.default_rng([seed, epoch]).permutation(count)
        for rows in np.split(order, range(128, count, 128)):
            buckets, bounds = hash_features([texts[row] for row in rows])
            values = np.repeat(np.diff(bounds) ** -0.5, np.diff(bounds))
            features = csr_array((values, buckets, bounds.astype(np.int32)), (len(rows), classifier.BUCKETS))
            features.sort_indices()
            oracle.partial_fit(features, labels[rows], classes=[False, True])
    model = fit_classifier(lambda rows: [texts[row] for row in rows], labels, seed, 3)
    assert (model.weights == np.rint(oracle.coef_[0] * (1 << 20))).all()
    assert model.bias == round(oracle.intercept_[0] * (1 << 20))


def _write_array(path: Path, values: Any) -> None:  # noqa: ANN401  (any array)
    with path.open("wb") as file:
        np.save(file, values, allow_pickle=True)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.unlink(), "No such file"),
        (lambda path: path.write_bytes(b""), "not a classifier trained by quality"),
        (lambda path: path.write_bytes(b"\x80\x04K\x01."), "not a classifier trained by quality"),
        (lambda path: _write_array(path, np.array([print], object)), "not a classifier trained by quality"),
        (lambda path: _write_array(path, np.zeros(10, np.int32)), r"40 bytes of int32 \(10,\)"),
        (
            lambda path: path.write_bytes(path.read_bytes()[:-1]),
            "not a classifier trained by quality: 4194311 bytes",
        ),
        (
            lambda path: path.write_bytes(path.read_bytes() + b"1"),
            "not a classifier trained by quality: 4194313 bytes",
        ),
        (lambda path: path.write_bytes(path.read_bytes().replace(b"1048578", b"9999999", 1)), "9999999"),
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
    shards = []
    for source, own in texts.items():
        rows = [Document(f"{source}/{number}", source, text) for number, text in enumerate(own)][::step]
        for part in range(cut):
            shards.append(folder / shard_name(source, part))
            write_shard(shards[-1], rows[part::cut])
    quality = Quality(sources=sources, **({"sample": 150} | settings))
    summary = run_here(quality, shards, folder / "out")
    kept = stored_rows(sorted((folder / "out").glob("*.parquet")))
    return summary, {row["id"]: row["score"] for row in kept}


def test_good_documents_stay_and_counts_add_up(tmp_path: Path) -> None:
    summary, kept = filter_corpus(tmp_path)
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


def test_scores_and_draws_ignore_shards_and_order(tmp_path: Path) -> None:
    first = filter_corpus(tmp_path / "one")
    for name, cut, step in (("three", 3, 1), ("backwards", 1, -1)):
        summary, kept = filter_corpus(tmp_path / name, cut=cut, step=step)
        assert kept == first[1]
        assert summary["quality"] == first[0]["quality"]


def test_training_documents_are_kept_as_often_as_others(tmp_path: Path) -> None:
    """The sample's draws and the Pareto draws are independent; one draw for both would keep what it sampled."""
    _, kept = filter_corpus(tmp_path)
    samples = (tmp_path / "out" / "state" / "samples").glob("*.parquet")
    sampled = {name for path in samples for name in pq.read_table(path)["id"].to_pylist() if name.startswith("crawl/")}
    others = {f"crawl/{number}" for number in range(400)} - sampled
    shares = [len(group & set(kept)) / len(group) for group in (sampled, others)]
    share = len(kept) / 400
    deviation = math.sqrt(share * (1 - share) * (1 / len(sampled) + 1 / len(others)))
    assert abs(shares[0] - shares[1]) < 5 * deviation


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


def test_foreign_classifier_scores_and_is_measured_here(tmp_path: Path) -> None:
    trained, kept = filter_corpus(tmp_path / "one")
    model = tmp_path / "one" / "out" / "classifier.npy"
    summary, again = filter_corpus(tmp_path / "two", model=model)
    assert again == kept
    measured = summary["quality"]
    assert measured["trained_on"] == 0
    assert measured["held_out"] == trained["quality"]["trained_on"] + trained["quality"]["held_out"]
    assert measured["auc"] > trained["quality"]["auc"] - 0.1  # measured on what it had trained from
    assert sum(measured["positives"]) + sum(measured["negatives"]) == measured["held_out"]
    assert not (tmp_path / "two" / "out" / "classifier.npy").exists()
    summary, kept = filter_corpus(tmp_path / "uncurated", model=model, sources=SOURCES | {"books": {}})
    assert {*summary["quality"]} == {"edges", "candidates", "kept"}
    assert sum(summary["quality"]["kept"]) == len(kept) > 0


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
WORDS = {"</s>": 0.0, "good": 2.0, "bad": -2.0}
LABELS = {"__label__cc": -1.0, "__label__hq": 1.0}


def write_fasttext(path: Path) -> Path:
    """A supervised model of fastText (format 12) of one dimension, its words and labels as above."""
    header = struct.pack("<2i12id", 793712314, 12, 1, 5, 5, 1, 5, 1, 3, 3, 0, 0, 0, 100, 1e-4)
    sizes = struct.pack("<3i2q", len(WORDS) + len(LABELS), len(WORDS), len(LABELS), 10, -1)
    kinds = [*((word, 0) for word in WORDS), *((label, 1) for label in LABELS)]
    entries = b"".join(word.encode() + struct.pack("<bqb", 0, 1, kind) for word, kind in kinds)
    matrices = [struct.pack(f"<?2q{len(rows)}f", False, len(rows), 1, *rows.values()) for rows in (WORDS, LABELS)]
    path.write_bytes(header + sizes + entries + b"".join(matrices))
    return path


def test_a_model_of_fasttext_gives_its_probability_of_the_label(tmp_path: Path) -> None:
    pytest.importorskip("fasttext", reason="fasttext-predict is not installed")
    path = write_fasttext(tmp_path / "model.bin")
    scores = open_scorer(path, "__label__hq").scores(["good", "good\ngood bad", "", "unknown"])
    # The mean over the words that it knows, of which the end of the line is one; then a softmax over two labels.
    means = np.array([2 / 2, 2 / 4, 0, 0])
    assert scores == pytest.approx(1 / (1 + np.exp(-2 * means)), abs=1e-4)  # fastText's own table of logarithms
    assert open_scorer(path, "__label__cc").scores(["good"])[0] == pytest.approx(1 - scores[0], abs=1e-4)
    with pytest.raises(Failure, match=r"no label __label__1; set quality\.label to one of __label__cc, __label__hq"):
        open_scorer(path, "__label__1")


def test_a_model_of_fasttext_filters_a_source(tmp_path: Path) -> None:
    pytest.importorskip("fasttext", reason="fasttext-predict is not installed")
    rows = [Document(f"crawl/{n}", "crawl", "good" if n % 2 else "bad") for n in range(400)]
    shard = write_shard(tmp_path / shard_name("crawl", 0), rows)
    step = Quality(sources={"crawl": {"filtered": True}}, model=write_fasttext(tmp_path / "model.bin"), alpha=9.0)
    summary = run_here(step, [shard], tmp_path / "out")
    kept = pq.read_table(tmp_path / "out" / shard.name).to_pylist()
    assert summary["documents_out"] == len(kept)
    assert {row["text"]: row["score"] for row in kept}["good"] == pytest.approx(1 / (1 + math.exp(-2)), abs=1e-4)
    good = sum(row["text"] == "good" for row in kept)
    # P(keep) = (2 - score) ** -9: 0.35 of 200 and 0.006 of 200
    assert good == pytest.approx(200 * 0.349, abs=5 * 7)
    assert len(kept) - good < 10


def test_without_fasttext_a_line_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mtnlg_data.extract.language.find_spec", lambda _: None)
    write_fasttext(tmp_path / "model.bin")
    (tmp_path / "other.bin").write_bytes(b"GGUF")
    for name, line in (
        ("model.bin", r'a fastText model needs fastText: pip install "mtnlg-data\[fasttext\]"'),
        ("other.bin", "not a classifier trained by quality"),
        ("none.npy", r"No such file or directory; quality\.model must be a classifier\.npy of another run"),
    ):
        with pytest.raises(Failure, match=rf"{name}: {line}"):
            Quality(model=tmp_path / name).check()


# --- refusals --------------------------------------------------------------------------------------------------------


def test_too_few_documents_to_learn_from_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"19 documents of books and 19 of crawl are too few.*20 of each"):
        filter_corpus(tmp_path, documents=19)
