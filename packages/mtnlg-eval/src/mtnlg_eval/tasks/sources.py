"""Rows of a task: read from a folder of published files, or loaded from the Hugging Face hub.

    DATA/boolq/val.jsonl                        JSON lines: SuperGLUE (string labels too), ANLI, HellaSwag, WinoGrande
    DATA/race_h/test/high/*.txt                 RACE: one JSON object per file, an article with its questions
    DATA/hans/heuristics_evaluation_set.txt     HANS: a tab-separated table with a header
    DATA/piqa/valid.jsonl, valid-labels.lst     PiQA: labels in a separate file, line by line
    DATA/lambada/lambada_test_plain_text.txt    LAMBADA: one passage per line; .jsonl with "text" as well

formats.py determines which files are which split, and which belong to another set. The scored split is the paper's
(paper.md 5.2); if it is missing, test replaces dev and dev replaces test. Shots come from train, else from a split that
is not scored, else from the scored rows themselves, never from the group of the scored row; LAMBADA's only from rows of
the same variant. Hub data sets and splits are named in tasks/*.yaml.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasets
from lm_eval.tasks._yaml_loader import load_yaml
from pydantic import ValidationError

from mtnlg_eval.hub import reach_hub
from mtnlg_eval.records import explain
from mtnlg_model.console import Failure

from .formats import SPLITS, files_by_split, read_raw_rows, scored_split
from .rows import ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from .formats import RawRow
    from .rows import Document, Row


@dataclass(frozen=True)
class TaskRows:
    """Documents to score and documents to draw shots from.

    ``split`` and ``pool`` name their splits, which are equal if the shots come from the scored rows. ``malformed`` has
    the reason why a row cannot be scored, by row number; ``left_out`` lists malformed rows of the pool; ``revision`` is
    the hub's commit.
    """

    scored: list[Document]
    shots: Sequence[Document]
    split: str
    pool: str
    variant: str | None = None
    malformed: dict[int, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    revision: str | None = None

    def notes(self, *, shots: bool) -> Iterator[str]:
        """Notes for the user on rows that are left out, and, if there are ``shots``, on their source."""
        yield from (f"row {number} is skipped: {why}" for number, why in self.malformed.items())
        if shots and self.left_out:
            yield f"{len(self.left_out)} malformed rows are not used as shots, the first {self.left_out[0]}"
        if shots and self.pool == self.split:
            yield f"no {'' if self.variant is None else self.variant + ' '}rows other than the scored ones for shots"


@dataclass(frozen=True)
class Published:
    """The published rows of a task by split: the split to score, and ``pools`` that may give shots.

    Each of ``splits`` reads its rows when called; ``source`` names the place.
    """

    task: str
    source: str
    splits: Mapping[str, Callable[[], Iterable[RawRow]]]
    scored: str
    pools: Sequence[str] = ()
    revision: str | None = None

    def rows(self) -> TaskRows:
        """The documents to score, and shots from the first of ``pools`` that has any, else from the scored rows.

        Malformed rows are left out and listed (file:line: reason). Raises ``Failure`` if no row is left to score.
        """
        malformed: dict[int, str] = {}
        documents = _documents(self.task, self.splits[self.scored](), malformed)
        if not documents:
            raise Failure(next(iter(malformed.values()), f"{self.source}: no rows to score"))
        variant = variant_of(self.task, documents)
        found, left_out = (documents, self.scored), dict[int, str]()
        for pool in self.pools:
            shots = _documents(self.task, self.splits[pool](), left_out)
            if shots and variant_of(self.task, shots) == variant:
                found = shots, pool
                break
        told = malformed, [*left_out.values()], self.revision
        return TaskRows(documents, found[0], self.scored, found[1], variant, *told)

    def texts(self) -> Iterator[tuple[str, str]]:
        """Row id and text of each passage, question and option to score, once: text to keep out of training data."""
        seen: set[str] = set()
        for row in _validated(self.task, self.splits[self.scored]()):
            name = row.id or row.digest()
            for text in row.texts():
                if text not in seen:
                    seen.add(text)
                    yield name, text


def task_config(task: str) -> dict[str, Any]:
    """The YAML of one of the nine tasks."""
    config: dict[str, Any] = load_yaml(Path(__file__).with_name(f"{task}.yaml"))
    return config


def open_rows(task: str, data: Path | None, revision: str | None = None) -> Published:
    """The rows in ``data/task``, or, if ``data`` is None, of the hub's data set at ``revision`` (default: the newest).

    Raises ``Failure`` if they are missing or cannot be fetched.
    """
    if data is None:
        return _open_hub(task, task_config(task), revision)
    files = files_by_split(data / task, task)
    scored = scored_split(data / task, task, files)
    splits = {split: partial(read_raw_rows, task, paths) for split, paths in files.items()}
    pools = [split for split in SPLITS if split in files and split != scored]
    return Published(task, f"{data / task}, {scored}", splits, scored, pools)


def _open_hub(task: str, config: Mapping[str, Any], revision: str | None) -> Published:
    path, name = config["dataset_path"], config.get("dataset_name")
    options = config.get("dataset_kwargs", {}) | ({"revision": revision} if revision else {})
    reach_hub()
    try:
        found: Mapping[str, Any] = datasets.load_dataset(path, name, **options)
    except Exception as error:  # noqa: BLE001  (the hub's client raises the errors of many libraries)
        reason = str(error).splitlines()[0]
        raise Failure(f"the rows cannot be fetched: {reason}; pass a folder with --data DIR") from None
    scored, pool = str(config.get("test_split") or config["validation_split"]), str(config["fewshot_split"])
    plain = {split: split.partition("_")[0] for split in (scored, pool)}  # test_r2 is ANLI's test
    splits = {plain[split]: partial(_hub_rows, path, split, found[split]) for split in plain}
    pools = [] if pool == scored else [plain[pool]]
    return Published(task, f"{path} {scored}", splits, plain[scored], pools, _revision(found[scored]))


def _hub_rows(path: str, split: str, rows: Iterable[Any]) -> Iterator[RawRow]:
    for number, row in enumerate(rows, start=1):
        yield f"{path} {split} row {number}", partial(dict, row)


def _revision(split: Any) -> str | None:  # noqa: ANN401  (of the library)
    """Commit of the hub that a split's files were fetched from: `datasets` names it in their addresses."""
    addresses = getattr(getattr(split, "info", None), "download_checksums", None) or ()
    commits = {
        match[1] for address in addresses if (match := re.match(r"hf://datasets/[^@]+@([0-9a-f]{40})/", address))
    }
    return commits.pop() if len(commits) == 1 else None


def variant_of(task: str, documents: Sequence[Document]) -> str | None:
    """LAMBADA's variant: "original" (tokenized, lower case) or "openai" (as it was written); None for other tasks."""
    if task != "lambada":
        return None
    return "openai" if any(character.isupper() for doc in documents for character in doc["text"]) else "original"


def _validated(task: str, rows: Iterable[RawRow], left_out: dict[int, str] | None = None) -> Iterator[Row]:
    """Yield the valid rows. A malformed row goes to ``left_out``, or raises ``Failure`` if that is None."""
    for number, (location, parse) in enumerate(rows):
        try:
            yield ROWS[task].model_validate(parse())
        except ValueError as error:
            reason = explain(error) if isinstance(error, ValidationError) else str(error)
            if left_out is None:
                raise Failure(f"{location}: {reason}") from None
            left_out[number] = f"{location}: {reason}"


def _documents(task: str, rows: Iterable[RawRow], left_out: dict[int, str]) -> list[Document]:
    """The rows' documents; repeated ids get a number (``#2``), so that ids are unique."""
    counts: dict[str, int] = {}
    documents: list[Document] = []
    for row in _validated(task, rows, left_out):
        for document in row.documents():
            name = document["id"]
            counts[name] = counts.get(name, 0) + 1
            documents.append(document if counts[name] == 1 else document | {"id": f"{name}#{counts[name]}"})
    return documents
