"""Twice the shards: twice the units, each of the same few bytes, in all stages but fuzzy deduplication."""

from __future__ import annotations

import os
import pickle
from collections import Counter
from typing import TYPE_CHECKING

from shards import write_shard

from mtnlg_data import Clean, Decontaminate, Document, Exact, Filter, Local, Quality, Tokenize, document, run_step
from mtnlg_data.engine.tasks import run_task
from mtnlg_data.tokens import encoding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import pytest

    from mtnlg_data.engine.tasks import Summary, Task

FAN_OUT = 8
SHARDS = 8  # of each of two sources
SENTENCE = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"


class Measuring(Local):
    """Notes of each kind of units how many there are, and the most pickled bytes of one."""

    def __init__(self) -> None:
        super().__init__(1)
        self.bytes: Counter[str] = Counter()
        self.units: Counter[str] = Counter()

    def imap(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Summary]]:
        for task in tasks:
            step = getattr(task.item, "step", None)
            name = f"{task.work}{f' of {step.reference}' if step else ''}"
            self.bytes[name] = max(self.bytes[name], len(pickle.dumps(task)))
            self.units[name] += 1
            yield task, run_task(task)


def measured(folder: Path, shards: int) -> Measuring:
    """Run the stages over so many shards, of three documents each."""
    paths: dict[str, list[Path]] = {"web": [], "books": []}
    for number in range(shards):
        for source, own in paths.items():
            texts = [f"{SENTENCE}\n{source} {number} {row} {'word ' * 60}{row * number}" for row in range(3)]
            own.append(folder / "in" / f"{source}-{number:05d}.parquet")
            rows = [Document(f"{source}/{number}/{row}", source, text) for row, text in enumerate(texts)]
            write_shard(own[-1], rows)
    engine = Measuring()
    both = [*paths["web"], *paths["books"]]
    (folder / "texts.jsonl").write_text(f'{{"task": "t", "id": "0", "text": "{SENTENCE}"}}\n')
    steps = (
        Quality(epochs=1, sources={"web": {"filtered": True}, "books": {"curated": True}}),
        Exact(kinds=("documents", "lines", "substrings"), substring_length=8),
        Clean(sources={name: {"rules": ["whitespace", "short"]} for name in paths}),
        Filter(sources={name: {"filters": ["gopher_quality"]} for name in paths}),
        Decontaminate(texts=folder / "texts.jsonl", common=1000),
        Tokenize(vocabulary=260, library="tokenizers", sources={name: {"weight": 0.5} for name in paths}),
    )
    for step in steps:
        run_step(step, both, folder / step.name, engine)
    return engine


def test_units_grow_with_shards_and_each_stays_as_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr("mtnlg_data.exchange.FAN_OUT", FAN_OUT)
    monkeypatch.setattr("mtnlg_data.exchange.ROWS_PER_RANGE", 16)
    monkeypatch.setattr("mtnlg_data.exchange.RUN_BYTES", 16 * 24)
    monkeypatch.setattr(document, "ROWS_PER_GROUP", 2)
    monkeypatch.setattr(encoding, "TEXT_BYTES_PER_UNIT", 1)
    once, twice = (measured(tmp_path / str(shards), shards) for shards in (SHARDS, 2 * SHARDS))
    assert {name.rpartition(":")[2] for name in once.bytes} >= {"Clean", "Filter"}  # of which each shard is written
    assert "mtnlg_data.exchange:merge" in once.bytes
    for name in once.bytes:
        # of the samples of all shards, or the counts of all ranges, one after another
        one_for_all = name.endswith(("write_tokenizer", "train_classifier", "choose_rare", "write_store"))
        # longer numbers and names, and as many files of each of three kinds as one unit may open
        more = 64 + 3 * 20 * FAN_OUT
        assert one_for_all or twice.bytes[name] <= once.bytes[name] + more < 3000, (name, twice.bytes[name])
        assert twice.units[name] <= 2.2 * once.units[name] + 4, (name, once.units[name], twice.units[name])
