"""Groups of files: even, stable when a file comes or goes, and read into shards with every document once."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small_corpus as corpus
from shards import read_rows, run_here

from mtnlg_data import Extract, SourceFile
from mtnlg_data.extract.grouping import Group, group_files
from mtnlg_data.extract.text import ExtractSettings

SHARD = 1_000_000_000


def sized_files(monkeypatch: pytest.MonkeyPatch, sizes: dict[str, int]) -> list[SourceFile]:
    """Files that are nowhere, of these sizes."""
    monkeypatch.setattr(SourceFile, "stats", property(lambda file: (sizes[file.name], 0)))
    return [SourceFile("web", Path(name), name, "warc") for name in sorted(sizes)]


def texts(group: Group) -> float:
    return sum(file.stats[0] / 4 / file.part.parts for (file,) in group.pieces)


def names(groups: list[Group]) -> set[tuple[object, ...]]:
    return {(group.numbers, *((file.name, file.part) for (file,) in group.pieces)) for group in groups}


@pytest.mark.parametrize("mean", [40_000_000, 200_000_000, 900_000_000])
def test_groups_are_even_and_a_file_more_or_less_changes_few(monkeypatch: pytest.MonkeyPatch, mean: int) -> None:
    rng = random.Random(0)
    count = 60 * 4 * SHARD // mean
    sizes = {f"{n:06d}.warc.gz": int(mean * rng.uniform(0.5, 1.5)) for n in range(count)}
    groups = group_files(sized_files(monkeypatch, sizes), SHARD)
    filled = sorted(map(texts, groups))
    assert filled[-1] <= SHARD
    assert filled[1] >= 0.4 * SHARD, "but for the last of the files"
    assert Counter(file.name for group in groups for (file,) in group.pieces) == Counter([*sizes])
    changed = []
    for gone in rng.sample(sorted(sizes), 5):
        fewer = {name: size for name, size in sizes.items() if name != gone}
        changed.append(len(names(group_files(sized_files(monkeypatch, fewer), SHARD)) - names(groups)))
    assert sum(changed) / len(changed) < 0.15 * len(groups), changed


def test_large_files_are_groups_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"a.warc.gz": 9 * SHARD, "b.warc.gz": SHARD, "c.warc.gz": SHARD // 2, "d.jsonl": 2 * SHARD}
    files = sized_files(monkeypatch, sizes)
    (tmp_path / "d.jsonl").touch()
    files[3] = replace(files[3], kind="jsonl", path=tmp_path / "d.jsonl")
    groups = group_files(files, SHARD)
    parts = [[(file.name[0], *file.part) for (file,) in group.pieces] for group in groups]
    assert parts == [[("a", 0, 1)], [("b", 0, 1)], [("c", 0, 1)], [("d", 0, 2)], [("d", 1, 2)]]
    numbers = [number for group in groups for number in group.numbers]
    assert numbers[0] == 0
    assert all(len(str(number)) == 15 for number in numbers[1:])
    assert len({*numbers}) == 5


def test_little_text_still_makes_several_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {f"{n}.warc.gz": 40_000_000 for n in range(64)}
    assert 16 <= len(group_files(sized_files(monkeypatch, sizes), SHARD)) <= 48


def test_small_files_share_a_shard_and_large_ones_fill_several(tmp_path: Path) -> None:
    for name, count in (("a", 5), ("b", 5), ("c", 300)):
        corpus.write_jsonl(tmp_path / "in" / f"{name}.jsonl", [{"text": corpus.text(n)} for n in range(count)])
    files = [SourceFile("own", tmp_path / "in" / f"{name}.jsonl", f"{name}.jsonl", "jsonl") for name in "abc"]
    size = files[2].stats[0]
    summary = run_here(Extract(shard_characters=size // 4), files, tmp_path / "out")
    assert len(summary["shards"]) == 6
    rows = read_rows(*(tmp_path / "out" / name for name in summary["shards"]))
    assert [row["text"] for row in rows] == [corpus.text(n) for n in [*range(5), *range(5), *range(300)]]
    assert [row["key"] for row in rows[:10]] == [f"own/{name}.jsonl/{n}" for name in "ab" for n in range(5)]
    assert len({row["key"] for row in rows}) == 310
    assert rows[-1]["key"].startswith("own/c.jsonl/4:")


def test_files_with_other_columns_get_separate_shards(tmp_path: Path) -> None:
    tables = {
        "a": pa.table({"text": ["one"], "n": [1]}, metadata={"rows": "1"}),
        "b": pa.table({"text": ["two", "three"], "n": [2, 3]}, metadata={"rows": "2"}),
        "c": pa.table({"text": ["four"], "other": ["x"]}),
    }
    files = []
    for name, table in tables.items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
        files.append(SourceFile("own", tmp_path / f"{name}.parquet", f"{name}.parquet", "parquet"))
    summary = run_here(Extract(), files, tmp_path / "out")
    shards = [pq.read_table(tmp_path / "out" / name).drop_columns("mtnlg").to_pydict() for name in summary["shards"]]
    assert shards == [{"text": ["one", "two", "three"], "n": [1, 2, 3]}, {"text": ["four"], "other": ["x"]}]


def test_file_without_documents_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\n" * 2000)
    (tmp_path / "b.jsonl").write_bytes(b"\n" * 1000 + b'{"text": "one"}\n')
    files = [SourceFile("web", tmp_path / name, name, "jsonl") for name in ("a.jsonl", "b.jsonl")]
    settings = ExtractSettings(shard_characters=500)
    assert len(group_files(files, settings.shard_characters)) > 4
    summary = run_here(Extract(settings), files, tmp_path / "out")
    assert [file["where"] for file in summary["lost"]] == ["a.jsonl"]
