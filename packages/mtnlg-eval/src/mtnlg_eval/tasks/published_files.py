"""Which of a folder's files hold which split of a task, as their authors published them.

A file's split is a word in its name, or else in the name of a folder above it: train, dev, val or test. Archives hold
other sets beside the task's own (RACE's middle school, ANLI's rounds 1 and 3, LAMBADA's control set): their files are
left out and named, never merged. If a split has both .jsonl and other files, only the .jsonl are read. Of WinoGrande's
training files the largest is read. Any other split is one file; RACE alone has a file per article.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mtnlg_model.console import Failure

from .formats import SUFFIXES, is_row_file, split_of
from .published import TASKS_BY_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

OTHER_SETS = {"lambada": {"control"}, "race_h": {"middle"}, "anli_r2": {"r1", "r3"}}
"""Words in the names of files and folders of sets that are published with a task's own."""

SIZES = ("xl", "l", "m", "s", "xs")
"""Sizes of WinoGrande's training set, each a part of the one before."""


def files_by_split(folder: Path, task: str) -> tuple[dict[str, list[Path]], list[str]]:
    """Row files under ``folder`` by split, in path order, and what belongs to another set, named from ``folder``.

    Raises ``Failure`` if there is no file with the word of a split, or if a split has two files.
    """
    if not folder.is_dir():
        raise Failure(f"{folder}: no such folder; put the task's published files there")
    splits: dict[str, list[Path]] = {}
    others: dict[str, None] = {}
    for path in sorted(path for path in folder.rglob("*") if is_row_file(path) and path.is_file()):
        parts = path.relative_to(folder).parts
        depth = next((n for n, part in enumerate(parts, 1) if OTHER_SETS.get(task, set()) & _words(part)), None)
        if depth:
            others["/".join(parts[:depth])] = None
        elif split := split_of(parts, path):
            splits.setdefault(split, []).append(path)
    if not splits:
        beside = f", only another set: {', '.join(others)}" if others else ""
        raise Failure(f"{folder}: no {', '.join(SUFFIXES)} file with train, dev, val or test in its name{beside}")
    return {split: _one_file(folder, task, split, paths) for split, paths in splits.items()}, list(others)


def _words(name: str) -> set[str]:
    return set(re.split(r"[^a-z0-9]+", name.lower()))


def _one_file(folder: Path, task: str, split: str, paths: Sequence[Path]) -> list[Path]:
    """The files of the preferred format, which is one file except for RACE's articles."""
    preferred = min((path.suffix for path in paths), key=SUFFIXES.index)
    files = [path for path in paths if path.suffix == preferred]
    if task == "winogrande" and split == "train":
        by_size = {size: path for path in files for size in _words(path.stem) & set(SIZES)}
        files = [by_size[size] for size in SIZES if size in by_size][:1] or files
    if task != "race_h" and len(files) > 1:
        names = ", ".join(str(path.relative_to(folder)) for path in files[:4])
        raise Failure(f"{folder}: {len(files)} files of the {split} split ({names}); leave one of them")
    return files


def scored_split(folder: Path, task: str, files: Mapping[str, object]) -> str:
    """The split to score: the paper's, else the other one; ``Failure`` if there are only training rows."""
    order = sorted(("validation", "test"), key=lambda split: split != TASKS_BY_NAME[task].split)
    for split in order:
        if split in files:
            return split
    raise Failure(f"{folder}: only training rows; add a file with {' or '.join(order)} in its name")
