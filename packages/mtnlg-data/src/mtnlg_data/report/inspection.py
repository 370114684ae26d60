"""What lies in the folder of a run, in a shard of documents or in a token store, for a person to look at."""

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
from mtnlg_data.tally import line
from mtnlg_data.tokens.store import TokenStore, idx_path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Found = dict[str, Any]
NEEDED = {"id", "source", "text"}


def inspected(path: Path, documents: int, characters: int) -> Found:
    """Counts, and the beginnings of the first documents, as JSON. Raises ``Failure`` where there is nothing to show."""
    if path.is_dir():
        return _folder(path, documents, characters)
    if path.suffix == ".parquet":
        return _documents(path, [path], documents, characters)
    prefix = path.with_suffix("") if path.suffix in {".bin", ".idx"} else path
    if idx_path(prefix).exists():
        return _store(prefix, documents, characters)
    raise Failure(f"{path}: no Parquet file, no token store (a pair .bin and .idx) and no folder of either")


def _folder(path: Path, documents: int, characters: int) -> Found:
    """A run, or a stage by itself, with what it left; or what else a folder holds."""
    held = _held(path / "tokens" if (path / "tokens").is_dir() else path, documents, characters)
    if (path / "summary.json").exists():
        stages = json.loads((path / "summary.json").read_text(encoding="utf-8"))["stages"]
        return {"kind": "run", "path": str(path), "stages": stages, "parts": [] if held is None else [held]}
    if held is None:
        raise Failure(f"{path}: holds no run (summary.json), no token stores (*.idx) and no documents (*.parquet)")
    return held


def _held(path: Path, documents: int, characters: int) -> Found | None:
    """The token stores of a folder, or else its shards."""
    stores = sorted(path.glob("*.idx"))
    if stores:
        parts = [_store(name.with_suffix(""), documents, characters) for name in stores]
        return {"kind": "folder", "path": str(path), "parts": parts}
    shards = [name for name in sorted(path.glob("*.parquet")) if set(_schema(name).names) >= NEEDED]
    return _documents(path, shards, documents, characters) if shards else None


def _documents(path: Path, shards: Sequence[Path], documents: int, characters: int) -> Found:
    sources: dict[str, dict[str, int]] = {}
    samples: list[dict[str, str]] = []
    for shard in shards:
        if missing := NEEDED - set(_schema(shard).names):
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


def _store(prefix: Path, documents: int, characters: int) -> Found:
    store = TokenStore(prefix)
    known = prefix.with_name("tokenizer.json")
    tokenizer = Tokenizer.from_file(str(known)) if known.exists() else None
    samples = []
    for number in range(min(documents, len(store))):
        ids = store[number].tolist()
        sample: Found = {"document": number, "tokens": len(ids), "first": ids[:characters]}
        if tokenizer is not None:
            sample["text"] = tokenizer.decode(ids[:characters], skip_special_tokens=False)[:characters]
        samples.append(sample)
    counts = {"documents": len(store), "tokens": store.tokens, "type": store.dtype.name}
    return {"kind": "store", "path": str(prefix), **counts, "samples": samples}


def show(found: Found) -> None:
    """Print what ``inspected`` found on stdout."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{found['path']}: {_headline(found)}", markup=False)
    for account in found.get("stages", []):
        console.print(f"  {line(account)}", markup=False)
    if "sources" in found:
        table = Table("source", "documents", "characters")
        for name, count in found["sources"].items():
            table.add_row(name, f"{count['documents']:,}", f"{count['characters']:,}")
        console.print(table)
    for sample in found.get("samples", []):
        title = sample.get("id") or f"document {sample['document']}, {sample['tokens']:,} tokens"
        console.rule(title, align="left")
        console.print(sample.get("text", sample.get("first")), markup=False)
    for part in found.get("parts", []):
        show(part)


def _headline(found: Found) -> str:
    match found["kind"]:
        case "store":
            return f"{found['documents']:,} documents, {found['tokens']:,} tokens of {found['type']}"
        case "documents":
            documents = sum(count["documents"] for count in found["sources"].values())
            return f"{documents:,} documents in {found['shards']} shards"
        case "run":
            return f"a run of {len(found['stages'])} stages; its page is report.html"
        case _:
            return f"{len(found['parts'])} token stores"
