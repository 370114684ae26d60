"""Directive ``measurements``: what the benchmarks said, drawn when the site is built.

``python docs/extensions/measurements.py`` writes docs/measurements.svg, the chart of README and landing page.

Each row is a ratio of the newest result of its benchmark: how many times as fast as a peer, the median of the rounds
with the least and the most of them. A figure that a result no longer has fails the build.
"""

from __future__ import annotations

import json
import math
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from sphinx.application import Sphinx

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
DATES = "[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]"


class Row(NamedTuple):
    """What, against what, the benchmark, and where its result has the ratio.

    ``differs`` is what one side does and the other does not.
    """

    what: str
    against: str
    benchmark: str
    place: tuple[str | int, ...] = ("ratio",)
    differs: str = ""


LEDGER = "ours verifies each pair, writes a ledger, syncs and sums its files"
RENSA = "theirs writes nothing and estimates the similarity"
ESTIMATES = "ours verifies each pair; theirs estimates the similarity"
COUNTS = "ours counts, keeps samples, records what it drops, syncs and sums its files"
STEP = "ours also decodes, detects the language and bounds the markup"
ARRAYS = "same ids; ours returns arrays, theirs lists"
CHECKSUMS = "ours computes checksums"
TOKENS = "nothing: same weights and tokens"
SCORES = "nothing: same weights, rows and answers"
SUMS = "ours records what it drops, syncs and sums its files"
ROWS = (
    Row(
        "WARC to token ids, both by Trafilatura",
        "datatrove, str.split",
        "curation-peer",
        differs=f"{LEDGER}; runs its fast mode",
    ),
    Row("WARC to token ids, our jusText", "datatrove, Trafilatura", "curation-peer-justext", differs="the extractor"),
    Row("fuzzy deduplication", "datatrove, spaCy's words", "deduplication", differs=LEDGER),
    Row(
        "fuzzy deduplication",
        "datatrove, str.split",
        "deduplication-peers",
        ("ratios", "datatrove_str_split"),
        differs=LEDGER,
    ),
    *(
        Row(f"fuzzy deduplication, {what}", against, f"deduplication-peers{kind}", place, differs=RENSA)
        for kind, against, what, place in (
            ("", "rensa", "40 MB", ("ratios", "rensa")),
            ("-large", "rensa", "400 MB", ("ratios", "rensa")),
            ("", "rensa", "40 MB, start included", ("ratios_with_start", "rensa")),
        )
    ),
    *(
        Row(f"near duplicates in memory, {what}", against, f"deduplication-peers{kind}", place, differs=ESTIMATES)
        for kind, against, what, place in (
            ("", "rensa", "40 MB", ("ratios_in_memory", "rensa")),
            ("-large", "rensa", "400 MB", ("ratios_in_memory", "rensa")),
            ("", "rensa, str.split", "40 MB", ("ratios_in_memory", "rensa_str_split")),
        )
    ),
    *(
        Row("equal documents", peer, "exact-peers", ("ratios", key), differs=f"{SUMS}{memory}")
        for peer, key, memory in (
            ("datatrove", "datatrove", ""),
            ("polars", "polars", "; theirs holds all texts, file half as large again"),
            ("DuckDB, distinct on", "duckdb_distinct", "; theirs holds all texts"),
            ("DuckDB, by MD5", "duckdb_by_hash", ""),
        )
    ),
    Row("filters of FineWeb", "datatrove, spaCy's words", "filters", ("against_spacy",), COUNTS),
    Row("filters of FineWeb", "datatrove, str.split", "filters", ("against_plain",), COUNTS),
    Row("extraction", "jusText", "extraction", differs="nothing: the same text, byte for byte"),
    *(
        Row("extraction, our main", library, "extraction-libraries", ("main_against", library), "each finds other text")
        for library in ("resiliparse", "trafilatura", "turbohtml")
    ),
    *(
        Row(f"{library} in our step", f"{library} alone", "extraction-libraries", ("library_in_step", library), STEP)
        for library in ("resiliparse", "trafilatura")
    ),
    Row("token ids", "tokenizers", "tokenization", ("ratios", "ours by tokenizers"), ARRAYS),
    Row("token ids by gigatoken", "tokenizers", "tokenization", ("ratios", "ours by gigatoken, cold"), ARRAYS),
    Row("saving a checkpoint", "safetensors", "checkpoint-io", ("save_against_safetensors",), CHECKSUMS),
    Row("loading a checkpoint", "safetensors", "checkpoint-io", ("load_against_safetensors",), CHECKSUMS),
    Row("a Llama's generation, one row", "transformers", "generate", ("results", 0, "ratio"), TOKENS),
    Row("a Llama's generation, eight rows", "transformers", "generate", ("results", 1, "ratio"), TOKENS),
    *(
        Row(f"a step, {engine}", against, "training-engine", (ratios, f"{ours} / {peer}"), differs)
        for engine, ours in (("pipeline engine", "ours"), ("DeepSpeed's engine", "deepspeed"))
        for against, peer, ratios, differs in (
            ("a plain loop", "plain", "ratios of processor seconds", "ours also guards and records each step"),
            # The result's processor seconds of the Trainer have the step that warms it up, and its start.
            ("transformers' Trainer, by the clock", "trainer", "ratios of tokens/s", "the same shape in its own GPT-2"),
        )
    ),
    Row("log-likelihoods, 0 shots", "lm-eval's hf", "evaluation", ("0 shots", "ratio"), SCORES),
    Row("log-likelihoods, few shots", "lm-eval's hf", "evaluation", ("few shots", "ratio"), SCORES),
    Row(
        "charset, language and extraction",
        "resiliparse's extraction alone",
        "extraction",
        ("step_against_resiliparse",),
        "ours detects charset and language too, and extracts other text",
    ),
)
WIDTH, ROW = 420, 30
PICTURE = Path(__file__).parents[1] / "measurements.svg"
PICTURE_STYLE = (
    "text{font:12px sans-serif;fill:#1f2328}.axis{stroke:#d0d7de}.bar{fill:#4c72b0}"
    "line{stroke:#1f2328;stroke-width:1.2}"
)
TICKS = (0.5, 1, 2, 5, 10, 20, 50, 100)


class Ratio(NamedTuple):
    """A row of the table."""

    what: str
    against: str
    median: float
    least: float
    most: float
    date: str
    differs: str = ""


def newest(benchmark: str) -> Path:
    """The newest result file of a benchmark."""
    return max(RESULTS.glob(f"{DATES}-{benchmark}.json"))


def read_ratio(row: Row) -> Ratio:
    """The ratio at the row's place of its benchmark's newest result."""
    path = newest(row.benchmark)
    value: Any = json.loads(path.read_text("utf-8"))
    for step in row.place:
        value = value[step]
    median, least, most = (float(value[name]) for name in ("median", "least", "most"))
    return Ratio(row.what, row.against, median, least, most, path.name[: len("2026-01-01")], row.differs)


def draw(rows: list[Ratio]) -> str:
    """Bars on a logarithmic scale that begin at 1, where both are as fast; a thin line from the least to the most."""
    low, high = math.log(min(ratio.least for ratio in rows) / 1.2), math.log(max(ratio.most for ratio in rows) * 1.2)

    def x(value: float) -> float:
        return WIDTH * (math.log(value) - low) / (high - low)

    height = ROW * len(rows) + 24
    parts = [f'<div class="picture"><svg class="narrow" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Ratios">']
    for tick in TICKS:
        parts.append(f'<line class="axis" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="0" y2="{height - 18}"/>')
        parts.append(f'<text x="{x(tick):.1f}" y="{height - 4}" text-anchor="middle">{tick}</text>')
    for number, ratio in enumerate(rows):
        y = ROW * number + 16
        start, end = sorted((x(1), x(ratio.median)))
        parts.append(f'<text x="{x(1):.1f}" y="{y - 4}">{escape(f"{ratio.what} : {ratio.against}")}</text>')
        parts.append(f'<rect class="bar" x="{start:.1f}" y="{y}" width="{end - start:.1f}" height="9"/>')
        parts.append(f'<line x1="{x(ratio.least):.1f}" x2="{x(ratio.most):.1f}" y1="{y + 4.5}" y2="{y + 4.5}"/>')
    return "".join(parts) + "</svg></div>"


class Measurements(SphinxDirective):
    """The picture and the table."""

    def run(self) -> list[nodes.Node]:
        """Read the results, on which the page then depends."""
        for row in ROWS:
            self.env.note_dependency(str(newest(row.benchmark)))
        rows = [read_ratio(row) for row in ROWS]
        lines = [
            "| what | against | what differs | times as fast | from | to | measured |",
            "|---|---|---|---|---|---|---|",
        ]
        for ratio in rows:
            figures = " | ".join(f"{figure:.2f}" for figure in (ratio.median, ratio.least, ratio.most))
            date = ratio.date.replace("-", "\u2011")
            lines.append(f"| {ratio.what} | {ratio.against} | {ratio.differs} | {figures} | {date} |")
        return [nodes.raw("", draw(rows), format="html"), *self.parse_text_to_nodes("\n".join(lines))]


def draw_picture() -> str:
    """The chart as a file of its own, with colours that need no page around it."""
    svg = draw([read_ratio(row) for row in ROWS])
    svg = svg.removeprefix('<div class="picture">').removesuffix("</div>")
    head, body = svg.replace('class="narrow"', 'xmlns="http://www.w3.org/2000/svg" width="600"').split(">", 1)
    return f'{head}><style>{PICTURE_STYLE}</style><rect width="100%" height="100%" fill="#fff"/>{body}\n'


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("measurements", Measurements)
    return {"parallel_read_safe": True}


if __name__ == "__main__":
    PICTURE.write_text(draw_picture(), encoding="utf-8")
