"""``export``: the documents of a run or stage as files for others, a folder per source and a file per shard.

    data/books/train-00000-of-00002.parquet     datasets, parquet: the shards themselves
    data/books/train-00000-of-00002.jsonl.zst   jsonl: an object per document
    README.md                                   datasets: the card, whose header has one configuration per source,
                                                so that each keeps its columns in ``datasets.load_dataset``

Each file is written under a temporary name and renamed, with the time of its shard, by which the next call recognizes
it.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
from typing import TYPE_CHECKING

import orjson
import zstandard

from mtnlg_data.console import Failure, UsageFailure, progress
from mtnlg_data.document import footer, read_documents, shard_source
from mtnlg_data.engine import listed_shards, lock_folder
from mtnlg_data.files import atomic_path, read_small, write_text

from .publish import last_stage

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DATA = "data"
KINDS = ("jsonl", "parquet")  # in suffixes of the folder
HEADER = b"---\nconfigs:\n"  # of a card
REFUSED = {*"<>:/\\|?*"}  # in names of configurations


def export_documents(folder: Path, out: Path, kind: str | None = None) -> dict[str, int]:
    """Write the last shards of ``folder`` that are not in ``out`` yet; returns documents by source.

    Without a ``kind`` a suffix of ``out`` names it, or it is datasets.

    Raises ``Failure`` for a folder without shards, and ``UsageFailure`` if ``out`` is inside it or holds other files.
    """
    shards = _documents(folder)
    kind = kind or next((each for each in KINDS if f".{each}" in out.suffixes), "datasets")
    if out.resolve() == folder.resolve() or folder.resolve() in out.resolve().parents:
        raise UsageFailure(f"--out {out} is in {folder}; give a folder outside of it")
    by_source: dict[str, list[Path]] = {}
    for shard in shards:
        by_source.setdefault(shard_source(shard), []).append(shard)
    counts = {source: sum(footer(shard).num_rows for shard in own) for source, own in by_source.items()}
    suffix = ".jsonl.zst" if kind == "jsonl" else ".parquet"
    files = {
        out / DATA / source / f"train-{number:05}-of-{len(own):05}{suffix}": shard
        for source, own in by_source.items()
        for number, shard in enumerate(own)
    }
    with lock_folder(out), progress(f"export {out}", len(files), "files") as advance:
        if strangers := sorted({path for path in (out / DATA).rglob("[!.]*") if path.is_file()} - {*files}):
            raise UsageFailure(f"--out {out}: holds other data, such as {strangers[0]}; give an empty folder")
        if kind == "datasets" and (card := out / "README.md").exists() and not read_small(card).startswith(HEADER):
            raise UsageFailure(f"--out {out}: {card} is not a card of mtnlg-data; give another folder")
        for path, shard in files.items():
            written = shard.stat().st_mtime_ns
            if not (path.exists() and path.stat().st_mtime_ns == written):
                with atomic_path(path) as partial:
                    (_write_lines if kind == "jsonl" else _copy)(shard, partial)
                    if partial.stat().st_mtime_ns != written:  # no link of the shard
                        os.utime(partial, ns=(written, written))
            advance(1)
        if kind == "datasets":
            write_text(card, _card(counts))
    return counts


def _documents(folder: Path) -> list[Path]:
    """The last shards of a run or stage, or all Parquet files of a folder."""
    stage = last_stage(folder) if folder.is_dir() else None
    shards = (listed_shards(stage) if stage else sorted(folder.glob("*.parquet"))) or []
    if not shards:
        raise Failure(f"{folder}: no documents; give the folder of a run, of a stage that leaves shards, or of Parquet")
    for shard in shards:
        if not shard.stem.isprintable() or REFUSED & {*shard.stem}:
            raise Failure(f"{shard}: datasets takes no {' '.join(sorted(REFUSED))} in a name; rename the file")
    return shards


def _copy(shard: Path, partial: Path) -> None:
    """Link or copy a shard."""
    partial.unlink()
    try:
        os.link(shard, partial)
    except OSError:  # on another file system
        shutil.copyfile(shard, partial)


def _write_lines(shard: Path, partial: Path) -> None:
    """Write the documents of a shard as JSON lines, a row group at a time."""
    with zstandard.open(partial, "wb") as file:
        for batch in read_documents(shard):
            for row in batch.to_pylist():
                if isinstance(row["metadata"], str):  # JSON already
                    row["metadata"] = orjson.Fragment(row["metadata"])
                file.write(orjson.dumps(row, default=str, option=orjson.OPT_APPEND_NEWLINE))


def _card(counts: Mapping[str, int]) -> str:
    """The dataset card: a YAML header for ``datasets``, with strings quoted as in JSON, and lines for a person."""
    default = "  default: true\n" if len(counts) == 1 else ""
    configs = "".join(
        f"- config_name: {_quoted(name)}\n  data_files: {_quoted(f'{DATA}/{glob.escape(name)}/*.parquet')}\n{default}"
        for name in counts
    )
    rows = "".join(f"- {name}: {count:,} documents\n" for name, count in counts.items())
    return f"{HEADER.decode()}{configs}---\n\nDocuments curated by mtnlg-data.\n\n{rows}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
