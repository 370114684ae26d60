"""The files that the nine tasks are published in: for each row its place (file:line) and how to read it.

Reading a row raises ``ValueError`` with what is wrong, so that whoever iterates may go on with the next. A file that
cannot be paired with its labels raises ``Failure``.
"""

from __future__ import annotations

import json
import re
from functools import partial
from typing import TYPE_CHECKING, Any

from mtnlg_model.console import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    Raw = tuple[str, Callable[[], Any]]

SPLITS = {
    "train": "train",
    "training": "train",
    "dev": "validation",
    "development": "validation",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "eval": "validation",
    "evaluation": "validation",
    "test": "test",
    "tests": "test",
}
"""The words that tell a split."""

SUFFIXES = (".jsonl", ".json", ".tsv", ".txt")
"""Rows lie in files of these kinds."""


def raw_rows(task: str, paths: Iterable[Path]) -> Iterator[Raw]:
    """The rows of these files of ``task``, in their order."""
    for path in paths:
        if task == "piqa":
            yield from _piqa(path)
        elif path.suffix == ".jsonl":
            yield from ((place, partial(_json, line)) for place, line in _lines(path))
        elif task == "race_h":
            yield str(path), partial(_json, path.read_bytes())
        elif task == "hans":
            yield from _table(path)
        elif task == "wic":
            yield from _wic(path)
        elif task == "lambada":
            yield from ((place, partial(_passage, line)) for place, line in _lines(path))
        else:
            raise Failure(f"{path}: {task} is read from .jsonl files")


def split_of(parts: Iterable[str], place: object) -> str | None:
    """The split that a word in the last of these names tells, or in one before it; None where no name tells one."""
    for part in reversed(list(parts)):
        found = {SPLITS[word] for word in _words(part) if word in SPLITS}
        if len(found) > 1:
            raise Failure(f"{place}: {' and '.join(sorted(found))} in one name; leave one of them")
        if found:
            return found.pop()
    return None


def holds_rows(path: Path) -> bool:
    """Whether a file may hold rows; one with the labels of another does not."""
    return path.suffix in SUFFIXES and "gold" not in _words(path.name) and not path.name.startswith(".")


def _words(name: str) -> list[str]:
    return re.split(r"[^a-z]+", name.lower())


def _lines(path: Path) -> list[tuple[str, bytes]]:
    with path.open("rb") as file:
        return [(f"{path}:{n}", line.rstrip(b"\r\n")) for n, line in enumerate(file, start=1) if line.strip()]


def _json(text: bytes) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None


def _passage(line: bytes) -> dict[str, str]:
    return {"text": line.decode()}


def _table(path: Path) -> Iterator[Raw]:
    """A table with tabs whose first line names the columns."""
    (_, header), *lines = _lines(path) or [("", b"")]
    for place, line in lines:
        yield place, partial(_cells, header.decode(errors="replace").split("\t"), line)


def _cells(header: list[str], line: bytes) -> dict[str, str]:
    cells = line.decode().split("\t")
    if len(cells) != len(header):
        raise ValueError(f"{len(cells)} columns where the header has {len(header)}")
    return dict(zip(header, cells, strict=True))


def _piqa(path: Path) -> Iterator[Raw]:
    """PiQA's rows, with their labels out of the .lst file of the same split where there is one."""
    split = split_of([path.name], path)
    labels = [other for other in sorted(path.parent.glob("*.lst")) if split_of([other.name], other) == split]
    if not labels:
        yield from ((place, partial(_json, line)) for place, line in _lines(path))
        return
    for place, line, label in _paired(path, labels[0]):
        yield place, partial(_labelled, line, label)


def _labelled(line: bytes, label: str) -> object:
    row = _json(line)
    return row | {"label": label} if isinstance(row, dict) else row


def _wic(path: Path) -> Iterator[Raw]:
    """WiC's own table, with the labels T and F out of its gold file."""
    gold = path.with_name(path.name.replace("data", "gold"))
    if gold == path or not gold.exists():
        raise Failure(f"{path}: no {path.name.replace('data', 'gold')} with its labels beside it")
    for place, line, label in _paired(path, gold):
        yield place, partial(_word_in_two_sentences, line, label)


def _word_in_two_sentences(line: bytes, label: str) -> dict[str, Any]:
    """From word, part of speech, places counted in words such as 2-1, and two sentences: the SuperGLUE form."""
    cells = line.decode().split("\t")
    if len(cells) != 5 or not re.fullmatch(r"\d+-\d+", cells[2]):
        raise ValueError("not word, part of speech, places such as 2-1 and two sentences, with tabs between them")
    words = list(re.finditer(r"\S+", cells[3]))
    number = int(cells[2].split("-")[0])
    if number >= len(words):
        raise ValueError(f"place {cells[2]}: the first sentence has {len(words)} words")
    start, end = words[number].span()
    return {"sentence1": cells[3], "sentence2": cells[4], "start1": start, "end1": end, "label": label}


def _paired(path: Path, labels: Path) -> Iterator[tuple[str, bytes, str]]:
    """Place, line and label, the labels being the lines of a file of their own."""
    rows, named = _lines(path), _lines(labels)
    if len(rows) != len(named):
        raise Failure(f"{labels}: {len(named)} labels for the {len(rows)} rows of {path.name}")
    for (place, line), (_, label) in zip(rows, named, strict=True):
        yield place, line, label.decode(errors="replace")
