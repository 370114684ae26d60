"""Readers of the file formats that the nine tasks are published in.

A reader yields one (location, parse) pair per row: the location is file:line, ``parse()`` returns the row or raises
``ValueError`` saying what is wrong, so that the caller may skip the row. Labels in a file of their own that do not
pair with the rows raise ``Failure``.
"""

from __future__ import annotations

import json
import re
from functools import partial
from typing import TYPE_CHECKING, Any

from mtnlg_model.console import Failure
from mtnlg_model.files import file_lines, read_small

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    RawRow = tuple[str, Callable[[], Any]]

SPLITS = {
    "train": {"train", "training"},
    "validation": {"dev", "development", "val", "valid", "validation", "eval", "evaluation"},
    "test": {"test", "tests"},
}
"""Words in a file or folder name that stand for a split."""

SUFFIXES = (".jsonl", ".json", ".tsv", ".txt")
"""Suffixes of files with rows, preferred ones first."""


def read_raw_rows(task: str, paths: Iterable[Path]) -> Iterator[RawRow]:
    """Yield the rows of these files of ``task``, in file order."""
    for path in paths:
        if task == "piqa":
            yield from _read_piqa(path)
        elif path.suffix == ".jsonl":
            yield from ((location, partial(_parse_json, line)) for location, line in _lines(path))
        elif task == "race_h":
            yield str(path), partial(_parse_json, read_small(path, follow=True))
        elif task == "hans":
            yield from _read_tsv(path)
        elif task == "wic":
            yield from _read_wic(path)
        elif task == "lambada":
            yield from ((location, partial(_parse_passage, line)) for location, line in _lines(path))
        else:
            raise Failure(f"{path}: {task} is read from .jsonl files")


def split_of(names: Iterable[str], path: object) -> str | None:
    """Split named by the last of these path components that contains a split word; None if none does."""
    for name in reversed(list(names)):
        splits = [split for split, words in SPLITS.items() if words & set(_words(name))]
        if len(splits) > 1:
            raise Failure(f"{path}: {' and '.join(sorted(splits))} in one name; leave one of them")
        if splits:
            return splits[0]
    return None


def is_row_file(path: Path) -> bool:
    """Whether the file name says it holds rows; hidden files and label files (``gold``) do not."""
    return path.suffix in SUFFIXES and "gold" not in _words(path.name) and not path.name.startswith(".")


def _words(name: str) -> list[str]:
    return re.split(r"[^a-z]+", name.lower())


def _lines(path: Path) -> list[tuple[str, bytes]]:
    """Location and bytes of every line that is not blank."""
    lines = enumerate(file_lines(path, follow=True), start=1)
    return [(f"{path}:{n}", line.rstrip(b"\r\n")) for n, line in lines if line.strip()]


def _parse_json(text: bytes) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None


def _parse_passage(line: bytes) -> dict[str, str]:
    return {"text": line.decode()}


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


def _read_piqa(path: Path) -> Iterator[RawRow]:
    """PiQA's JSON lines, with labels from the .lst file of the same split if there is one."""
    split = split_of([path.name], path)
    label_files = [file for file in sorted(path.parent.glob("*.lst")) if split_of([file.name], file) == split]
    if not label_files:
        yield from ((location, partial(_parse_json, line)) for location, line in _lines(path))
        return
    for location, line, label in _pair_labels(path, label_files[0]):
        yield location, partial(_parse_labelled_json, line, label)


def _parse_labelled_json(line: bytes, label: str) -> object:
    row = _parse_json(line)
    return row | {"label": label} if isinstance(row, dict) else row


def _read_wic(path: Path) -> Iterator[RawRow]:
    """WiC's original table, with labels T and F from its gold file."""
    gold = path.with_name(path.name.replace("data", "gold"))
    if gold == path or not gold.exists():
        raise Failure(f"{path}: its label file {path.name.replace('data', 'gold')} is missing")
    for location, line, label in _pair_labels(path, gold):
        yield location, partial(_parse_wic, line, label)


def _parse_wic(line: bytes, label: str) -> dict[str, Any]:
    """A row in SuperGLUE's form from: word, part of speech, word indices such as 2-1, and two sentences."""
    cells = line.decode().split("\t")
    if len(cells) != 5 or not re.fullmatch(r"\d+-\d+", cells[2]):
        raise ValueError("needs five tab-separated cells: word, part of speech, indices such as 2-1, two sentences")
    words = list(re.finditer(r"\S+", cells[3]))
    index = int(cells[2].split("-")[0])
    if index >= len(words):
        raise ValueError(f"index {cells[2]}: the first sentence has {len(words)} words")
    start, end = words[index].span()
    return {"sentence1": cells[3], "sentence2": cells[4], "start1": start, "end1": end, "label": label}


def _pair_labels(path: Path, label_file: Path) -> Iterator[tuple[str, bytes, str]]:
    """Location, line and label of each row; labels are the lines of ``label_file``."""
    rows, labels = _lines(path), _lines(label_file)
    if len(rows) != len(labels):
        raise Failure(f"{label_file}: {len(labels)} labels for the {len(rows)} rows of {path.name}")
    for (location, line), (_, label) in zip(rows, labels, strict=True):
        yield location, line, label.decode(errors="replace")
