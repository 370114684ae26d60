"""The answers of each result, in a file that the page loads on demand: report/samples/NAME.js.

A page opened from disk cannot fetch a file, but may add a script. Each script is one call, mtnlgAnswers(NAME, DATA),
where DATA is base64 of gzip of JSON, so no text of a prompt is ever run as code:

    {"total": N, "texts": [...], "rows": [[key, id, right, answer, chosen, shots, cut, prompt, choices], ...]}

    key      digest of the row's content: equal in every result that scored the row
    answer   number of the right choice, and ``chosen`` that of the model's; -1 if there is none or it is not known;
             for generated text there are two choices: the right text and the model's
    prompt   numbers of texts, to be joined by blank lines; examples recur in prompts, so each text is stored once
    choices  [lead, continuation, score, log P, log P without the prompt or null] per choice; the first two are numbers
             of texts; a lead belongs to the context and is not scored (WinoGrande's names)

A file holds rows until their texts reach ``MAX_CHARACTERS``; ``total`` counts all rows.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections import Counter
from math import isfinite
from typing import TYPE_CHECKING, Any

from mtnlg_eval.records import Record, parse_record
from mtnlg_model.files import file_lines, write_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MAX_CHARACTERS = 64_000_000
"""The published tasks stay below it: RACE, the longest, has 3,498 prompts of at most 2,048 tokens."""

FOLDER = "report/samples"
UNKNOWN = -1
SHARES = ("acc", "exact_match")
"""Metrics that say whether a row is right; a task without them uses its first metric."""


class Sample(Record):
    """A line of samples/NAME.jsonl; a row of a task with several filters has one line per filter."""

    id: str
    digest: str
    filter: str = "none"
    target: Any = None
    gold: int | None = None
    arguments: dict[str, dict[str, Any]]
    filtered_resps: list[Any]
    metrics: list[str]
    scores: list[float]
    shots: int
    truncated: bool


class Texts(dict[str, int]):
    """Number of each distinct text, in order of first use."""

    characters = 0

    def __missing__(self, text: str) -> int:
        """Assign the next number to a new text."""
        self.characters += len(text)
        return self.setdefault(text, len(self))


def sample_files(folder: Path, names: list[str]) -> dict[str, Path]:
    """The file with the samples of each result that has one; skips names that could lead out of the folder."""
    plain = [name for name in names if re.fullmatch(r"[A-Za-z0-9][\w.-]*", name, re.ASCII)]
    return {name: folder / f"{name}.jsonl" for name in plain if (folder / f"{name}.jsonl").exists()}


def write_samples(run: Path, files: Mapping[str, Path]) -> None:
    """Write the data of each result beside the page of ``run``. Raises ``Failure`` if a line is malformed."""
    for name, path in files.items():
        data = json.dumps(_read(path), separators=(",", ":")).encode()
        text = base64.b64encode(gzip.compress(data, 6, mtime=0)).decode()
        write_text(run / FOLDER / f"{name}.js", f'mtnlgAnswers("{name}", "{text}");\n')


def _read(path: Path) -> dict[str, Any]:
    texts, seen = Texts(), Counter[str]()
    rows: list[list[Any]] = []
    total, first = 0, None
    for number, line in enumerate(file_lines(path), start=1):
        sample = parse_record(line, Sample, f"{path}:{number}")
        first = first or sample.filter
        if sample.filter != first:
            continue
        total += 1
        if texts.characters < MAX_CHARACTERS:
            metric = next((name for name in (*SHARES, *sample.metrics) if name in sample.metrics), "")
            value = json.loads(line).get(metric)
            rows.append(_row(sample, isinstance(value, int | float) and value >= 0.5, texts, seen))
    return {"total": total, "texts": list(texts), "rows": rows}


def _row(sample: Sample, right: bool, texts: Texts, seen: Counter[str]) -> list[Any]:
    prompt, choices = _split(sample) if sample.scores else _texts(sample)
    seen[sample.digest] += 1
    copies = seen[sample.digest]
    chosen = max(range(len(choices)), key=sample.scores.__getitem__) if len(sample.scores) > 1 else UNKNOWN
    answer = UNKNOWN if sample.gold is None else sample.gold
    if not sample.scores:
        answer, chosen = 0, len(choices) - 1
    return [
        sample.digest + (f"#{copies}" if copies > 1 else ""),
        sample.id,
        int(right),
        answer,
        chosen,
        sample.shots,
        int(sample.truncated),
        [texts[text] for text in prompt.split("\n\n")],
        [[texts[lead], texts[text], *figures] for lead, text, *figures in choices],
    ]


def _texts(sample: Sample) -> tuple[str, list[list[Any]]]:
    """The prompt of a row without scored choices, and as its choices the right text and the model's."""
    texts = [str(sample.target), *map(str, sample.filtered_resps[:1])]
    return str(sample.arguments["gen_args_0"]["arg_0"]), [["", text, None, None, None] for text in texts]


def _split(sample: Sample) -> tuple[str, list[list[Any]]]:
    """The prompt that all choices share, and the choices."""
    pairs = list(sample.arguments.values())
    logps = [_short(logp) for logp, _ in sample.filtered_resps]
    half = len(pairs) // 2
    # The second half scores each choice without the prompt, for RACE's ratio or lm-eval's mutual information.
    alone = len(sample.scores) < len(pairs) or (half > 0 and not pairs[half]["arg_0"] and bool(pairs[0]["arg_0"]))
    n = half if alone else len(pairs)
    contexts = [pair["arg_0"] for pair in pairs[:n]]
    prompt, last = min(contexts), max(contexts)
    if prompt != last:  # WinoGrande: up to the word in which contexts differ
        same = next((n for n, (a, b) in enumerate(zip(prompt, last, strict=False)) if a != b), len(prompt))
        prompt = prompt[: max(prompt.rfind(" ", 0, same), prompt.rfind("\n", 0, same)) + 1]
    return prompt, [
        [context[len(prompt) :], pair["arg_1"], _short(score), logp, without]
        for context, pair, score, logp, without in zip(
            contexts, pairs, sample.scores, logps, logps[half:] if alone else [None] * n, strict=False
        )
    ]


def _short(number: float) -> float | None:
    """The number rounded to six significant digits, enough for a reader; None if JSON cannot hold it."""
    return float(f"{number:.6g}") if isfinite(number) else None
