"""Deduplication at scale: opens grow with the files, memory with neither copies nor templated pages."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


MEASURED = """
import sys
from pathlib import Path
import numpy as np
import pyarrow as pa
from mtnlg_data import exchange
from mtnlg_data.dedup import clusters, copies, verify
from mtnlg_data.engine.tasks import release_memory
from mtnlg_data.text.arrays import binary_column
folder, rows = Path(sys.argv[1]), int(sys.argv[2])
exchange.RUN_BYTES = 1 << 20
numbering = exchange.Numbering(rows)

def write(name, rows, columns):
    for number in range(8):
        with exchange.write_rows(exchange.Rows.path(folder / name, number)) as out:
            for begin in range(number * rows // 8, (number + 1) * rows // 8, 10000):
                part = np.arange(begin, min(begin + 10000, (number + 1) * rows // 8))
                same = np.full(len(part), 7, np.uint64)
                out.add(same, {"document": part, **columns(part, same)})
    return exchange.Rows(folder / name, range(8), "", print).ranges(1)[0]

def of_candidates(part, same):
    sets = np.tile(np.arange(300, dtype=np.uint64), len(part))
    shingles = binary_column(sets, 300 * np.arange(len(part) + 1))
    keys = pa.FixedSizeListArray.from_arrays(np.repeat(same, 5), 5)
    return {"order": same, "times": part * 0 + 1, "keys": keys, "shingles": shingles}

contents = write("contents", rows, lambda part, same: {"high": same, "order": same})
keys = write("bands", rows, lambda part, same: {})
group = write("candidates", rows // 16, of_candidates)
of_group = {"numbering": numbering, "threshold": 0.8, "rounds": 11, "seed": 1}
steps = {
    "copies": lambda: copies.find_copies(contents, folder / "copies", numbering=numbering),
    "links": lambda: clusters.link_bands(keys, folder / "links"),
    "removed": lambda: verify.deduplicate_group(group, folder / "near", **of_group),
}
for name, step in steps.items():
    release_memory()
    Path("/proc/self/clear_refs").write_text("5")
    found = step()[name]
    print(found, next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
"""


def test_memory_does_not_grow_with_copies_of_a_page(tmp_path: Path) -> None:
    """At four times the rows: 40 bytes each of equal contents, 16 of equal keys, and 2,500 of near duplicates.

    The last are a cluster of 12,500 and 50,000, whose sets are in mapped files of 30 or 120 megabytes: pages that count
    here, and that the kernel takes back where memory is short.
    """
    mapped = (0, 0, 37_500 * (300 + 5) * 8 / 1024)
    peaks: list[list[int]] = []
    for rows in (200_000, 800_000):
        command = [sys.executable, "-c", MEASURED, str(tmp_path / str(rows)), str(rows)]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        counts, own = zip(*(map(int, line.split()) for line in lines), strict=True)
        assert counts == (rows - 1, rows - 1, rows // 16 - 1)
        peaks.append([*own])
    assert [many <= 1.1 * few + own for few, many, own in zip(*peaks, mapped, strict=True)] == [True] * 3, peaks
