"""Where a task's rows come from: a folder of published files, one folder a task, or the hub.

    DATA/boolq/val.jsonl                        JSON lines: SuperGLUE (string labels too), ANLI, HellaSwag, WinoGrande
    DATA/race_h/test/high/*.txt                 RACE: a file an article, one JSON object with its questions
    DATA/hans/heuristics_evaluation_set.txt     HANS: a table with tabs and a header
    DATA/piqa/valid.jsonl, valid-labels.lst     PiQA: the labels in a file of their own, line by line
    DATA/lambada/lambada_test_plain_text.txt    LAMBADA: a passage a line; .jsonl with "text" as well
    DATA/wic/train.data.txt, train.gold.txt     WiC: a table with tabs, the labels in a file of their own

A file's split is told by a word in its name, or else in the name of a folder above it: train, dev, val or test. Where a
split has both .jsonl and other files, the .jsonl are read. Scored is the split that the paper scores (paper.md 5.2), or
test for dev and dev for test where only that one is there. Shots come from train, else from the split that is not
scored, else from the scored rows themselves, never from the group of the row that is scored.

The nine tasks' rows from the Hugging Face hub, under the names that their YAML gives.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import datasets
from pydantic import ValidationError

from mtnlg_model.console import Failure

from .formats import SUFFIXES, holds_rows, raw_rows, split_of
from .rows import ROWS, explain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from .formats import Raw
    from .rows import Document, Row

    Config = Mapping[str, Any]  # of a task's YAML


SCORED_ON_TEST = frozenset({"lambada", "race_h", "anli_r2"})
"""The tasks that the paper scores on their test split; the others on dev (paper.md 5.2)."""


@dataclass(frozen=True)
class TaskRows:
    """The documents to score and the pool of shots; ``left_out`` names the pool's malformed rows."""

    scored: list[Document]
    shots: list[Document]
    left_out: list[str] = field(default_factory=list)


def read_task(data: Path, task: str) -> TaskRows:
    """The rows of ``task`` under ``data``.

    Raises ``Failure`` in one line where there are none, or where a row to score is malformed (file:line: what). A
    malformed row of the pool is left out and named, since the others serve as well.
    """
    files = _files_by_split(data / task)
    scored = _scored_split(data / task, task, files)
    pool = next((split for split in ("train", "validation", "test") if split in files and split != scored), None)
    given = raw_rows(task, files[pool]) if pool else None
    return task_rows(task, raw_rows(task, files[scored]), given, f"{data / task}, {scored}")


def task_rows(task: str, scored: Iterable[Raw], pool: Iterable[Raw] | None, where: str) -> TaskRows:
    """Check the rows to score, which come from ``where``, and those of the pool; without it the scored rows are it."""
    documents = _documents(_rows(task, scored))
    if not documents:
        raise Failure(f"{where}: no rows to score")
    if pool is None:
        return TaskRows(documents, documents)
    left_out: list[str] = []
    return TaskRows(documents, _documents(_rows(task, pool, left_out)), left_out)


def read_texts(data: Path, task: str) -> Iterator[tuple[str, str]]:
    """Id and text of all that the scored rows of ``task`` say: what must not be trained on."""
    files = _files_by_split(data / task)
    return row_texts(task, raw_rows(task, files[_scored_split(data / task, task, files)]))


def row_texts(task: str, raw: Iterable[Raw]) -> Iterator[tuple[str, str]]:
    """Id and text of each thing that these rows say, each text once."""
    seen: set[str] = set()
    for row in _rows(task, raw):
        name = row.id or row.group()
        for text in row.texts():
            if text not in seen:
                seen.add(text)
                yield name, text


def _rows(task: str, raw: Iterable[Raw], left_out: list[str] | None = None) -> Iterator[Row]:
    """The rows, checked; a malformed one is raised, or named in ``left_out`` where that is given."""
    schema = ROWS[task]
    for place, read in raw:
        try:
            yield schema.model_validate(read())
        except ValueError as error:
            why = explain(error) if isinstance(error, ValidationError) else str(error)
            if left_out is None:
                raise Failure(f"{place}: {why}") from None
            left_out.append(f"{place}: {why}")


def _documents(rows: Iterable[Row]) -> list[Document]:
    """The documents of these rows; an id that comes again is numbered, so that ids are unique."""
    seen: dict[str, int] = {}
    documents: list[Document] = []
    for document in (document for row in rows for document in row.documents()):
        name = document["id"]
        seen[name] = seen.get(name, 0) + 1
        documents.append(document if seen[name] == 1 else document | {"id": f"{name}#{seen[name]}"})
    return documents


def _files_by_split(folder: Path) -> dict[str, list[Path]]:
    if not folder.is_dir():
        raise Failure(f"{folder}: no such folder; put the task's published files there")
    splits: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.is_file() and holds_rows(path) and (split := split_of(parts, path)):
            splits.setdefault(split, []).append(path)
    if not splits:
        raise Failure(f"{folder}: no {', '.join(SUFFIXES)} file with train, dev, val or test in its name")
    return {split: _of_one_kind(paths) for split, paths in splits.items()}


def _of_one_kind(paths: Sequence[Path]) -> list[Path]:
    first = min(SUFFIXES.index(path.suffix) for path in paths)
    return [path for path in paths if path.suffix == SUFFIXES[first]]


def _scored_split(folder: Path, task: str, files: dict[str, list[Path]]) -> str:
    order = ("test", "validation") if task in SCORED_ON_TEST else ("validation", "test")
    for split in order:
        if split in files:
            return split
    raise Failure(f"{folder}: only training rows; a file with {' or '.join(order)} in its name is needed")


def hub_rows(config: Config) -> TaskRows:
    """The rows of a task; ``Failure`` in one line where the hub does not give them."""
    scored, pool = _hub_split(config), config["fewshot_split"]
    splits = _load(config)
    given = None if pool == scored else _raw(config, splits, pool)
    return task_rows(config["task"], _raw(config, splits, scored), given, f"{config['dataset_path']} {scored}")


def hub_texts(config: Config) -> Iterator[tuple[str, str]]:
    """Id and text of all that the scored rows say: what must not be trained on."""
    return row_texts(config["task"], _raw(config, _load(config), _hub_split(config)))


def _hub_split(config: Config) -> str:
    return str(config.get("test_split") or config["validation_split"])


def _load(config: Config) -> Mapping[str, Any]:
    path, name = config["dataset_path"], config.get("dataset_name")
    try:
        splits: Mapping[str, Any] = datasets.load_dataset(path, name, **config.get("dataset_kwargs") or {})
    except Exception as error:  # noqa: BLE001  (the hub's client raises what its many libraries raise)
        why = str(error).splitlines()[0]
        raise Failure(f"the rows cannot be fetched: {why}; --data DIR takes them from a folder") from None
    return splits


def _raw(config: Config, splits: Mapping[str, Any], split: str) -> Iterator[Raw]:
    for number, row in enumerate(splits[split], start=1):
        yield f"{config['dataset_path']} {split} row {number}", partial(dict, row)
