"""Source files to shards: a shared file is read once, large files get several shards, row groups fit in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
import small_corpus as corpus
from shards import read_rows, run_here, write_shard

from mtnlg_data import Extract, SourceFile
from mtnlg_data.document import CHARACTERS_PER_GROUP, read_documents, write_documents
from mtnlg_data.extract.text import ExtractSettings
from mtnlg_data.schema import SCHEMA, Document, document_columns
from mtnlg_data.sources.rows import read_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mtnlg_data.engine import Summary

SUBSETS = {"books": "Books3", "letters": "Enron", "all": None}


@pytest.fixture
def pile(tmp_path: Path) -> Path:
    """A file of the Pile with three subsets, a line that is not an object and one without text."""
    path = tmp_path / "00.jsonl.zst"
    names = ["Books3", "Enron", "Github"] * 4
    rows: list[object] = [{"text": corpus.text(n), "meta": {"pile_set_name": name}} for n, name in enumerate(names)]
    rows += [["no object"], {"text": None, "meta": {"pile_set_name": "Enron"}}]
    corpus.write_jsonl(path, rows)
    return path


def feeds(path: Path, *sources: str) -> list[SourceFile]:
    return [SourceFile(source, path, path.name, "pile", {"subset": SUBSETS[source]}) for source in sources]


def run(files: list[SourceFile], out: Path, settings: ExtractSettings | None = None) -> Summary:
    return run_here(Extract(settings or ExtractSettings()), files, out)


def test_pile_file_is_read_once_for_all_sources(pile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_paths = []

    def counted(path: Path, *args: Any) -> Iterator[Any]:  # noqa: ANN401  (read_lines's own)
        read_paths.append(path)
        return read_lines(path, *args)

    monkeypatch.setattr("mtnlg_data.sources.jsonl.read_lines", counted)
    for sources in (["books", "letters"], ["letters", "books", "all"]):
        read_paths.clear()
        out = tmp_path / "-".join(sources)
        account = run(feeds(pile, *sources), out)
        assert read_paths == [pile]
        assert account["shards"] == [f"{source}-00000.parquet" for source in sources]
        for source in sources:
            run(feeds(pile, source), tmp_path / source)
            assert read_rows(out / f"{source}-00000.parquet") == read_rows(
                tmp_path / source / f"{source}-00000.parquet"
            )


def test_broken_record_of_a_shared_file_counts_for_its_source(pile: Path, tmp_path: Path) -> None:
    counted = run(feeds(pile, "books", "letters"), tmp_path / "out")["sources"]
    assert counted["books"]["dropped"] == {"not_json": 1}, "its subset is unknown, so it counts with the first source"
    assert counted["letters"]["dropped"] == {"no_text": 1}
    assert (counted["books"]["documents_out"], counted["letters"]["documents_out"]) == (4, 4)


def test_full_shard_is_followed_without_loss(pile: Path, tmp_path: Path) -> None:
    whole = run(feeds(pile, "all", "books"), tmp_path / "whole")
    cut = run(feeds(pile, "all", "books"), tmp_path / "cut", ExtractSettings(shard_characters=2500))
    assert cut["shards"][:2] == ["all-00000.parquet", "all-00000.001.parquet"]
    assert len(cut["shards"]) > len(whole["shards"])
    for source in ("all", "books"):
        parts = [name for name in cut["shards"] if name.startswith(source)]
        rows = [row for name in parts for row in read_rows(tmp_path / "cut" / name)]
        assert rows == read_rows(tmp_path / "whole" / f"{source}-00000.parquet")
    sizes = [sum(len(row["text"]) for row in read_rows(tmp_path / "cut" / name)) for name in cut["shards"]]
    longest = max(len(row["text"]) for row in read_rows(tmp_path / "whole" / "all-00000.parquet"))
    assert max(sizes) < 2500 + longest


@pytest.mark.parametrize("lost", ["all-00000.001.parquet", "all-00000.001.parquet.json", "all-00000.parquet.json"])
def test_lost_shard_or_manifest_is_rebuilt(pile: Path, tmp_path: Path, lost: str) -> None:
    settings = ExtractSettings(shard_characters=2500)
    run(feeds(pile, "all"), tmp_path, settings)
    before = (tmp_path / lost).read_bytes()
    (tmp_path / lost).unlink()
    run(feeds(pile, "all"), tmp_path, settings)
    assert (tmp_path / lost).read_bytes() == before


def test_row_groups_are_bounded_and_small_batches_merged(tmp_path: Path) -> None:
    length = CHARACTERS_PER_GROUP // 3
    write_shard(tmp_path / "large.parquet", (Document(f"{n}", "x", "x" * length) for n in range(7)))
    with pq.ParquetFile(tmp_path / "large.parquet") as file:
        assert [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)] == [4, 3]
    assert [batch.num_rows for batch in read_documents(tmp_path / "large.parquet")] == [4, 3]
    filtered = [batch.slice(0, 2) for batch in read_documents(tmp_path / "large.parquet")]
    write_documents(tmp_path / "filtered.parquet", filtered)
    assert [batch.num_rows for batch in read_documents(tmp_path / "filtered.parquet")] == [2, 2]
    few = (document_columns([Document(f"{n}", "x", "short")], SCHEMA) for n in range(500))
    write_documents(tmp_path / "small.parquet", few)
    assert [batch.num_rows for batch in read_documents(tmp_path / "small.parquet")] == [500]
