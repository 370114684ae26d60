"""``export --to hf``: the documents of a run or stage as a folder that ``datasets.load_dataset`` reads.

README.md                       the card, whose header names a configuration a source, so that each keeps its columns
data/books/train-00000-of-00002.parquet
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from mtnlg_data.console import Failure, UsageFailure
from mtnlg_data.document import shard_source
from mtnlg_data.engine import listed_shards, lock_folder
from mtnlg_data.files import atomic_path, write_text

from .publish import last_stage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

DATA = "data"


def write_dataset(folder: Path, out: Path) -> dict[str, int]:
    """Write the last shards of ``folder`` as a data set in ``out``; returns the documents of each source.

    Raises ``Failure`` for a folder without shards, and ``UsageFailure`` where ``out`` lies in it or holds other files.
    """
    stage = last_stage(folder) if folder.is_dir() else None
    shards = (listed_shards(stage) if stage else sorted(folder.glob("*.parquet"))) or []
    if not shards:
        raise Failure(f"{folder}: no documents; give the folder of a run, of a stage that leaves shards, or of Parquet")
    if out.resolve() == folder.resolve() or folder.resolve() in out.resolve().parents:
        raise UsageFailure(f"--out {out} is in {folder}; give a folder outside of it")
    by_source: dict[str, list[Path]] = {}
    for shard in shards:
        by_source.setdefault(shard_source(shard), []).append(shard)
    with lock_folder(out):
        names = {out / DATA / source / name for source, own in by_source.items() for name in _names(own)}
        if strangers := sorted({*(out / DATA).rglob("*.parquet")} - names):
            raise UsageFailure(f"--out {out}: holds other data, such as {strangers[0]}; give an empty folder")
        counts = {source: _write_source(own, out / DATA / source) for source, own in by_source.items()}
        write_text(out / "README.md", _card(counts))
    return counts


def _names(shards: Sequence[Path]) -> list[str]:
    return [f"train-{number:05}-of-{len(shards):05}.parquet" for number in range(len(shards))]


def _write_source(shards: Sequence[Path], folder: Path) -> int:
    """Link or copy the shards of a source; returns the number of their documents."""
    rows = 0
    for shard, name in zip(shards, _names(shards), strict=True):
        with atomic_path(folder / name) as partial:
            partial.unlink()
            try:
                os.link(shard, partial)
            except OSError:  # on another file system
                shutil.copyfile(shard, partial)
        rows += pq.read_metadata(shard).num_rows
    return rows


def _card(counts: Mapping[str, int]) -> str:
    """The card: a header in YAML for ``datasets``, and a line for a person."""
    default = "  default: true\n" if len(counts) == 1 else ""
    configs = "".join(f"- config_name: {name}\n  data_files: {DATA}/{name}/*.parquet\n{default}" for name in counts)
    rows = "".join(f"- {name}: {count:,} documents\n" for name, count in counts.items())
    return f"---\nconfigs:\n{configs}---\n\nDocuments curated by mtnlg-data.\n\n{rows}"
