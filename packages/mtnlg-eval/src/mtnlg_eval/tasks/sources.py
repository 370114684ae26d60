"""Rows of a task: read from a folder of published files, or loaded from the Hugging Face hub.

    DATA/boolq/val.jsonl                        JSON lines: SuperGLUE (string labels too), ANLI, HellaSwag, WinoGrande
    DATA/race_h/test/high/*.txt                 RACE: one JSON object per file, an article with its questions
    DATA/hans/heuristics_evaluation_set.txt     HANS: a tab-separated table with a header
    DATA/piqa/valid.jsonl, valid-labels.lst     PiQA: labels in a file of their own, line by line
    DATA/lambada/lambada_test_plain_text.txt    LAMBADA: one passage per line; .jsonl with "text" as well
    DATA/wic/train.data.txt, train.gold.txt     WiC: a tab-separated table, labels in a file of their own

Which files are which split, and which are another set, is in published_files.py. The scored split is the paper's
(paper.md 5.2); if it is missing, test stands in for dev and dev for test. Shots come from train, else from a split that
is not scored, else from the scored rows themselves, never from the group of the scored row; LAMBADA's only from rows of
the same variant. Hub data sets and splits are named in tasks/*.yaml.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import datasets
from pydantic import ValidationError

from mtnlg_eval.hub import reach_hub
from mtnlg_model.console import Failure

from .formats import read_raw_rows
from .published_files import files_by_split, scored_split
from .rows import ROWS, VERBATIM, explain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from .formats import RawRow
    from .rows import Document, Row

    Config = Mapping[str, Any]  # of a task's YAML

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class TaskRows:
    """Documents to score and documents to draw shots from.

    ``split`` and ``pool`` name their splits: equal where the shots come from the scored rows. ``malformed`` lists rows
    to score that cannot be, by their number, ``left_out`` malformed rows of the pool, ``other_files`` what belongs to
    another set, ``revision`` is the hub's commit.
    """

    scored: list[Document]
    shots: Sequence[Document]
    split: str
    pool: str
    variant: str | None = None
    malformed: dict[int, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    other_files: list[str] = field(default_factory=list)
    revision: str | None = None

    @property
    def notes(self) -> Iterator[str]:
        """What a user should know of them."""
        yield from (f"row {number} is left out: {why}" for number, why in self.malformed.items())
        if self.other_files:
            yield f"not read, because of another set: {', '.join(self.other_files)}"
        if self.left_out:
            yield f"{len(self.left_out)} malformed rows give no shots, the first {self.left_out[0]}"
        if self.pool == self.split:
            yield f"no {'' if self.variant is None else self.variant + ' '}rows but the scored ones give shots"


def read_task(data: Path, task: str, *, verbatim: bool = False, pools: Sequence[str] = SPLITS) -> TaskRows:
    """Read the rows of ``task`` from ``data/task``; ``pools`` are the splits that may give shots, best first.

    ``verbatim`` documents are the hub's rows with no byte stripped, for stock lm-eval. Malformed rows are left out and
    listed (file:line: reason). Raises ``Failure`` if there are no others.
    """
    files, other_files = files_by_split(data / task, task)
    split = scored_split(data / task, task, files)
    scored = {split: read_raw_rows(task, files[split])}
    candidates = {pool: read_raw_rows(task, files[pool]) for pool in pools if pool in files and pool != split}
    return build_task_rows(
        task, scored, candidates, f"{data / task}, {split}", verbatim=verbatim, other_files=other_files
    )


def build_task_rows(
    task: str,
    scored: Mapping[str, Iterable[RawRow]],
    pools: Mapping[str, Iterable[RawRow]],
    source: str,
    *,
    verbatim: bool = False,
    other_files: Sequence[str] = (),
) -> TaskRows:
    """Validate the rows of the one split in ``scored``, read from ``source``, and the first pool that can give shots.

    Without such a pool the scored rows serve.
    """
    ((split, raw_rows),) = scored.items()
    malformed: dict[int, str] = {}
    documents = _documents(task, raw_rows, malformed, verbatim=verbatim)
    if not documents:
        raise Failure(next(iter(malformed.values()), f"{source}: no rows to score"))
    variant = variant_of(task, documents)
    left_out: dict[int, str] = {}
    for pool, raw_pool in pools.items():
        shots = _documents(task, raw_pool, left_out, verbatim=verbatim)
        if shots and variant_of(task, shots) == variant:
            return TaskRows(documents, shots, split, pool, variant, malformed, [*left_out.values()], list(other_files))
    return TaskRows(documents, documents, split, split, variant, malformed, [*left_out.values()], list(other_files))


def variant_of(task: str, documents: Sequence[Document]) -> str | None:
    """LAMBADA's variant: "original" (tokenized, lower case) or "openai" (as it was written); None for other tasks."""
    if task != "lambada":
        return None
    return "openai" if any(character.isupper() for doc in documents for character in doc["text"]) else "original"


def read_texts(data: Path, task: str) -> Iterator[tuple[str, str]]:
    """Row id and text of each passage, question and option in the scored rows: text to keep out of training data."""
    files, _ = files_by_split(data / task, task)
    return unique_texts(task, read_raw_rows(task, files[scored_split(data / task, task, files)]))


def unique_texts(task: str, rows: Iterable[RawRow]) -> Iterator[tuple[str, str]]:
    """Row id and text of everything in these rows, each text once."""
    seen: set[str] = set()
    for row, _ in _validated(task, rows):
        name = row.id or row.digest()
        for text in row.texts():
            if text not in seen:
                seen.add(text)
                yield name, text


def _validated(task: str, rows: Iterable[RawRow], left_out: dict[int, str] | None = None) -> Iterator[tuple[Row, Any]]:
    """Validate rows, each with what it was parsed from; a malformed one raises ``Failure`` or goes to ``left_out``."""
    schema = ROWS[task]
    for number, (location, parse) in enumerate(rows):
        try:
            raw = parse()
            yield schema.model_validate(raw), raw
        except ValueError as error:
            reason = explain(error) if isinstance(error, ValidationError) else str(error)
            if left_out is None:
                raise Failure(f"{location}: {reason}") from None
            left_out[number] = f"{location}: {reason}"


def _documents(
    task: str, rows: Iterable[RawRow], left_out: dict[int, str], *, verbatim: bool = False
) -> list[Document]:
    """The rows' documents; repeated ids get a number (``#2``), so that ids are unique."""
    counts: dict[str, int] = {}
    documents: list[Document] = []
    for row, raw in _validated(task, rows, left_out):
        own = row.documents()
        if verbatim:  # stock lm-eval scores one question of an article, the last
            identity = {key: own[-1][key] for key in ("id", "group", "digest")}
            own = [identity | ROWS[task].model_validate(raw, context=VERBATIM).hub_row()]
        for document in own:
            name = document["id"]
            counts[name] = counts.get(name, 0) + 1
            documents.append(document if counts[name] == 1 else document | {"id": f"{name}#{counts[name]}"})
    return documents


def load_hub_task(config: Config, *, verbatim: bool = False, pools: Sequence[str] | None = None) -> TaskRows:
    """Load the rows of a task from the hub; ``Failure`` if they cannot be fetched or none can be scored."""
    scored, splits = _hub_split(config), _load_dataset(config)
    pool = config["fewshot_split"]
    wanted = {} if pool == scored or (pools is not None and _plain(pool) not in pools) else {_plain(pool): pool}
    candidates = {name: _hub_rows(config, splits, split) for name, split in wanted.items()}
    rows = {_plain(scored): _hub_rows(config, splits, scored)}
    source = f"{config['dataset_path']} {scored}"
    task_rows = build_task_rows(config["task"], rows, candidates, source, verbatim=verbatim)
    return replace(task_rows, revision=_revision(splits[scored]))


def load_hub_texts(config: Config) -> Iterator[tuple[str, str]]:
    """Like ``read_texts``, for the scored rows on the hub."""
    return unique_texts(config["task"], _hub_rows(config, _load_dataset(config), _hub_split(config)))


def _revision(split: Any) -> str | None:  # noqa: ANN401  (of the library)
    """Commit of the hub that a split's files were fetched from: `datasets` names it in their addresses."""
    addresses = getattr(getattr(split, "info", None), "download_checksums", None) or ()
    commits = {
        match[1] for address in addresses if (match := re.match(r"hf://datasets/[^@]+@([0-9a-f]{40})/", address))
    }
    return commits.pop() if len(commits) == 1 else None


def _plain(split: str) -> str:
    """The split of a hub's name for it: test_r2 is ANLI's test."""
    return split.partition("_")[0]


def _hub_split(config: Config) -> str:
    return str(config.get("test_split") or config["validation_split"])


def _load_dataset(config: Config) -> Mapping[str, Any]:
    path, name = config["dataset_path"], config.get("dataset_name")
    options = dict(config.get("dataset_kwargs") or {})
    if revision := (config.get("metadata") or {}).get("revision"):
        options["revision"] = revision
    reach_hub()
    try:
        splits: Mapping[str, Any] = datasets.load_dataset(path, name, **options)
    except Exception as error:  # noqa: BLE001  (the hub's client raises the errors of many libraries)
        reason = str(error).splitlines()[0]
        raise Failure(f"the rows cannot be fetched: {reason}; pass a folder with --data DIR") from None
    return splits


def _hub_rows(config: Config, splits: Mapping[str, Any], split: str) -> Iterator[RawRow]:
    for number, row in enumerate(splits[split], start=1):
        yield f"{config['dataset_path']} {split} row {number}", partial(dict, row)
