# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data", "fasttext-numpy2-wheel==0.9.2", "numpy>=2"]
# ///
"""Quality scoring: mtnlg_data's classifier against fastText with word 2-grams, the paper's, one core.

    python benchmarks/quality.py TEXTS [TEXTS ...] [--rounds 7] [--out FILE]
    python benchmarks/quality.py TEXTS --good PACKAGE ... --other PACKAGE ... --write TEXTS

TEXTS is a file of JSON lines {"text", "label"}, label 1 for good texts and 0 for the others. ``--write`` makes one from
the docstrings in two sets of installed packages, such as numpy and scipy against torch and transformers. Both
sides get the same strings: the first 4000 characters, newlines as spaces (fastText requires it). Both train on the same
three quarters, fastText with its defaults and ``wordNgrams=2``, and with 25 epochs where that is better; the other
quarter gives accuracy, area under the curve, and the seconds of scoring, in rounds of alternating order.
"""

from __future__ import annotations

import ast
import json
import random
import tempfile
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fasttext
import numpy as np

from mtnlg_data.quality.classifier import CLASSIFIED_CHARACTERS, fit_classifier, roc_auc
from record import megabytes_of, rates, ratios, run, spread, time_rounds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

EPOCHS, SEED, MIN_CHARACTERS, MAX_TEXTS = 5, 1, 300, 8000
Scorer = Any


def docstrings(folders: Sequence[Path]) -> Iterator[str]:
    """Yield the long docstrings, each once."""
    seen = set()
    paths = (path for folder in folders for path in sorted(folder.rglob("*.py")))
    for path in (path for path in paths if "tests" not in path.parts):
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node) or ""
                if len(text) > MIN_CHARACTERS and text not in seen:
                    seen.add(text)
                    yield text


def write_docstrings(good: Sequence[str], other: Sequence[str], out: Path) -> None:
    """Write equally many docstrings of both kinds, shuffled."""
    specs = [[find_spec(package) for package in packages] for packages in (other, good)]
    sets = [list(docstrings([Path(str(spec.origin)).parent for spec in each if spec])) for each in specs]
    draw = random.Random(SEED)
    count = min(MAX_TEXTS, *map(len, sets))
    rows = [{"text": text, "label": label} for label, texts in enumerate(sets) for text in draw.sample(texts, count)]
    draw.shuffle(rows)
    out.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def fasttext_scores(model: Any, texts: list[str]) -> NDArray[np.float64]:  # noqa: ANN401  (fastText is not annotated)
    """Return the probability of label 1; one call for the whole list is fastText's quickest way.

    It leaves out a label of less than a hundred thousandth.
    """
    labels, chances = model.predict(texts, k=2)
    pairs, label = zip(labels, chances, strict=True), "__label__1"
    return np.array([chance[names.index(label)] if label in names else 0.0 for names, chance in pairs], np.float64)


def train_scorers(texts: list[str], labels: NDArray[np.bool_]) -> tuple[dict[str, Scorer], dict[str, float]]:
    """Return every scorer, and the CPU seconds of its training."""
    scorers: dict[str, Scorer] = {}
    seconds: dict[str, float] = {}
    started = time.process_time()
    scorers["mtnlg-data"] = fit_classifier(lambda rows: [texts[row] for row in rows], labels, SEED, EPOCHS).scores
    seconds["mtnlg-data"] = time.process_time() - started
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.txt"
        lines = (f"__label__{int(label)} {text}\n" for text, label in zip(texts, labels, strict=True))
        path.write_text("".join(lines), encoding="utf-8")
        for epochs in (5, 25):
            started = time.process_time()
            model = fasttext.train_supervised(str(path), wordNgrams=2, epoch=epochs, thread=1, verbose=0)
            name = f"fastText, {epochs} epochs"
            seconds[name] = time.process_time() - started
            scorers[name] = partial(fasttext_scores, model)
    return scorers, seconds


def compare(path: Path, rounds: int) -> dict[str, object]:
    """Train on one set and score its last quarter; return all figures."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    texts = [row["text"][:CLASSIFIED_CHARACTERS].replace("\n", " ") for row in rows]
    labels = np.array([row["label"] == 1 for row in rows])
    cut = len(texts) * 3 // 4
    scorers, seconds = train_scorers(texts[:cut], labels[:cut])
    held_out, truth = texts[cut:], labels[cut:]
    accuracy: dict[str, dict[str, float]] = {}
    for name, scorer in scorers.items():
        scores = scorer(held_out)
        auc = roc_auc(scores[truth], scores[~truth])
        accuracy[name] = {"auc": round(auc, 4), "accuracy": round(float(((scores > 0.5) == truth).mean()), 4)}
    times = time_rounds({name: partial(scorer, held_out) for name, scorer in scorers.items()}, rounds)
    peers = [name for name in scorers if name != "mtnlg-data"]
    best = max(peers, key=lambda name: accuracy[name]["auc"])
    megabytes = megabytes_of(held_out)
    return {
        "set": path.stem,
        "ratio": spread(ratios(times[best], times["mtnlg-data"])),
        "against": best,
        "auc_difference": round(accuracy["mtnlg-data"]["auc"] - accuracy[best]["auc"], 4),
        "held_out": {"texts": len(held_out), "megabytes": round(megabytes, 2)},
        "found": accuracy,
        "megabytes_a_second": rates(megabytes, times, 1),
        "train_seconds": {name: round(each, 1) for name, each in seconds.items()},
    }


def measure(
    *texts: Path,
    good: tuple[str, ...] = ("",),
    other: tuple[str, ...] = ("",),
    write: Path | None = None,
    rounds: int = 7,
) -> dict[str, Any]:
    """Compare on every set."""
    if write:
        write_docstrings(good, other, write)
    return {"rounds": rounds, "sets": [compare(path, rounds) for path in texts]}


if __name__ == "__main__":
    run(measure, __doc__)
