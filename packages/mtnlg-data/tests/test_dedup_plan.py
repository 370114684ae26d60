"""Deduplication writes as many bytes as predicted; a benchmark measures its memory too."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
from mtnlg_data.dedup.plan import FILE_BYTES, deduplication_state_bytes

from mtnlg_data.dedup.stage import deduplicate_documents
from mtnlg_data.document import batch_documents, write_documents
from mtnlg_data.engine import Local
from mtnlg_data.schema import Document
from mtnlg_data.steps.deduplicate import DeduplicateSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from mtnlg_data.engine import Summary, U

GIB = 1 << 30


class Measuring(Local):
    """Records the bytes of each function's files before a later step deletes them."""

    def __init__(self) -> None:
        super().__init__(1)
        self.bytes: dict[str, int] = {}

    def imap(self, function: Callable[[U], Summary], units: Iterable[U]) -> Iterator[tuple[U, Summary]]:
        name = function.args[0].__name__  # type: ignore[attr-defined]  # a partial of the engine
        for unit, summary in super().imap(function, units):
            self.bytes[name] = self.bytes.get(name, 0) + unit.output.stat().st_size
            yield unit, summary


@pytest.mark.parametrize("settings", [DeduplicateSettings(), DeduplicateSettings(bands=5, rows=4, shingle="character")])
def test_the_state_on_disk_is_as_predicted(tmp_path: Path, settings: DeduplicateSettings) -> None:
    draw = Random(0)
    texts = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz      ", k=800)) for _ in range(300)]
    documents = [Document(f"{number}", "web", text) for number, text in enumerate([*texts, *texts[:100]])]
    shards = [tmp_path / f"web-{number:05d}.parquet" for number in range(2)]
    for number, shard in enumerate(shards):
        write_documents(shard, batch_documents(documents[number::2]))
    engine = Measuring()
    deduplicate_documents(shards, tmp_path / "out", settings, ["web"], engine)
    characters = sum(len(document.text) for document in documents) // len(documents)
    steps = {
        step.step: step.disk
        for step in deduplication_state_bytes(
            400, settings, characters=characters, largest_shard=200, candidate_share=200 / 400
        )
    }
    overhead = 9 * 1200  # of nine Arrow files, and one of signatures for each of two shards
    assert steps["signatures"] == 400 * (8 * settings.bands + 36) + 2 * FILE_BYTES
    assert steps["signatures"] - 2 * FILE_BYTES < engine.bytes["write_signatures"] < steps["signatures"]
    assert engine.bytes["write_contents"] == pytest.approx(400 * 36, abs=overhead)
    keys = 300 * 16 * settings.bands  # a hundred copies have gone
    assert keys < engine.bytes["write_band_runs"] < keys + settings.bands * 2000
    assert engine.bytes["write_forest"] <= steps["clusters"] + 2000
    assert engine.bytes["write_band_runs"] + engine.bytes["link_bands"] <= steps["bands"] + overhead


def test_the_papers_corpus_takes_less_than_two_gigabytes_a_worker() -> None:
    steps = deduplication_state_bytes(320_000_000, DeduplicateSettings())
    assert max(step.memory for step in steps) < 2 * GIB
    assert sum(step.disk for step in steps) < 1.2 * 1.46e12  # of the text


def test_memory_does_not_grow_with_the_corpus() -> None:
    small, large = (deduplication_state_bytes(count, DeduplicateSettings()) for count in (320_000_000, 3_200_000_000))
    assert [step.step for step in small] == [step.step for step in large]
    for before, after in zip(small, large, strict=True):
        assert 10 * before.disk <= after.disk <= 16 * before.disk  # one more level of merges
        assert after.memory == before.memory
