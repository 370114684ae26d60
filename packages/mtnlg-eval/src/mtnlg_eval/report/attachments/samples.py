"""The answers of each result, in a file that the page loads when a reader asks for them: report/samples/NAME.js.

A page opened from a disk cannot fetch a file, but may add a script. Each script is one call, mtnlgAnswers(NAME, DATA),
and DATA is base64 of gzip of JSON, so nothing that a prompt says is ever read as a program:

    {"total": N, "texts": [...], "rows": [[key, id, right, answer, chosen, shots, cut, prompt, choices], ...]}

    key      digest of the row's content: equal in every result that scored the row
    answer   number of the right choice and of the chosen one; -1 where there is none or it is not known
    prompt   numbers of texts, to be joined by blank lines; the examples of prompts recur, so each is there once
    choices  [lead, continuation, score, log P, log P without the prompt or null] each, the first two numbers of texts;
             a lead belongs to the context and is not scored (WinoGrande's names)

A file holds rows until their texts have ``MAX_CHARACTERS``; ``total`` counts all rows.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections import Counter
from math import isfinite
from typing import TYPE_CHECKING, Any

from mtnlg_eval.report.study_files import Schema, parse_json
from mtnlg_model.files import open_regular, write_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MAX_CHARACTERS = 64_000_000
"""The published tasks stay below it: RACE, the longest, has 3,498 prompts of at most 2,048 tokens."""

FOLDER = "report/samples"
UNKNOWN = -1


class Document(Schema):
    """The row that was scored."""

    id: str | int
    digest: str
    label: Any = None


class Request(Schema):
    """Context and continuation."""

    arg_0: str
    arg_1: str


class Sample(Schema):
    """A line of eval/samples/NAME.jsonl."""

    doc: Document
    target: Any = None
    arguments: dict[str, Request]
    filtered_resps: list[tuple[float, bool]]
    scores: list[float]
    acc: float
    shots: int
    truncated: bool


class Texts:
    """Numbers of texts, each kept once."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.characters = 0

    def number(self, text: str) -> int:
        """The number of this text."""
        if text not in self.numbers:
            self.numbers[text] = len(self.numbers)
            self.characters += len(text)
        return self.numbers[text]


def sample_files(folder: Path, names: list[str]) -> dict[str, Path]:
    """The file with the samples of each result that has one; no name that could lead out of the folder."""
    plain = [name for name in names if re.fullmatch(r"[A-Za-z0-9][\w.-]*", name, re.ASCII)]
    return {name: folder / f"{name}.jsonl" for name in plain if (folder / f"{name}.jsonl").exists()}


def write_samples(run: Path, files: Mapping[str, Path]) -> None:
    """Write the data of each result beside the page of ``run``. ``Failure`` if a line is malformed."""
    for name, path in files.items():
        data = json.dumps(_read(path), separators=(",", ":")).encode()
        text = base64.b64encode(gzip.compress(data, 6, mtime=0)).decode()
        write_text(run / FOLDER / f"{name}.js", f'mtnlgAnswers("{name}", "{text}");\n')


def _read(path: Path) -> dict[str, Any]:
    texts, seen = Texts(), Counter[str]()
    rows: list[list[Any]] = []
    total = 0
    with open_regular(path) as file:
        for total, line in enumerate(file, start=1):
            if texts.characters < MAX_CHARACTERS:
                rows.append(_row(parse_json(line, Sample, f"{path}:{total}"), texts, seen))
    return {"total": total, "texts": list(texts.numbers), "rows": rows}


def _row(sample: Sample, texts: Texts, seen: Counter[str]) -> list[Any]:
    prompt, choices = _split(sample)
    seen[sample.doc.digest] += 1
    copies = seen[sample.doc.digest]
    chosen = max(range(len(choices)), key=sample.scores.__getitem__) if len(choices) > 1 else UNKNOWN
    return [
        sample.doc.digest + (f"#{copies}" if copies > 1 else ""),
        str(sample.doc.id),
        int(sample.acc),
        _answer(sample, choices, chosen),
        chosen,
        sample.shots,
        int(sample.truncated),
        [texts.number(text) for text in prompt.split("\n\n")],
        [[texts.number(lead), texts.number(text), *figures] for lead, text, *figures in choices],
    ]


def _split(sample: Sample) -> tuple[str, list[list[Any]]]:
    """The prompt that all choices share, and the choices."""
    pairs = list(sample.arguments.values())
    logps = [_short(logp) for logp, _ in sample.filtered_resps]
    half = len(pairs) // 2
    # The second half asks for each choice without the prompt, for RACE's ratio or lm-eval's mutual information.
    alone = len(sample.scores) < len(pairs) or (half > 0 and not pairs[half].arg_0 and bool(pairs[0].arg_0))
    n = half if alone else len(pairs)
    contexts = [pair.arg_0 for pair in pairs[:n]]
    prompt, last = min(contexts), max(contexts)
    if prompt != last:  # WinoGrande: up to the word in which the contexts part
        same = next((n for n, (a, b) in enumerate(zip(prompt, last, strict=False)) if a != b), len(prompt))
        prompt = prompt[: max(prompt.rfind(" ", 0, same), prompt.rfind("\n", 0, same)) + 1]
    return prompt, [
        [context[len(prompt) :], pair.arg_1, _short(score), logp, without]
        for context, pair, score, logp, without in zip(
            contexts, pairs, sample.scores, logps, logps[half:] if alone else [None] * n, strict=False
        )
    ]


def _answer(sample: Sample, choices: list[list[Any]], chosen: int) -> int:
    """The number of the right choice: by the score, else as the row names it, by number or by text."""
    if len(choices) == 1 or sample.acc == 1:
        return max(chosen, 0)
    if len(choices) == 2:
        return 1 - chosen
    texts = [text.strip() for _, text, *_ in choices]
    for named in (sample.target, sample.doc.label):
        if isinstance(named, str) and texts.count(named.strip()) == 1:
            return texts.index(named.strip())
        if isinstance(named, int) and 0 <= named < len(choices):
            return named
    return UNKNOWN


def _short(number: float) -> float | None:
    """Six figures, as many as a reader compares; None for what JSON cannot hold."""
    return float(f"{number:.6g}") if isfinite(number) else None
