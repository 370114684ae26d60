"""Deduplication at scale: opens grow with the files, memory with neither copies nor templated pages."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from mtnlg_data.dedup import runs
from mtnlg_data.dedup.stage import DeduplicateSettings, deduplicate_documents
from mtnlg_data.document import batch_documents, write_documents
from mtnlg_data.engine import Local
from mtnlg_data.schema import Document

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

WORDS = DeduplicateSettings(shingle_length=1, bands=2, rows=3, alarm_share=1)


def write_shards(folder: Path, shards: int, documents: int) -> list[Path]:
    """Shards of so many documents each, every other one a copy of its neighbour."""
    paths = []
    for number in range(shards):
        texts = [" ".join(f"w{number}-{document // 2}-{word}" for word in range(9)) for document in range(documents)]
        paths.append(folder / f"web-{number:05d}.parquet")
        names = [Document(f"{number}/{row}", "web", text) for row, text in enumerate(texts)]
        write_documents(paths[-1], batch_documents(names))
    return paths


@pytest.mark.parametrize(("fan_out", "rows", "growth"), [(2, 32, 2.5), (128, 1 << 22, 2.0)])
def test_opens_of_state_grow_with_the_number_of_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fan_out: int, rows: int, growth: float
) -> None:
    """8 and 16 shards, not merged; and merged two at a time, in two levels and in three, each opening a file once.

    So twice the shards may take 2 x 3 / 2 the opens then; every file for every range would take 4.
    """
    monkeypatch.setattr("mtnlg_data.exchange.FAN_OUT", fan_out)
    monkeypatch.setattr(runs, "ROWS_PER_RANGE", rows)
    opens: list[int] = []

    def counted(paths: Sequence[Path], *keys: int) -> Any:  # noqa: ANN401
        opens.append(len(paths))
        return merge(paths, *keys)

    merge = runs.merge_runs
    monkeypatch.setattr(runs, "merge_runs", counted)
    totals = []
    for shards in (8, 16):
        folder = tmp_path / str(shards)
        folder.mkdir()
        opens.clear()
        deduplicate_documents(write_shards(folder, shards, 8), folder / "out", WORDS, ["web"], Local(1))
        totals.append(sum(opens))
        assert max(opens) <= 2 * fan_out  # a shard's documents may be in two blocks
    assert totals[1] <= growth * totals[0]


MEASURED = """
import sys
from pathlib import Path
from mtnlg_data.dedup import bands, clusters, copies, runs
folder, rows = Path(sys.argv[1]), int(sys.argv[2])
import numpy as np
runs.RUN_BYTES, clusters.LINKS_REDUCED = 1 << 20, 1 << 14
corpus = runs.Corpus(folder, rows, "")
contents = corpus.exchanged("contents", 8, 1)
keys = corpus.exchanged("bands", 8, 1)
for number in range(8):
    documents = np.arange(number * rows // 8, (number + 1) * rows // 8)
    same, zero = np.full(len(documents), 7, np.uint64), np.zeros(len(documents), np.uint32)
    of_contents = {"high": same, "rank": zero, "order": documents.astype(np.uint64)}
    for name, columns in (("contents", of_contents), ("bands", {})):
        with runs.write_runs(folder / name / f"0-{number:07d}-0000000.arrow") as out:
            for begin in range(0, len(documents), 10000):
                part = slice(begin, begin + 10000)
                out.add(same[part], {n: c[part] for n, c in columns.items()} | {"document": documents[part]})
peak = lambda: next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(copies.find_copies(copies.CopyUnit(corpus, 0, contents, folder / "copies" / "0"))["copies"])
print(bands.link_bands(bands.BandUnit(corpus, 0, keys, folder / "links"))["rows"])
print(peak())
"""


def test_a_page_of_millions_and_a_key_of_millions_take_the_memory_of_a_few(tmp_path: Path) -> None:
    """200 and 800 thousand equal rows: their 36 bytes each would be 22 MB more, sorted and copied 60 and more.

    Files that are mapped count as far as they are read: 52 bytes a row of what was written, 31 MB more.
    """
    peaks = []
    for rows in (200_000, 800_000):
        folder = tmp_path / str(rows)
        out = subprocess.run(
            [sys.executable, "-c", MEASURED, str(folder), str(rows)], capture_output=True, text=True, check=True
        ).stdout.split()
        assert [int(count) for count in out[:2]] == [rows - 1, 2 * (rows - 1)]
        peaks.append(int(out[2]) * 1024)
    assert peaks[1] - peaks[0] < 60_000_000
