"""Inspection: counts and first documents of a run's folder, a shard or a token store; first rows of another table."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.table import Table

from mtnlg_data.console import Failure, output
from mtnlg_data.document import file_schema, named_damage, read_documents
from mtnlg_data.engine import listed_shards, read_record
from mtnlg_data.files import read_small, regular
from mtnlg_data.schema import holds_documents
from mtnlg_data.sources.matching import check_regular
from mtnlg_data.summary import parse_stages, summary_line
from mtnlg_data.tokens.blend import read_blend
from mtnlg_data.tokens.store import TokenStore, idx_path
from mtnlg_data.tokens.tokenizer import read_tokenizer
from mtnlg_data.transfer.publish import last_stage
from mtnlg_data.transfer.url_files import fetch_files, list_files, local_copy, read_url
from mtnlg_data.transfer.urls import Url, local_only

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenizers import Tokenizer

    from mtnlg_data.transfer.urls import Location

Inspection = dict[str, Any]
TOKENIZER = "tokenizer.json"
LARGEST_COPY = 1 << 30  # bytes that are fetched to be inspected; a larger folder is fetched by its own command


def inspect_path(path: Location, documents: int, characters: int) -> Inspection:
    """Counts, and the first ``characters`` of the first ``documents``, as JSON.

    Raises ``Failure`` if the file does not exist or is damaged, and for a folder that holds no output of ours.
    """
    if isinstance(path, Url):
        return _inspect_url(path, documents, characters)
    if path.is_dir():
        return _inspect_folder(path, documents, characters)
    prefix = path.with_suffix("") if path.suffix in {".bin", ".idx", ".crc"} else path
    if idx_path(prefix).exists():
        return _inspect_stores([prefix], documents, characters)[0]
    if not path.exists():
        raise Failure(f"{path}: no such file, and no token store (a pair .bin and .idx)")
    check_regular(path)
    if path.suffix != ".parquet":
        raise Failure(f"{path}: neither Parquet nor a token store (a pair .bin and .idx)")
    if holds_documents(file_schema(path)):
        return _inspect_shards(path, [path], documents, characters)
    return inspect_table(path, documents)


def _inspect_url(url: Url, documents: int, characters: int) -> Inspection:
    """Inspect a URL: token stores and runs are read only as far as they are shown; other files are copied."""
    files = list_files(url)
    summary = files.get("summary.json")
    stages = None if summary is None else parse_stages(read_url(summary.url), summary)
    blend = next((name for name in ("blend.json", "tokens/blend.json") if name in files), None)
    if blend is not None:
        tokens = (url / blend).parent
        stores = [tokens / source.prefix for source in read_blend(tokens).sources]
        parts = _inspect_stores(stores, documents, characters)
        output = {"kind": "folder", "path": url, "parts": parts}
        return output if stages is None else {"kind": "run", "path": url, "stages": stages, "parts": [output]}
    if url.endswith((".bin", ".idx", ".crc")):
        return _inspect_stores([Url(url[:-4])], documents, characters)[0]
    if sum(file.size for file in files.values()) > LARGEST_COPY:
        local_only(url)
    with TemporaryDirectory() as copy:
        fetch_files(files, Path(copy))
        local = Path(copy) if len(files) > 1 or next(iter(files)) != url.name else Path(copy, url.name)
        inspection = inspect_path(local, documents, characters)
        for part in (inspection, *inspection.get("parts", ())):
            part["path"] = part["path"].replace(str(local), url)
        return inspection


def _inspect_folder(path: Path, documents: int, characters: int) -> Inspection:
    """Inspect a run or a single stage, with its output; of a folder without summary, only the stores or shards."""
    summary, results = path / "summary.json", path / "tokens"
    if not results.is_dir():
        results = (last_stage(path) if summary.exists() else None) or path
    output = _inspect_output(results, documents, characters)
    if summary.exists():
        stages = parse_stages(read_small(summary), summary)
        return {"kind": "run", "path": str(path), "stages": stages, "parts": [] if output is None else [output]}
    if output is not None:
        return output
    if tables := sorted(path.glob("*.parquet")):  # such as of dropped documents
        return {"kind": "folder", "path": str(path), "parts": [inspect_table(table, documents) for table in tables]}
    raise Failure(f"{path}: holds no run (summary.json), no token stores (*.idx) and no Parquet files")


def _inspect_output(path: Path, documents: int, characters: int) -> Inspection | None:
    """Inspect a folder's token stores, or else its shards: those that its stage lists; without a stage all."""
    stores = sorted(idx.with_suffix("") for idx in path.glob("*.idx"))
    if (path / "blend.json").exists():
        stores = sorted(path / source.prefix for source in read_blend(path).sources)
    if stores:
        return {"kind": "folder", "path": str(path), "parts": _inspect_stores(stores, documents, characters)}
    if (record := read_record(path)) is not None:
        shards = listed_shards(path) or [] if record.shards else []
    else:
        shards = [shard for shard in sorted(path.glob("*.parquet")) if holds_documents(file_schema(shard))]
    return _inspect_shards(path, shards, documents, characters) if shards else None


def _inspect_shards(path: Path, shards: Sequence[Path], documents: int, characters: int) -> Inspection:
    sources: dict[str, dict[str, int]] = {}
    samples: list[dict[str, str]] = []
    for shard in shards:
        for batch in read_documents(shard, ["id", "source", "text"]):
            lengths = pc.utf8_length(batch.column("text")).to_pylist()
            for source, length in zip(batch.column("source").to_pylist(), lengths, strict=True):
                count = sources.setdefault(source, {"documents": 0, "characters": 0})
                count["documents"] += 1
                count["characters"] += length
            first = batch.slice(0, max(0, documents - len(samples))).to_pylist()
            samples += [{**row, "text": row["text"][:characters]} for row in first]
    return {"kind": "documents", "path": str(path), "shards": len(shards), "sources": sources, "samples": samples}


def inspect_table(path: Path, rows: int) -> Inspection:
    """Columns, number of rows and the first ``rows`` of another Parquet file; times are text: Python lacks some."""
    with named_damage(path), pq.ParquetFile(regular(path)) as file:
        columns = {field.name: str(field.type) for field in file.schema_arrow}
        total = file.metadata.num_rows
        first = next(file.iter_batches(max(1, rows)), pa.RecordBatch.from_pylist([], file.schema_arrow)).slice(0, rows)
        values = [column.cast(pa.string()) if pa.types.is_temporal(column.type) else column for column in first.columns]
        samples = [
            dict(zip(columns, row, strict=True)) for row in zip(*(each.to_pylist() for each in values), strict=True)
        ]
    return {"kind": "table", "path": str(path), "rows": total, "columns": columns, "samples": samples}


def _inspect_stores(prefixes: Sequence[Location], documents: int, characters: int) -> list[Inspection]:
    """Inspect the token stores of a folder."""
    tokenizer, stores = _tokenizer_in(prefixes[0].parent), []
    for prefix in prefixes:
        store = TokenStore(prefix)
        samples = []
        for number in range(min(documents, len(store))):
            ids = store[number].tolist()
            sample: Inspection = {"document": number, "tokens": len(ids), "first": ids[:characters]}
            if tokenizer is not None:
                sample["text"] = tokenizer.decode(ids[:characters], skip_special_tokens=False)[:characters]
            samples.append(sample)
        counts = {"documents": len(store), "tokens": store.tokens, "type": store.dtype.name}
        stores.append({"kind": "store", "path": str(prefix), **counts, "samples": samples})
    return stores


def _tokenizer_in(folder: Location) -> Tokenizer | None:
    if isinstance(folder, Path):
        return read_tokenizer([path]) if (path := folder / TOKENIZER).exists() else None
    if (file := list_files(folder).get(TOKENIZER)) is None:
        return None
    with TemporaryDirectory() as copy, local_copy(file, Path(copy)) as local:
        return read_tokenizer([local])


def print_inspection(inspection: Inspection) -> None:
    """Print the result of ``inspect_path`` on stdout."""
    console = output(soft_wrap=True)
    console.print(f"{inspection['path']}: {_headline(inspection)}")
    for stage in inspection.get("stages", []):
        console.print(f"  {summary_line(stage)}")
    if "sources" in inspection:
        table = Table("source", "documents", "characters")
        for name, count in inspection["sources"].items():
            table.add_row(name, f"{count['documents']:,}", f"{count['characters']:,}")
        console.print(table)
    for sample in inspection.get("samples", []):
        if inspection["kind"] == "table":
            console.print(", ".join(f"{name} = {value!r}" for name, value in sample.items()))
            continue
        title = sample.get("id") or f"document {sample['document']}, {sample['tokens']:,} tokens"
        console.rule(title, align="left")
        console.print(sample.get("text", sample.get("first")))
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
        case "folder":
            return f"{len(inspection['parts'])} token stores or tables"
        case _:
            return f"{inspection['rows']:,} rows of {', '.join(inspection['columns'])}"
