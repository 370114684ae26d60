"""Rows of a task: read from a folder of published files, or loaded from the Hugging Face hub.

    DATA/boolq/val.jsonl                        JSON lines: SuperGLUE (string labels too), ANLI, HellaSwag, WinoGrande
    DATA/race_h/test/high/*.txt                 RACE: one JSON object per file, an article with its questions
    DATA/hans/heuristics_evaluation_set.txt     HANS: a tab-separated table with a header
    DATA/piqa/valid.jsonl, valid-labels.lst     PiQA: labels in a file of their own, line by line
    DATA/lambada/lambada_test_plain_text.txt    LAMBADA: one passage per line; .jsonl with "text" as well
    DATA/wic/train.data.txt, train.gold.txt     WiC: a tab-separated table, labels in a file of their own

A file's split is a word in its name, or else in the name of a folder above it: train, dev, val or test. If a split has
both .jsonl and other files, only the .jsonl are read. The scored split is the paper's (paper.md 5.2); if it is missing,
test stands in for dev and dev for test. Shots come from train, else from the split that is not scored, else from the
scored rows themselves, never from the group of the scored row. Hub data sets and splits are named in tasks/*.yaml.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import datasets
from pydantic import ValidationError

from mtnlg_model.console import Failure

from .formats import SUFFIXES, is_row_file, read_raw_rows, split_of
from .rows import ROWS, explain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from .formats import RawRow
    from .rows import Document, Row

    Config = Mapping[str, Any]  # of a task's YAML


SCORED_ON_TEST = frozenset({"lambada", "race_h", "anli_r2"})
"""Tasks that the paper scores on the test split; the others use dev (paper.md 5.2)."""


@dataclass(frozen=True)
class TaskRows:
    """Documents to score and documents to draw shots from; ``left_out`` lists malformed rows of the second."""

    scored: list[Document]
    shots: list[Document]
    left_out: list[str] = field(default_factory=list)


def read_task(data: Path, task: str) -> TaskRows:
    """Read the rows of ``task`` from ``data/task``.

    Raises ``Failure`` if there are none, or if a row to score is malformed (file:line: reason). Malformed rows of the
    shot pool are left out and listed.
    """
    files = _files_by_split(data / task)
    scored = _scored_split(data / task, task, files)
    pool = next((split for split in ("train", "validation", "test") if split in files and split != scored), None)
    pool_rows = read_raw_rows(task, files[pool]) if pool else None
    return build_task_rows(task, read_raw_rows(task, files[scored]), pool_rows, f"{data / task}, {scored}")


def build_task_rows(task: str, scored: Iterable[RawRow], pool: Iterable[RawRow] | None, source: str) -> TaskRows:
    """Validate the rows to score, read from ``source``, and the shot pool; without a pool the scored rows serve."""
    documents = _documents(_validated(task, scored))
    if not documents:
        raise Failure(f"{source}: no rows to score")
    if pool is None:
        return TaskRows(documents, documents)
    left_out: list[str] = []
    return TaskRows(documents, _documents(_validated(task, pool, left_out)), left_out)


def read_texts(data: Path, task: str) -> Iterator[tuple[str, str]]:
    """Row id and text of each passage, question and option in the scored rows: text to keep out of training data."""
    files = _files_by_split(data / task)
    return unique_texts(task, read_raw_rows(task, files[_scored_split(data / task, task, files)]))


def unique_texts(task: str, rows: Iterable[RawRow]) -> Iterator[tuple[str, str]]:
    """Row id and text of everything in these rows, each text once."""
    seen: set[str] = set()
    for row in _validated(task, rows):
        name = row.id or row.group()
        for text in row.texts():
            if text not in seen:
                seen.add(text)
                yield name, text


def _validated(task: str, rows: Iterable[RawRow], left_out: list[str] | None = None) -> Iterator[Row]:
    """Validate rows; a malformed one raises ``Failure``, or is appended to ``left_out`` if that list is passed."""
    schema = ROWS[task]
    for location, parse in rows:
        try:
            yield schema.model_validate(parse())
        except ValueError as error:
            reason = explain(error) if isinstance(error, ValidationError) else str(error)
            if left_out is None:
                raise Failure(f"{location}: {reason}") from None
            left_out.append(f"{location}: {reason}")


def _documents(rows: Iterable[Row]) -> list[Document]:
    """The rows' documents; repeated ids get a number (``#2``), so that ids are unique."""
    counts: dict[str, int] = {}
    documents: list[Document] = []
    for document in (document for row in rows for document in row.documents()):
        name = document["id"]
        counts[name] = counts.get(name, 0) + 1
        documents.append(document if counts[name] == 1 else document | {"id": f"{name}#{counts[name]}"})
    return documents


def _files_by_split(folder: Path) -> dict[str, list[Path]]:
    """Row files under ``folder`` by split, in path order; of several formats only the preferred one."""
    if not folder.is_dir():
        raise Failure(f"{folder}: no such folder; put the task's published files there")
    splits: dict[str, list[Path]] = {}
    for path in sorted(path for path in folder.rglob("*") if is_row_file(path) and path.is_file()):
        if split := split_of(path.relative_to(folder).parts, path):
            splits.setdefault(split, []).append(path)
    if not splits:
        raise Failure(f"{folder}: no {', '.join(SUFFIXES)} file with train, dev, val or test in its name")
    for split, paths in splits.items():
        preferred = min((path.suffix for path in paths), key=SUFFIXES.index)
        splits[split] = [path for path in paths if path.suffix == preferred]
    return splits


def _scored_split(folder: Path, task: str, files: dict[str, list[Path]]) -> str:
    order = ("test", "validation") if task in SCORED_ON_TEST else ("validation", "test")
    for split in order:
        if split in files:
            return split
    raise Failure(f"{folder}: only training rows; add a file with {' or '.join(order)} in its name")


def load_hub_task(config: Config) -> TaskRows:
    """Load the rows of a task from the hub; ``Failure`` if they cannot be fetched or one to score is malformed."""
    scored, pool = _hub_split(config), config["fewshot_split"]
    splits = _load_dataset(config)
    pool_rows = None if pool == scored else _hub_rows(config, splits, pool)
    return build_task_rows(
        config["task"], _hub_rows(config, splits, scored), pool_rows, f"{config['dataset_path']} {scored}"
    )


def load_hub_texts(config: Config) -> Iterator[tuple[str, str]]:
    """Like ``read_texts``, for the scored rows on the hub."""
    return unique_texts(config["task"], _hub_rows(config, _load_dataset(config), _hub_split(config)))


def _hub_split(config: Config) -> str:
    return str(config.get("test_split") or config["validation_split"])


def _load_dataset(config: Config) -> Mapping[str, Any]:
    path, name = config["dataset_path"], config.get("dataset_name")
    try:
        splits: Mapping[str, Any] = datasets.load_dataset(path, name, **config.get("dataset_kwargs") or {})
    except Exception as error:  # noqa: BLE001  (the hub's client raises the errors of many libraries)
        reason = str(error).splitlines()[0]
        raise Failure(f"the rows cannot be fetched: {reason}; pass a folder with --data DIR") from None
    return splits


def _hub_rows(config: Config, splits: Mapping[str, Any], split: str) -> Iterator[RawRow]:
    for number, row in enumerate(splits[split], start=1):
        yield f"{config['dataset_path']} {split} row {number}", partial(dict, row)
