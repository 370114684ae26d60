"""``export --to hf``: the documents of a run or stage as a folder that ``datasets.load_dataset`` reads.

README.md                       the card, whose header names a configuration a source, so that each keeps its columns
data/books/train-00000-of-00002.parquet
"""

from __future__ import annotations

import glob
import json
import os
import shutil
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from mtnlg_data.console import Failure, UsageFailure
from mtnlg_data.document import named_damage, shard_source
from mtnlg_data.engine import listed_shards, lock_folder
from mtnlg_data.files import atomic_path, regular, write_text

from .publish import last_stage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

DATA = "data"
REFUSED = {*"<>:/\\|?*"}  # in names of configurations


def write_dataset(folder: Path, out: Path) -> dict[str, int]:
    """Write the last shards of ``folder`` as a data set in ``out``; returns the documents of each source.

    Raises ``Failure`` for a folder without shards, and ``UsageFailure`` where ``out`` lies in it or holds other files.
    """
    stage = last_stage(folder) if folder.is_dir() else None
    shards = (listed_shards(stage) if stage else sorted(folder.glob("*.parquet"))) or []
    if not shards:
        raise Failure(f"{folder}: no documents; give the folder of a run, of a stage that leaves shards, or of Parquet")
    for shard in shards:
        if not shard.stem.isprintable() or REFUSED & {*shard.stem}:
            raise Failure(f"{shard}: datasets takes no {' '.join(sorted(REFUSED))} in a name; rename the file")
    if out.resolve() == folder.resolve() or folder.resolve() in out.resolve().parents:
        raise UsageFailure(f"--out {out} is in {folder}; give a folder outside of it")
    by_source: dict[str, list[Path]] = {}
    for shard in shards:
        by_source.setdefault(shard_source(shard), []).append(shard)
    counts = {source: sum(map(_count_rows, own)) for source, own in by_source.items()}
    with lock_folder(out):
        names = {out / DATA / source / name for source, own in by_source.items() for name in _names(own)}
        if strangers := sorted({*(out / DATA).rglob("*.parquet")} - names):
            raise UsageFailure(f"--out {out}: holds other data, such as {strangers[0]}; give an empty folder")
        for source, own in by_source.items():
            _write_source(own, out / DATA / source)
        write_text(out / "README.md", _card(counts))
    return counts


def _names(shards: Sequence[Path]) -> list[str]:
    return [f"train-{number:05}-of-{len(shards):05}.parquet" for number in range(len(shards))]


def _write_source(shards: Sequence[Path], folder: Path) -> None:
    """Link or copy the shards of a source."""
    for shard, name in zip(shards, _names(shards), strict=True):
        with atomic_path(folder / name) as partial:
            partial.unlink()
            try:
                os.link(shard, partial)
            except OSError:  # on another file system
                shutil.copyfile(shard, partial)


def _count_rows(shard: Path) -> int:
    with named_damage(shard):
        return int(pq.read_metadata(regular(shard)).num_rows)


def _card(counts: Mapping[str, int]) -> str:
    """The card: a header in YAML for ``datasets``, its texts quoted as in JSON, and a line for a person."""
    default = "  default: true\n" if len(counts) == 1 else ""
    configs = "".join(
        f"- config_name: {_quoted(name)}\n  data_files: {_quoted(f'{DATA}/{glob.escape(name)}/*.parquet')}\n{default}"
        for name in counts
    )
    rows = "".join(f"- {name}: {count:,} documents\n" for name, count in counts.items())
    return f"---\nconfigs:\n{configs}---\n\nDocuments curated by mtnlg-data.\n\n{rows}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
