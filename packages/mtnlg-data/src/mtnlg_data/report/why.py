"""What became of one document: kept or dropped, stage by stage, and why.

Ids are looked up in the stages' records of dropped documents and in the columns ``id`` and ``key`` of their shards; no
text is read, and no row group whose statistics exclude the id. A shard has the same name in every stage, so after the
first stage only the shards that hold the document are opened.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.compute as pc
import pyarrow.parquet as pq

from mtnlg_data.console import Failure, output
from mtnlg_data.document import file_schema, named_damage
from mtnlg_data.engine import CUTS, DROPPED, read_record, stage_folders
from mtnlg_data.files import regular
from mtnlg_data.schema import OWN

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mtnlg_data.engine import StageRecord

DOCUMENTS_SHOWN = 10
THREADS = 8
PIECE = re.compile(r"#\d+$")  # at the end of the key of a piece of a document cut apart
COLUMNS = ("id", "key", "source", "score")
HINT = "give the id that the source has, or a key: source, file and number of the record"


class StageFiles(NamedTuple):
    """A finished stage: its name and folder, the shards that are still there, and whether some were removed."""

    name: str
    folder: Path
    shards: list[Path]
    incomplete: bool

    @classmethod
    def of(cls, folder: Path, record: StageRecord) -> StageFiles:
        """The stage that left this record in a folder."""
        listed = record.shard_paths(folder)
        shards = [shard for shard in listed if shard.exists()]
        return cls(record.stage, folder, shards, incomplete=len(shards) < len(listed) or record.shards is None)


def explain(folder: Path, name: str) -> list[dict[str, Any]]:
    """The documents with this id, or else with this key: each with its ``stages`` in order, and their fates.

    ``folder`` is that of a run or of a single stage. Raises ``Failure`` if no stage has finished in it, or no document
    has this id or key.
    """
    folders = stage_folders(folder) if folder.is_dir() else []
    if (record := read_record(folder)) is not None:
        folders.append((folder, record))
    stages = [StageFiles.of(*stage) for stage in folders]
    if not stages:
        raise Failure(f"{folder}: no stage has finished here; give the folder of a run, or of a single stage")
    matches = _look_up(stages, name)
    by_id = {row["key"] for _, row in matches if row["id"] == name}
    keys = by_id or {row["key"] for _, row in matches}
    if not keys:
        raise Failure(f"{folder}: no document {name}; {HINT}")
    documents: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for number, row in matches:
        whole = PIECE.sub("", row["key"])
        if row["key"] in keys or whole in keys:
            documents.setdefault(whole if whole in keys else row["key"], []).append((number, row))
    return [_history(stages, key, rows) for key, rows in sorted(documents.items())]


def _look_up(stages: Sequence[StageFiles], name: str) -> list[tuple[int, dict[str, Any]]]:
    """(number of the stage, row) of every document, kept or dropped, with this id or key, and of its pieces."""
    matches: list[tuple[int, dict[str, Any]]] = []
    names: set[str] | None = None  # of the shards to open, once a stage has shown them
    with ThreadPoolExecutor(THREADS) as threads:
        for number, stage in enumerate(stages):
            all_names = {shard.name for shard in stage.shards}
            records = sorted((stage.folder / DROPPED).glob("*.parquet"))
            records = [path for path in records if names is None or path.name in names or path.name not in all_names]
            shards = [shard for shard in stage.shards if names is None or shard.name in names]
            rows = [*chain.from_iterable(threads.map(lambda path: _matching_rows(path, name), [*records, *shards]))]
            matches += [(number, row) for row in rows]
            if names is None and rows and not stage.incomplete:  # a piece of a document is first met where it was cut
                names = {row["file"] for row in rows}
    return matches


def _matching_rows(path: Path, name: str) -> list[dict[str, Any]]:
    """Rows of a shard, or of a record of dropped documents, with this id or key, or with that of a piece.

    Row groups whose statistics exclude it are not read.
    """
    names = file_schema(path).names
    place = [OWN] if OWN in names else []
    columns = [".".join([*place, column]) for column in COLUMNS] if place or "text" in names else None
    may_be, last = [pc.field(*place, column) for column in ("id", "key")], f"{name}#\U0010ffff"
    id_, key = ((field >= name) & (field <= last) for field in may_be)
    with named_damage(path):
        table = pq.read_table(regular(path), columns=columns, filters=id_ | key)
    rows = [row.get(OWN, row) for row in table.to_pylist()]
    return [
        {**row, "file": path.name}
        for row in rows
        if any(f"{row[column]}#".startswith(f"{name}#") for column in ("id", "key"))
    ]


def _history(stages: Sequence[StageFiles], key: str, rows: Sequence[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    """One document's fate in each stage that has, or had, its shard."""
    first = rows[0][1]
    history: list[dict[str, Any]] = []
    last = max(number for number, _ in rows)
    for number, stage in enumerate(stages[: last + 1]):
        document_rows = [row for at, row in rows if at == number]
        fate: dict[str, Any] = {"fate": "kept"}
        if document_rows and "reason" in document_rows[0]:
            names = {"reason", "score", "kept", "kept_key", "kept_source"}
            fate = {"fate": "dropped", **{name: value for name, value in document_rows[0].items() if name in names}}
        elif document_rows:
            fate["pieces"] = len(document_rows)
        if document_rows or stage.incomplete:
            history.append(
                {"stage": stage.name, **fate, **(_cuts(stage, key, document_rows[0]["file"]) if document_rows else {})}
            )
    name = first["id"] if first["key"] == key else PIECE.sub("", first["id"])
    return {"id": name, "key": key, "source": first["source"], "stages": history}


def _cuts(stage: StageFiles, key: str, shard: str) -> dict[str, Any]:
    """The cuts that a stage made in a document of this shard: first and last character, n-gram, tasks."""
    ledger = stage.folder / CUTS / shard
    if not ledger.exists():
        return {}
    with named_damage(ledger):
        table = pq.read_table(regular(ledger), filters=[("key", "=", key)])
    cuts: dict[tuple[int, int], dict[str, Any]] = {}
    for row in table.to_pylist():
        place = (row["cut_start"], row["cut_end"])
        cut = cuts.setdefault(place, {"start": place[0], "end": place[1], "ngram": row["ngram"], "tasks": []})
        cut["tasks"] = sorted({*cut["tasks"], row["task"]})
    return {"cuts": list(cuts.values())} if cuts else {}


def print_fates(documents: Sequence[dict[str, Any]]) -> None:
    """Print the result of ``explain`` on stdout."""
    console = output(soft_wrap=True)
    if len(documents) > 1:
        console.print(f"{len(documents)} documents have the id {documents[0]['id']}; use their keys")
    for document in documents[:DOCUMENTS_SHOWN]:
        console.print(f"{document['key']} (id {document['id']}, source {document['source']})")
        for stage in document["stages"]:
            console.print(f"  {stage['stage']:<14} {_fate_line(stage)}")
            for cut in stage.get("cuts", []):
                place = f"characters {cut['start']:,} to {cut['end']:,}"
                console.print(f"  {'':<14} {place} cut for {', '.join(cut['tasks'])}: {cut['ngram']}")
    if (more := len(documents) - DOCUMENTS_SHOWN) > 0:
        console.print(f"and {more} more; --json has all")


def _fate_line(stage: dict[str, Any]) -> str:
    if stage["fate"] == "kept":
        pieces = f" in {stage['pieces']} pieces" if stage.get("pieces", 1) > 1 else ""
        return f"kept{pieces}"
    if "kept" in stage:
        return f"dropped as {stage['reason']} of {stage['kept']} ({stage['kept_source']}): Jaccard {stage['score']:.3f}"
    score = "" if stage["score"] is None else f" ({stage['score']:.4g})"
    return f"dropped as {stage['reason']}{score}"
