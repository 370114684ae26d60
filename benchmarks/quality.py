# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data", "fasttext==0.9.3", "numpy>=2"]
# ///
"""Quality scoring: mtnlg_data's classifier against fastText with word 2-grams, the paper's, one core.

    python benchmarks/quality.py TEXTS [TEXTS ...] [--rounds 7] [--out FILE]
    python benchmarks/quality.py --good FOLDER ... --other FOLDER ... --write TEXTS

TEXTS is a file of JSON lines {"text", "label"}, label 1 for good texts and 0 for the others. ``--write`` makes one of
the docstrings in two sets of folders of Python modules, such as numpy and scipy against torch and transformers. Both
sides get the same strings: the first 4000 characters, newlines made spaces (which fastText asks for). Both learn from
the same three quarters, fastText by its defaults and ``wordNgrams=2``, and by 25 epochs where that is better; the other
quarter gives accuracy, area under the curve, and the seconds of scoring, in rounds by turns.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fasttext
import numpy as np

from mtnlg_data.quality.classifier import WINDOW, area_under_curve, train
from record import conditions, keep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

EPOCHS, SEED, SHORTEST, MOST = 5, 1, 300, 8000
Scorer = Any


def docstrings(folders: Sequence[Path]) -> Iterator[str]:
    """Docstrings of some length, each once."""
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
                if len(text) > SHORTEST and text not in seen:
                    seen.add(text)
                    yield text


def write_docstrings(good: Sequence[Path], other: Sequence[Path], out: Path) -> None:
    """As many docstrings of one kind as of the other, shuffled."""
    sets = [list(docstrings(folders)) for folders in (other, good)]
    draw = random.Random(SEED)
    few = min(MOST, *map(len, sets))
    rows = [{"text": text, "label": label} for label, texts in enumerate(sets) for text in draw.sample(texts, few)]
    draw.shuffle(rows)
    out.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def fasttext_scores(model: Any, texts: list[str]) -> NDArray[np.float64]:  # noqa: ANN401  (fastText is not annotated)
    """The probability of label 1; a list at once, as fastText is quickest."""
    labels, chances = model.predict(texts, k=2)
    return np.array([chance[of.index("__label__1")] for of, chance in zip(labels, chances, strict=True)], np.float64)


def learnt(texts: list[str], labels: NDArray[np.bool_]) -> tuple[dict[str, Scorer], dict[str, float]]:
    """Every scorer, and the seconds of processor that it took to learn."""
    scorers: dict[str, Scorer] = {}
    seconds: dict[str, float] = {}
    started = time.process_time()
    scorers["mtnlg-data"] = train(lambda rows: [texts[row] for row in rows], labels, SEED, EPOCHS).scores
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
            scorers[name] = lambda some, model=model: fasttext_scores(model, some)
    return scorers, seconds


def measure(path: Path, rounds: int) -> dict[str, object]:
    """All figures of one set."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    texts = [row["text"][:WINDOW].replace("\n", " ") for row in rows]
    labels = np.array([row["label"] == 1 for row in rows])
    cut = len(texts) * 3 // 4
    scorers, seconds = learnt(texts[:cut], labels[:cut])
    held, truth = texts[cut:], labels[cut:]
    times: dict[str, list[float]] = {name: [] for name in scorers}
    found: dict[str, dict[str, float]] = {}
    for name, scorer in scorers.items():
        scores = scorer(held)
        auc = area_under_curve(scores[truth], scores[~truth])
        found[name] = {"auc": round(auc, 4), "accuracy": round(float(((scores > 0.5) == truth).mean()), 4)}
    for number in range(rounds):
        for name in sorted(scorers, reverse=bool(number % 2)):
            times[name].append(seconds_of(lambda scorer=scorers[name]: scorer(held)))  # type: ignore[misc]
    peers = [name for name in scorers if name != "mtnlg-data"]
    best = max(peers, key=lambda name: found[name]["auc"])
    ratios = [theirs / ours for theirs, ours in zip(times[best], times["mtnlg-data"], strict=True)]
    megabytes = sum(len(text.encode()) for text in held) / 1e6
    return {
        "set": path.stem,
        "ratio": {k: round(f(ratios), 2) for k, f in (("median", statistics.median), ("least", min), ("most", max))},
        "against": best,
        "auc_difference": round(found["mtnlg-data"]["auc"] - found[best]["auc"], 4),
        "held_out": {"texts": len(held), "megabytes": round(megabytes, 2)},
        "found": found,
        "megabytes_a_second": {name: round(megabytes / statistics.median(each), 1) for name, each in times.items()},
        "train_seconds": {name: round(each, 1) for name, each in seconds.items()},
    }


def seconds_of(work: Callable[[], object]) -> float:
    """Seconds of processor."""
    started = time.process_time()
    work()
    return time.process_time() - started


def main() -> None:
    """Run and print, and write to ``--out``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path, nargs="*")
    parser.add_argument("--good", type=Path, nargs="+")
    parser.add_argument("--other", type=Path, nargs="+")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.write:
        write_docstrings(options.good, options.other, options.write)
        return
    machine = conditions("mtnlg-data", "fasttext", "numpy", "numba", "scikit-learn")
    sets = [measure(path, options.rounds) for path in options.texts]
    result = {
        "claim": "quality scoring at equal or better AUC",
        "rounds": options.rounds,
        "sets": sets,
        "machine": machine,
    }
    keep(result, options.out)


if __name__ == "__main__":
    main()
