"""Deduplication writes as many bytes as predicted; a benchmark measures its memory too."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from mtnlg_data.dedup.plan import deduplication_state_bytes
from mtnlg_data.dedup.stage import DeduplicateSettings, deduplicate_documents
from mtnlg_data.document import batch_documents, write_documents
from mtnlg_data.engine import Local
from mtnlg_data.schema import Document

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
    assert engine.bytes["write_signatures"] == steps["signatures"] == 400 * (12 * settings.bands + 4)
    assert engine.bytes["cluster_documents"] == steps["clusters"] == 16 * 200
    assert engine.bytes["link_bands"] == 16 * 100 * settings.bands  # one link per pair of copies and band
    assert engine.bytes["link_bands"] <= steps["bands"]
    assert 0.5 * steps["candidates"] < engine.bytes["collect_candidates"] <= 1.2 * steps["candidates"]


def test_the_papers_corpus_fits_a_machine_of_32_gib_with_eight_workers() -> None:
    steps = deduplication_state_bytes(320_000_000, DeduplicateSettings())
    assert max(8 * step.memory if step.workers else step.memory for step in steps) < 32 * GIB
    assert sum(step.disk for step in steps) < 1.46e12  # less than the text itself


def test_a_workers_memory_does_not_grow_with_the_corpus() -> None:
    small, large = (deduplication_state_bytes(count, DeduplicateSettings()) for count in (320_000_000, 3_200_000_000))
    assert [step.step for step in small] == [step.step for step in large]
    for before, after in zip(small, large, strict=True):
        assert after.disk == pytest.approx(10 * before.disk, rel=0.001)
        assert after.memory == before.memory if before.workers else after.memory <= 10 * before.memory
