# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data", "readability-lxml==0.8.4.1", "resiliparse==2.0.1", "scikit-learn",
#     "trafilatura==2.3.1", "matplotlib"]
# ///
"""How much of a page's true main text each extractor finds, and the weights of ours.

    python benchmarks/extraction_quality.py DATA [--rounds 3] [--fit] [--chart FILE] [--out FILE]

DATA holds extraction/: pages and their true text, of articles (scrapinghub/article-extraction-benchmark, MIT) and of
seven kinds (Web Content Extraction Benchmark (c) 2026 Murrough Foley, CC-BY-4.0). A page whose name's SHA-256 begins
with a byte that three divides is held out; the weights of ``main_content`` are fitted to the others, and ``--fit``
prints them.

F1 is that of two bags of words, lower-case runs of letters and digits, over a page; its mean over pages is shown. Each
extractor gets decoded pages at its default settings but those named; ``main_content`` detects no language, since all
but five pages are English. Speed is in bytes of UTF-8 per CPU second, over all pages.

The labels that are fitted: a paragraph is content if at least half of its words are matched by difflib's alignment of
the page's words with the true text's. A paragraph weighs as many words as it has, over those of the true text.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import statistics
from collections import Counter
from difflib import SequenceMatcher
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from resiliparse.extract.html2text import extract_plain_text

from mtnlg_data.extract.boilerplate import BoilerplateSettings
from mtnlg_data.extract.charset import decode_html
from mtnlg_data.extract.main_content import ROLES, WEIGHTS, features
from mtnlg_data.extract.paragraphs import read_page
from mtnlg_data.extract.text import extract_text
from record import megabytes_of, picture, rates, run, time_rounds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

WORD = re.compile(r"\w+")
PENALTY = 10.0  # on squares of the weights of standardized features
MAX_WEIGHT = 3.0  # of a page, by the words of its true text


class Sample(NamedTuple):
    """A page and its true text."""

    benchmark: str
    kind: str
    html: str
    truth: str
    held_out: bool


def read_samples(data: Path) -> list[Sample]:
    """Return the pages of both benchmarks."""
    samples = []
    for benchmark, folder, key in (("articles", "", "articleBody"), ("seven kinds", "wcxb-dev", "main_content")):
        root = data / "extraction" / folder
        for name, row in json.loads((root / "ground-truth.json").read_text()).items():
            html = decode_html(gzip.decompress((root / "html" / f"{name}.html.gz").read_bytes()), None)
            held_out = hashlib.sha256(name.encode()).digest()[0] % 3 == 0
            samples.append(Sample(benchmark, row.get("page_type", "article"), html, row[key], held_out))
    return samples


def words(text: str) -> list[str]:
    """Return the words of a text."""
    return WORD.findall(text.lower())


def f1(text: str, truth: str) -> float:
    """Return the F1 of two bags of words."""
    found, true = Counter(words(text)), Counter(words(truth))
    total = found.total() + true.total()
    return 2 * (found & true).total() / total if total else 1.0


def ours(method: str, html: str) -> str:
    """Extract by a method of mtnlg_data."""
    return extract_text(method, html, BoilerplateSettings(), "en")[0]  # type: ignore[arg-type]


def by_trafilatura(html: str, **options: Any) -> str:  # noqa: ANN401  (as it has them)
    """Extract by trafilatura."""
    import trafilatura  # noqa: PLC0415  (our own scores do without)

    return trafilatura.extract(html, **options) or ""


def by_readability(html: str) -> str:
    """Extract by readability-lxml, whose HTML resiliparse makes text."""
    from readability import Document  # noqa: PLC0415  (our own scores do without)

    return str(extract_plain_text(Document(html).summary()))


EXTRACTORS: dict[str, Callable[[str], str]] = {
    "mtnlg_data, main": lambda html: ours("main", html),
    "mtnlg_data, justext": lambda html: ours("justext", html),
    "resiliparse, main_content": lambda html: str(extract_plain_text(html, main_content=True)),
    "trafilatura, fast": partial(by_trafilatura, fast=True),
    "trafilatura": by_trafilatura,
    "trafilatura, favor_recall": partial(by_trafilatura, favor_recall=True),
    "readability-lxml": by_readability,
}


def mean_f1(samples: Sequence[Sample], extract: Callable[[str], str]) -> dict[str, float]:
    """Return the mean F1 of an extractor on pages that are held out, by benchmark and kind of page."""
    scores: dict[str, list[float]] = {}
    for sample in samples:
        if sample.held_out:
            score = f1(extract(sample.html), sample.truth)
            for group in (sample.benchmark, f"{sample.benchmark}: {sample.kind}"):
                scores.setdefault(group, []).append(score)
    return {group: round(statistics.mean(each), 4) for group, each in sorted(scores.items())}


def fitted_weights(samples: Sequence[Sample]) -> dict[str, float]:
    """Return the weights of the features, and the bias, of pages that are not held out."""
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415  (scores do without)

    rows, labels, weights = [], [], []
    for sample in samples:
        page = read_page(sample.html, layout=True, roles=ROLES)
        if sample.held_out or not page.columns.size:
            continue
        texts = [words(text) for text in page.texts()]
        lengths = np.array([*map(len, texts)])
        owners = np.repeat(np.arange(len(texts)), lengths)
        matcher = SequenceMatcher(None, [word for text in texts for word in text], words(sample.truth), autojunk=False)
        matched = np.zeros(len(texts))
        for begin, _, size in matcher.get_matching_blocks():
            np.add.at(matched, owners[begin : begin + size], 1)
        is_content = 2 * matched >= np.maximum(lengths, 1)
        weight = np.minimum(lengths / max(1, (lengths * is_content).sum()), 1)
        rows.append(features(page).T)
        labels.append(is_content)
        weights.append(weight / max(1, weight.sum() / MAX_WEIGHT))
    table = np.concatenate(rows)
    spread = table.std(0)
    model = LogisticRegression(C=1 / PENALTY, max_iter=1000)
    model.fit((table - table.mean(0)) / spread, np.concatenate(labels), np.concatenate(weights))
    slopes = model.coef_[0] / spread
    bias = float(model.intercept_[0] - slopes @ table.mean(0))
    return {name: round(float(slope), 2) for name, slope in zip([*WEIGHTS, "bias"], [*slopes, bias], strict=True)}


def draw(path: Path, scores: Mapping[str, Mapping[str, float]], speeds: Mapping[str, float]) -> None:
    """Draw the F1 of each extractor over its speed."""
    with picture(path, 7, 3.6) as figure:
        axes = figure.subplots()
        for benchmark, marker in (("articles", "o"), ("seven kinds", "s")):
            shown = [(speeds[name], scores[name][benchmark]) for name in scores]
            axes.plot(*zip(*shown, strict=True), marker, label=benchmark)
        for name, side in zip(sorted(speeds, key=speeds.__getitem__), cycle(("left", "right"))):  # so that none overlap
            place = {"xytext": (4 if side == "left" else -4, -9), "textcoords": "offset points", "ha": side}
            axes.annotate(name, (speeds[name], scores[name]["seven kinds"]), fontsize=7, **place)
        axes.set(xscale="log", xlabel="MB of HTML per CPU second", ylabel="mean word F1, pages held out")
        axes.set_xlim(left=0.4 * min(speeds.values()), right=3 * max(speeds.values()))
        axes.legend(fontsize="small", loc="lower right")


def measure(data: Path, rounds: int = 3, fit: bool = False, chart: Path | None = None) -> dict[str, Any]:
    """Score and time all extractors, or fit the weights."""
    samples = read_samples(data)
    if fit:
        return fitted_weights(samples)
    scores = {name: mean_f1(samples, extract) for name, extract in EXTRACTORS.items()}

    def extract_all(extract: Callable[[str], str]) -> None:
        for sample in samples:
            extract(sample.html)

    seconds = time_rounds({name: partial(extract_all, each) for name, each in EXTRACTORS.items()}, rounds)
    speeds = rates(megabytes_of(sample.html for sample in samples), seconds)
    if chart:
        draw(chart, scores, speeds)
    return {
        "f1_held_out": scores,
        "pages_held_out": dict(Counter(sample.benchmark for sample in samples if sample.held_out)),
        "megabytes_per_second": speeds,
        "seconds_of_one_core": seconds,
        "data": "Web Content Extraction Benchmark (c) 2026 Murrough Foley, CC-BY-4.0; scrapinghub/article-extraction-"
        "benchmark, MIT",
    }


if __name__ == "__main__":
    run(measure, __doc__)
