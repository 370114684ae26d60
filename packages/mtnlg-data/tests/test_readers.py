"""Readers: every intact record is read, a broken one is dropped alone with a reason; parts; readers of users."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from mtnlg_data.cli import app
from mtnlg_data.console import Failure, UsageFailure
from mtnlg_data.document import read_documents
from mtnlg_data.engine import open_engine
from mtnlg_data.extract.text import ExtractSettings
from mtnlg_data.job import run_step
from mtnlg_data.recipe import load_recipe
from mtnlg_data.sources import Dropped, Record, SourceFile, read_records
from mtnlg_data.steps.extract import Extract

if TYPE_CHECKING:
    from collections.abc import Callable


def read(
    path: Path,
    kind: str,
    largest: int = 1 << 24,
    **options: Any,  # noqa: ANN401  (keys of a reader)
) -> tuple[list[Record], list[Dropped]]:
    items = list(read_records(SourceFile("s", path, path.name, kind, options), largest))
    return [item for item in items if isinstance(item, Record)], [item for item in items if isinstance(item, Dropped)]


PACK: dict[str, Callable[[bytes], bytes]] = {
    ".jsonl": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
}
LINES = b"".join(json.dumps({"text": f"{n * 7919 % 10007:0100d}"}).encode() + b"\n" for n in range(20_000))


class Case(NamedTuple):
    """Lines, what is read of them by number, and the reasons and lines of the others."""

    lines: bytes
    records: list[tuple[int, str]]
    dropped: list[tuple[str, str]]
    options: dict[str, Any] = {}  # noqa: RUF012  (never changed)
    kind: str = "jsonl"
    url: str | None = None


def of_subset(text: str | None, subset: str) -> bytes:
    return json.dumps({"text": text, "meta": {"pile_set_name": subset}}).encode() + b"\n"


PILE = of_subset("a", "Books3") + of_subset("b", "Github") + of_subset(None, "Books3") + b'{"text": "c"}\n'
CASES = {
    "not JSON": Case(b'not json\n{"text": "one", "url": "u"}\n', [(1, "one")], [("not_json", "1")], url="u"),
    "not a string": Case(b'{"text": 3}\n{"text": "one"}\n', [(1, "one")], [("no_text", "1")]),
    "not an object": Case(b'["text"]\n{"text": "one"}', [(1, "one")], [("not_json", "1")]),
    "surrogate": Case(b'{"text": "lone \\ud800 surrogate"}\n', [], [("not_json", "1")]),
    "not UTF-8": Case(b'{"text": "\xff"}\n\n{"text": "zwei \xc3\xbc"}\n', [(2, "zwei ü")], [("not_json", "1")]),
    "long line": Case(
        b'{"text": "a"}\n' + b"x" * (1 << 21) + b'\n{"text": "b"}\n', [(0, "a"), (2, "b")], [("too_large", "2")]
    ),
    "deep": Case(
        b"NaN" + b"[" * 100_000 + b'\n{"x": NaN, "y": ' + b"[" * 100_000 + b"\n",
        [],
        [("not_json", "1"), ("not_json", "2")],
    ),
    "byte order mark": Case(b'\xef\xbb\xbf{"text": "one"}\n', [(0, "one")], []),
    "numbers of Python": Case(
        b'{"text": "two", "x": NaN}\n{"text": "3", "x": [-Infinity]}\n', [(0, "two"), (1, "3")], []
    ),
    "another key": Case(b'{"content": "here", "text": "not here"}\n', [(0, "here")], [], {"field": "content"}),
    "one subset": Case(PILE, [(0, "a")], [("no_text", "3")], {"subset": "Books3"}, "pile"),
    "two subsets": Case(PILE, [(0, "a"), (1, "b")], [("no_text", "3")], {"subset": ["Github", "Books3"]}, "pile"),
    "all subsets": Case(PILE, [(0, "a"), (1, "b"), (3, "c")], [("no_text", "3")], {}, "pile"),
}


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("name", CASES)
def test_lines_are_read_and_bad_ones_dropped_alone(tmp_path: Path, name: str, suffix: str) -> None:
    case, path = CASES[name], tmp_path / f"a{suffix}"
    path.write_bytes(PACK[suffix](case.lines))
    records, dropped = read(path, case.kind, 1 << 20, **case.options)
    assert [(record.number, record.content) for record in records] == case.records
    assert [(drop.reason, drop.where.rpartition(" ")[2]) for drop in dropped] == case.dropped
    assert {record.url for record in records} <= {case.url}


BOMB = b'{"text": "a"}\n' + b"\n" * (1 << 21) + b'{"text": "b"}\n'


@pytest.mark.parametrize(
    ("suffix", "content", "fewest", "reasons"),
    [
        *[(suffix, PACK[suffix](LINES)[:-1000], 1, {"unreadable", "not_json"}) for suffix in (".gz", ".zst")],
        *[(suffix, b'{"text": "plain"}\n', 0, {"unreadable"}) for suffix in (".gz", ".zst")],
        *[(suffix, PACK[suffix](BOMB), 1, {"bomb"}) for suffix in (".gz", ".zst")],
        *[(suffix, PACK[suffix](BOMB.replace(b"\n\n", b"\nx")), 1, {"bomb"}) for suffix in (".gz", ".zst")],
    ],
)
def test_a_stream_that_cannot_be_read_on_names_the_loss(  # noqa: PLR0917
    tmp_path: Path, suffix: str, content: bytes, fewest: int, reasons: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mtnlg_data.sources.jsonl.ALWAYS_ALLOWED_BYTES", 1 << 18)
    (tmp_path / f"a{suffix}").write_bytes(content)
    records, dropped = read(tmp_path / f"a{suffix}", "jsonl", largest=1 << 16)
    assert fewest <= len(records) < 20_000
    assert dropped[-1].reason in reasons
    assert dropped[-1].ends_file


@pytest.mark.parametrize("suffix", PACK)
def test_files_of_several_streams_are_read_whole(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"a{suffix}").write_bytes(b"".join(PACK[suffix](b'{"text": "%d"}\n' % n) for n in range(3)))
    assert [record.content for record in read(tmp_path / f"a{suffix}", "jsonl")[0]] == ["0", "1", "2"]


# --- tables ----------------------------------------------------------------------------------------------------------


def damaged_group(path: Path) -> None:
    pq.write_table(pa.table({"text": [str(n) * 50 for n in range(40)]}), path, row_group_size=10)
    with pq.ParquetFile(path) as file:
        place = file.metadata.row_group(1).column(0).data_page_offset
    content = bytearray(path.read_bytes())
    content[place : place + 40] = b"\xff" * 40
    path.write_bytes(content)


def invalid_utf8(path: Path, dictionary: bool) -> None:
    offsets = np.array([0, 2, 4, 5], np.int32)
    texts = pa.StringArray.from_buffers(3, pa.py_buffer(offsets), pa.py_buffer(b"ok\xff\xfez"))
    pq.write_table(pa.table({"text": texts}), path, use_dictionary=dictionary)


ROWS = pa.table({"text": ["one", None, "x" * 200, "two"]})
TABLES: dict[str, tuple[Callable[[Path], object], list[int], list[tuple[str, str]]]] = {
    "rows": (
        lambda path: pq.write_table(ROWS, path, row_group_size=2),
        [0, 3],
        [("no_text", "row 2"), ("too_large", "row 3")],
    ),
    "plain UTF-8": (lambda path: invalid_utf8(path, False), [0, 2], [("not_utf8", "row 2")]),
    "UTF-8 in a dictionary": (lambda path: invalid_utf8(path, True), [0, 2], [("not_utf8", "row 2")]),
    "damaged group": (damaged_group, [*range(10), *range(20, 40)], [("unreadable", "rows 11 to 20")]),
    "not Parquet": (lambda path: path.write_bytes(b"PAR1 no"), [], [("unreadable", "a.parquet")]),
    "no text": (lambda path: pq.write_table(pa.table({"body": ["x"]}), path), [], [("no_text", "a.parquet")]),
}


@pytest.mark.parametrize("name", TABLES)
def test_rows_of_parquet_are_read_and_bad_ones_dropped_alone(tmp_path: Path, name: str) -> None:
    write, numbers, lost = TABLES[name]
    write(tmp_path / "a.parquet")
    records, dropped = read(tmp_path / "a.parquet", "parquet", largest=100)
    assert [record.number for record in records] == numbers
    assert [(drop.reason, drop.where.removeprefix("a.parquet: ")) for drop in dropped] == lost


def test_a_text_repeated_in_many_rows_is_in_memory_once(tmp_path: Path) -> None:
    rows = pa.DictionaryArray.from_arrays(np.zeros(1000, np.int32), ["x" * (1 << 20)])
    pq.write_table(pa.table({"text": rows}), tmp_path / "a.parquet")
    before = pa.total_allocated_bytes()
    most = 0
    for record in read_records(SourceFile("s", tmp_path / "a.parquet", "a", "parquet")):
        assert isinstance(record, Record)
        most = max(most, pa.total_allocated_bytes() - before)
    assert most < 64 << 20


# --- parts -----------------------------------------------------------------------------------------------------------


@given(sizes=st.lists(st.integers(0, 300), min_size=1, max_size=12), count=st.integers(2, 40), broken=st.booleans())
def test_parts_hold_every_record_once_and_in_order(sizes: list[int], count: int, broken: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        texts = [f"{n} " + "x" * size for n, size in enumerate(sizes)]
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (Path(folder) / "a.jsonl").write_text("not json\n" * broken + lines)
        pq.write_table(pa.table({"text": texts}), Path(folder) / "a.parquet", row_group_size=2)
        for kind in ("jsonl", "parquet"):
            file = SourceFile("s", Path(folder) / f"a.{kind}", f"a.{kind}", kind)
            items = [(part, item) for part in file.cut(count) for item in read_records(part)]
            assert [item.content for _, item in items if isinstance(item, Record)] == texts
            assert len({part.key(item.number) for part, item in items if isinstance(item, Record)}) == len(texts)
            assert sum(isinstance(item, Dropped) for _, item in items) == (broken and kind == "jsonl")
        assert [part.key(item.number) for part, item in items if isinstance(item, Record)] == [
            f"s/a.parquet/{n}" for n in range(len(texts))
        ]


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.warc", "a.warc.gz", "a.arrow"])
def test_other_files_are_one_unit_of_work(tmp_path: Path, name: str) -> None:
    file = SourceFile("s", tmp_path / name, name, name.split(".")[1])
    assert file.cut(4) == file.cut(1) == [file]


# --- readers of a user -----------------------------------------------------------------------------------------------

MINE = '''
from mtnlg_data import Dropped, Reader, Record, reader

@reader("paragraphs", patterns=["*.txt"])
class Paragraphs(Reader):
    """Texts of paragraphs, each a document."""

    shortest: int = 1

    def read(self, path, part, max_bytes):
        for number, text in enumerate(path.read_text().split("\\n\\n")):
            if text == "raise":
                raise RuntimeError("no more")
            if len(text) < self.shortest:
                yield Dropped("too_short", f"{path.name}: paragraph {number}")
            else:
                yield Record(number, text, metadata={"letters": len(text)})

class NotOne: ...

class Clashing(Reader):
    paths: int = 1
'''
TEXT = "The people of the town did not know what to do with all of the rain. " * 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.py").write_text(MINE)
    (tmp_path / "a.txt").write_text(f"{TEXT}\n\nno\n\n{TEXT}")
    return tmp_path


def recipe(folder: Path, kind: str = "code/mine.py:Paragraphs", keys: str = "shortest = 3") -> Path:
    source = f'[sources.own]\nkind = "{kind}"\npaths = ["*.txt"]\nweight = 1.0\n{keys}\n'
    (folder / "data.toml").write_text(f"{source}[tokenize]\nvocabulary = 300\n")
    return folder / "data.toml"


def test_a_reader_in_a_file_beside_the_recipe_reads_a_source(folder: Path) -> None:
    files = load_recipe(recipe(folder)).files()
    with open_engine("local", 2) as engine:
        summary = run_step(Extract(ExtractSettings()), files, folder / "out", engine)
    rows = [row for batch in read_documents(folder / "out" / "own-00000.parquet") for row in batch.to_pylist()]
    assert [(row["key"], row["text"], row["metadata"]) for row in rows] == [
        (f"own/a.txt/{n}", TEXT, json.dumps({"letters": len(TEXT)}, separators=(",", ":"))) for n in (0, 2)
    ]
    assert summary["sources"]["own"]["dropped"] == {"too_short": 1}


def test_what_a_readers_error_costs_is_named(folder: Path) -> None:
    (folder / "a.txt").write_text(f"{TEXT}\n\nraise\n\n{TEXT}")
    with open_engine("local", 1) as engine:
        summary = run_step(Extract(ExtractSettings()), load_recipe(recipe(folder)).files(), folder / "out", engine)
    assert summary["sources"]["own"]["documents_out"] == 1
    assert summary["lost"] == [{"source": "own", "where": "a.txt: behind record 0", "what": "RuntimeError: no more"}]


@pytest.mark.parametrize(
    ("kind", "keys", "said"),
    [
        ("jsonll", "", ["jsonll", "did you mean jsonl?"]),
        ("code/mine.py:Paragraf", "", ["did you mean Paragraphs?"]),
        ("code/mine.py:NotOne", "", ["not a reader"]),
        ("code/gone.py:Paragraphs", "", ["gone.py"]),
        ("code/mine.py:Clashing", "", ["its key paths"]),
        ("code/mine.py:Paragraphs", "shortes = 3", ["shortes = 3", "did you mean shortest?"]),
        ("code/mine.py:Paragraphs", "weigth = 3", ["weigth = 3", "did you mean weight?"]),
        ("code/mine.py:Paragraphs", 'shortest = "3"', ["shortest = '3'", "integer"]),
        ("code/mine.py:Paragraphs", 'snapshot = "s"', ["snapshot = 's'", "unknown key"]),
        ("jsonl", 'subset = "Books3"', ["subset = 'Books3'", "unknown key"]),
    ],
)
def test_a_wrong_reader_or_key_of_one_is_refused(folder: Path, kind: str, keys: str, said: list[str]) -> None:
    with pytest.raises(UsageFailure) as refusal:
        load_recipe(recipe(folder, kind, keys))
    assert [part for part in [f"{folder / 'data.toml'}: sources.own", *said] if part not in str(refusal.value)] == []


def test_a_reader_of_an_installed_package_reads_files_of_its_patterns(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = folder / "site" / "theirs-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mtnlg_data.readers]\nparagraphs = paragraphs_of_theirs:Paragraphs\n")
    (folder / "site" / "paragraphs_of_theirs.py").write_text(MINE)
    words = ["extract", str(folder / "a.txt"), "--out", str(folder / "out"), "--workers", "1"]
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, Failure)
    assert "*.parquet" in str(result.exception), "the patterns that there are"
    monkeypatch.syspath_prepend(folder / "site")
    monkeypatch.setenv("PYTHONPATH", str(folder / "site"), prepend=":")
    assert CliRunner().invoke(app, words).exit_code == 0
    rows = [row for batch in read_documents(folder / "out" / "documents-00000.parquet") for row in batch.to_pylist()]
    assert [row["text"] for row in rows] == [TEXT, "no", TEXT]
