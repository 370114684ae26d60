"""Inspection: counts and first documents of a run's folder, a Parquet file of documents or a token store."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

from mtnlg_data.console import Failure
from mtnlg_data.document import read_documents
from mtnlg_data.engine import read_list
from mtnlg_data.tally import summary_line
from mtnlg_data.tokens.blend import read_blend
from mtnlg_data.tokens.store import TokenStore, idx_path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Inspection = dict[str, Any]
REQUIRED_COLUMNS = {"id", "source", "text"}


def inspect_path(path: Path, documents: int, characters: int) -> Inspection:
    """Counts, and the first ``characters`` of the first ``documents``, as JSON.

    Raises ``Failure`` where the path is neither a folder nor a file of a known kind, or is damaged.
    """
    if path.is_dir():
        return _inspect_folder(path, documents, characters)
    if path.suffix == ".parquet":
        return _inspect_shards(path, [path], documents, characters)
    prefix = path.with_suffix("") if path.suffix in {".bin", ".idx"} else path
    if idx_path(prefix).exists():
        return _inspect_store(prefix, documents, characters)
    raise Failure(f"{path}: no Parquet file, no token store (a pair .bin and .idx) and no folder of either")


def _inspect_folder(path: Path, documents: int, characters: int) -> Inspection:
    """A run or a single stage with its output; or only the stores or shards of a folder without summary."""
    output = _inspect_output(path / "tokens" if (path / "tokens").is_dir() else path, documents, characters)
    if (path / "summary.json").exists():
        stages = json.loads((path / "summary.json").read_text(encoding="utf-8"))["stages"]
        return {"kind": "run", "path": str(path), "stages": stages, "parts": [] if output is None else [output]}
    if output is None:
        raise Failure(f"{path}: holds no run (summary.json), no token stores (*.idx) and no documents (*.parquet)")
    return output


def _inspect_output(path: Path, documents: int, characters: int) -> Inspection | None:
    """The token stores of a folder, or else its shards: by its stage's list, or all where no stage wrote them."""
    stores = sorted(idx.with_suffix("") for idx in path.glob("*.idx"))
    if (path / "blend.json").exists():
        stores = sorted(path / source.prefix for source in read_blend(path).sources)
    if stores:
        parts = [_inspect_store(prefix, documents, characters) for prefix in stores]
        return {"kind": "folder", "path": str(path), "parts": parts}
    if (left := read_list(path)) is not None:
        shards = [path / name for name in left.shards or ()]
    else:
        shards = [shard for shard in sorted(path.glob("*.parquet")) if set(_schema(shard).names) >= REQUIRED_COLUMNS]
    return _inspect_shards(path, shards, documents, characters) if shards else None


def _inspect_shards(path: Path, shards: Sequence[Path], documents: int, characters: int) -> Inspection:
    sources: dict[str, dict[str, int]] = {}
    samples: list[dict[str, str]] = []
    for shard in shards:
        if missing := REQUIRED_COLUMNS - set(_schema(shard).names):
            raise Failure(f"{shard}: no Parquet file of documents: no column {', '.join(sorted(missing))}")
        for batch in read_documents(shard, ["id", "source", "text"]):
            lengths = pc.utf8_length(batch.column("text")).to_pylist()
            for source, length in zip(batch.column("source").to_pylist(), lengths, strict=True):
                count = sources.setdefault(source, {"documents": 0, "characters": 0})
                count["documents"] += 1
                count["characters"] += length
            first = batch.slice(0, max(0, documents - len(samples))).to_pylist()
            samples += [{**row, "text": row["text"][:characters]} for row in first]
    return {"kind": "documents", "path": str(path), "shards": len(shards), "sources": sources, "samples": samples}


def _schema(path: Path) -> pa.Schema:
    try:
        return pq.read_schema(path)
    except pa.ArrowInvalid as error:
        raise Failure(f"{path}: not a Parquet file: {error}") from None


def _inspect_store(prefix: Path, documents: int, characters: int) -> Inspection:
    store = TokenStore(prefix)
    path = prefix.with_name("tokenizer.json")
    tokenizer = Tokenizer.from_file(str(path)) if path.exists() else None
    samples = []
    for number in range(min(documents, len(store))):
        ids = store[number].tolist()
        sample: Inspection = {"document": number, "tokens": len(ids), "first": ids[:characters]}
        if tokenizer is not None:
            sample["text"] = tokenizer.decode(ids[:characters], skip_special_tokens=False)[:characters]
        samples.append(sample)
    counts = {"documents": len(store), "tokens": store.tokens, "type": store.dtype.name}
    return {"kind": "store", "path": str(prefix), **counts, "samples": samples}


def print_inspection(inspection: Inspection) -> None:
    """Print the result of ``inspect_path`` on stdout."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{inspection['path']}: {_headline(inspection)}", markup=False)
    for stage in inspection.get("stages", []):
        console.print(f"  {summary_line(stage)}", markup=False)
    if "sources" in inspection:
        table = Table("source", "documents", "characters")
        for name, count in inspection["sources"].items():
            table.add_row(name, f"{count['documents']:,}", f"{count['characters']:,}")
        console.print(table)
    for sample in inspection.get("samples", []):
        title = sample.get("id") or f"document {sample['document']}, {sample['tokens']:,} tokens"
        console.rule(title, align="left")
        console.print(sample.get("text", sample.get("first")), markup=False)
    for part in inspection.get("parts", []):
        print_inspection(part)


def _headline(inspection: Inspection) -> str:
    match inspection["kind"]:
        case "store":
            return f"{inspection['documents']:,} documents, {inspection['tokens']:,} tokens of {inspection['type']}"
        case "documents":
            documents = sum(count["documents"] for count in inspection["sources"].values())
            return f"{documents:,} documents in {inspection['shards']} shards"
        case "run":
            return f"a run of {len(inspection['stages'])} stages; its report is report.html"
        case _:
            return f"{len(inspection['parts'])} token stores"
