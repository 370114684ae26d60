"""The files that the nine tasks are published in: which files in a folder are which split, and readers of the formats.

A file's split is a word in its name, or else in the name of a folder above it: train, dev, val or test. Archives hold
other sets in addition to the task's own (RACE's middle school, ANLI's rounds 1 and 3, LAMBADA's control set): their
files are skipped, never merged. If a split has both .jsonl and other files, only the .jsonl are read. The
largest of WinoGrande's training files is read. Any other split is one file; only RACE has a file per article.

A reader yields one (location, parse) pair per row: the location is file:line, ``parse()`` returns the row or raises
``ValueError`` saying what is wrong, so that the caller may skip the row. Labels in a separate file that do not match
the rows in number raise ``Failure``.
"""

from __future__ import annotations

import json
import re
from functools import partial
from typing import TYPE_CHECKING, Any

from mtnlg_model.console import Failure
from mtnlg_model.files import file_lines, read_small

from .published import TASKS_BY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    RawRow = tuple[str, Callable[[], Any]]

SPLITS = {
    "train": {"train", "training"},
    "validation": {"dev", "development", "val", "valid", "validation", "eval", "evaluation"},
    "test": {"test", "tests"},
}
"""Words in a file or folder name that denote a split."""

SUFFIXES = (".jsonl", ".json", ".tsv", ".txt")
"""Suffixes of files with rows, preferred ones first."""


OTHER_SETS = {"lambada": {"control"}, "race_h": {"middle"}, "anli_r2": {"r1", "r3"}}
"""Words in the names of files and folders of other sets that are published with a task's own."""

SIZES = ("xl", "l", "m", "s", "xs")
"""Sizes of WinoGrande's training set, each a subset of the one before."""


def files_by_split(folder: Path, task: str) -> dict[str, list[Path]]:
    """Row files under ``folder`` by split, in path order, without those of other sets.

    Raises ``Failure`` if no file has the word of a split, or if a split has two files.
    """
    if not folder.is_dir():
        raise Failure(f"{folder}: no such folder; put the task's published files there")
    splits: dict[str, list[Path]] = {}
    for path in sorted(path for path in folder.rglob("*") if is_row_file(path) and path.is_file()):
        parts = path.relative_to(folder).parts
        is_other = OTHER_SETS.get(task, set()) & _parts("/".join(parts))
        if not is_other and (split := split_of(parts, path)):
            splits.setdefault(split, []).append(path)
    if not splits:
        raise Failure(f"{folder}: no {', '.join(SUFFIXES)} file of {task} with train, dev, val or test in its name")
    return {split: _one_file(folder, task, split, paths) for split, paths in splits.items()}


def _one_file(folder: Path, task: str, split: str, paths: Sequence[Path]) -> list[Path]:
    """The files of the preferred format, which is one file except for RACE's articles."""
    preferred = min((path.suffix for path in paths), key=SUFFIXES.index)
    files = [path for path in paths if path.suffix == preferred]
    if task == "winogrande" and split == "train":
        by_size = {size: path for path in files for size in _parts(path.stem) & set(SIZES)}
        files = [by_size[size] for size in SIZES if size in by_size][:1] or files
    if task != "race_h" and len(files) > 1:
        names = ", ".join(str(path.relative_to(folder)) for path in files[:4])
        raise Failure(f"{folder}: {len(files)} files of the {split} split ({names}); keep only one")
    return files


def scored_split(folder: Path, task: str, files: Mapping[str, object]) -> str:
    """The split to score: the paper's, else the other one. Raises ``Failure`` if there are only training rows."""
    order = sorted(("validation", "test"), key=lambda split: split != TASKS_BY_NAME[task].split)
    for split in order:
        if split in files:
            return split
    raise Failure(f"{folder}: only training rows; add a file with {' or '.join(order)} in its name")


def read_raw_rows(task: str, paths: Iterable[Path]) -> Iterator[RawRow]:
    """Yield the rows of these files of ``task``, in file order."""
    for path in paths:
        if task == "piqa" and (labels := _piqa_labels(path)):
            yield from _labelled(path, labels)
        elif path.suffix == ".jsonl":
            yield from _rows(path, _parse_json)
        elif task == "race_h":
            yield str(path), partial(_parse_json, read_small(path, follow=True))
        elif task == "hans":
            yield from _read_tsv(path)
        elif task == "lambada":
            yield from _rows(path, lambda line: {"text": line.decode()})
        else:
            raise Failure(f"{path}: {task} is read from .jsonl files")


def split_of(names: Iterable[str], path: object) -> str | None:
    """Split named by the last of these path components that contains a split word; None if there is none."""
    for name in reversed(list(names)):
        splits = [split for split, words in SPLITS.items() if words & _parts(re.sub(r"\d", " ", name))]
        if len(splits) > 1:
            raise Failure(f"{path}: {' and '.join(sorted(splits))} in one name; keep only one")
        if splits:
            return splits[0]
    return None


def is_row_file(path: Path) -> bool:
    """Whether the file name says it holds rows; hidden files and label files (``gold``) do not."""
    return path.suffix in SUFFIXES and "gold" not in _parts(path.name) and not path.name.startswith(".")


def _parts(name: str) -> set[str]:
    return set(re.split(r"[^a-z0-9]+", name.lower()))


def _lines(path: Path) -> list[tuple[str, bytes]]:
    """Location and bytes of every line that is not blank."""
    lines = enumerate(file_lines(path, follow=True), start=1)
    return [(f"{path}:{n}", line.rstrip(b"\r\n")) for n, line in lines if line.strip()]


def _parse_json(text: bytes) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None


def _rows(path: Path, parse: Callable[[bytes], Any]) -> Iterator[RawRow]:
    return ((location, partial(parse, line)) for location, line in _lines(path))


def _read_tsv(path: Path) -> Iterator[RawRow]:
    """A tab-separated table with column names in its first line."""
    (_, header), *lines = _lines(path) or [("", b"")]
    columns = header.decode(errors="replace").split("\t")
    for location, line in lines:
        yield location, partial(_parse_cells, columns, line)


def _parse_cells(columns: list[str], line: bytes) -> dict[str, str]:
    cells = line.decode().split("\t")
    if len(cells) != len(columns):
        raise ValueError(f"{len(cells)} columns where the header has {len(columns)}")
    return dict(zip(columns, cells, strict=True))


def _piqa_labels(path: Path) -> Path | None:
    """The .lst file of the same split, if there is one."""
    split = split_of([path.name], path)
    return next((file for file in sorted(path.parent.glob("*.lst")) if split_of([file.name], file) == split), None)


def _parse_labelled(line: bytes, label: str) -> object:
    row = _parse_json(line)
    return row | {"label": label} if isinstance(row, dict) else row


def _labelled(path: Path, label_file: Path) -> Iterator[RawRow]:
    """Rows of ``path``, each with its label, the same line of ``label_file``."""
    rows, labels = _lines(path), _lines(label_file)
    if len(rows) != len(labels):
        raise Failure(f"{label_file}: {len(labels)} labels for the {len(rows)} rows of {path.name}")
    for (location, line), (_, label) in zip(rows, labels, strict=True):
        yield location, partial(_parse_labelled, line, label.decode(errors="replace"))
