"""Readers: every intact record is read, a broken one is dropped alone with a reason; parts; readers of users."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from command_line import command, invoke
from hypothesis import given
from hypothesis import strategies as st
from shards import read_rows, read_source, run_here

from mtnlg_data import Extract, load_recipe, open_engine, read_documents, run_step
from mtnlg_data.console import Failure, UsageFailure
from mtnlg_data.sources import Dropped, Record, SourceFile, read_records
from mtnlg_data.sources.matching import kinds_of_files

if TYPE_CHECKING:
    from collections.abc import Callable


def lz4(content: bytes) -> bytes:
    with pa.BufferOutputStream() as sink:
        with pa.CompressedOutputStream(sink, "lz4") as stream:
            stream.write(content)
        return bytes(sink.getvalue())


PACK: dict[str, Callable[[bytes], bytes]] = {
    ".jsonl": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".lz4": lz4,
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
    "not a string": Case(b'{"text": 3}\n{"text": "one", "url": "u"}\n', [(1, "one")], [("no_text", "1")], url="u"),
    "not an object": Case(b'["text"]\n{"text": "one"}', [(1, "one")], [("not_json", "1")]),
    "not UTF-8": Case(b'{"text": "\xff"}\n\n{"text": "zwei \xc3\xbc"}\n', [(2, "zwei ü")], [("not_json", "1")]),
    "long line": Case(
        b'{"text": "a"}\n' + b"x" * (1 << 21) + b'\n{"text": "b"}\n', [(0, "a"), (2, "b")], [("too_large", "2")]
    ),
    "nested key": Case(
        b'{"data": {"text": "in", "x": 1}}\n{"data.text": "named so"}\n{"data": "text"}\n{"data": {}}\n',
        [(0, "in"), (1, "named so")],
        [("no_text", "3"), ("no_text", "4")],
        {"field": "data.text"},
    ),
    "chat": Case(
        json.dumps({"m": [{"role": "user", "content": "a {role}"}, {"role": "bot", "content": None}]}).encode()
        + b'\n{"m": [{"role": "user"}]}\n{"m": ["a"]}\n{"m": "text"}\n',
        [(0, "user: a {role}\nbot: \n"), (3, "text")],
        [("no_text", "2"), ("no_text", "3")],
        {"field": "m", "message": "{role}: {content}\n"},
    ),
    "one subset": Case(PILE, [(0, "a")], [("no_text", "3")], {"subset": "Books3"}, "pile"),
    "two subsets": Case(PILE, [(0, "a"), (1, "b")], [("no_text", "3")], {"subset": ["Github", "Books3"]}, "pile"),
    "all subsets": Case(PILE, [(0, "a"), (1, "b"), (3, "c")], [("no_text", "3")], {}, "pile"),
}


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("name", CASES)
def test_only_bad_lines_are_dropped(tmp_path: Path, name: str, suffix: str) -> None:
    case, path = CASES[name], tmp_path / f"a{suffix}"
    path.write_bytes(PACK[suffix](case.lines))
    records, dropped = read_source(path, case.kind, 1 << 20, **case.options)
    assert [(record.number, record.content) for record in records] == case.records
    assert [(drop.reason, drop.where.rpartition(" ")[2]) for drop in dropped] == case.dropped
    assert {record.url for record in records} <= {case.url}


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b'{"n": 1, "body": "a"}', "no string under 'text' but under body: set field (--field) to one"),
        (b'{"n": 1, "msgs": [{}]}', "no string under 'text' but under msgs (a list): set field (--field) to one"),
        (b'{"n": 1, "text": [{}]}', "no string under 'text' (list); set message if it is a chat"),
        (b'{"n": 1}', "no string under 'text'"),
    ],
)
def test_a_drop_without_text_names_the_keys_that_may_have_it(tmp_path: Path, line: bytes, what: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(line)
    assert read_source(tmp_path / "a.jsonl", "jsonl", 1 << 20)[1][0].what == what


BOMB = b'{"text": "a"}\n' + b"\n" * (1 << 21) + b'{"text": "b"}\n'


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("content", [BOMB, BOMB.replace(b"\n\n", b"\nx")], ids=["empty lines", "one line"])
def test_a_bomb_is_read_no_further_and_named(
    tmp_path: Path, suffix: str, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mtnlg_data.sources.streams.ALWAYS_ALLOWED_BYTES", 1 << 18)
    (tmp_path / f"a{suffix}").write_bytes(PACK[suffix](content))
    records, dropped = read_source(tmp_path / f"a{suffix}", "jsonl", largest=1 << 16)
    assert [record.content for record in records] == ["a"]
    assert [(drop.reason, drop.ends_file) for drop in dropped[-1:]] == [("bomb", True)]


@pytest.mark.parametrize("suffix", [*PACK][1:])
def test_bytes_after_a_compressed_stream_are_reported(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "a").write_bytes(PACK[suffix](LINES) + b"not compressed")
    records, dropped = read_source(tmp_path / "a", "jsonl")
    assert len(records) > 19_000
    assert [(drop.reason, drop.ends_file) for drop in dropped] == [("unreadable", True)]


def test_a_zstd_file_may_begin_with_a_frame_to_be_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.zst").write_bytes(b"\x50\x2a\x4d\x18\x04\0\0\0size" + zstandard.compress(LINES))
    assert len(read_source(tmp_path / "a.zst", "jsonl")[0]) == 20_000


# --- CSV, text, tar --------------------------------------------------------------------------------------------------


def tar(*members: tuple[str, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=form) as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("link.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    return target.getvalue()


class FileCase(NamedTuple):
    """A file, its documents (number, text, id) and the places of the others by reason."""

    name: str
    content: bytes
    records: list[tuple[int, str, str | None]]
    dropped: list[tuple[str, str]] = []  # noqa: RUF012  (never changed)
    options: dict[str, Any] = {}  # noqa: RUF012


SAMPLES = [
    ("d/0.jpg", b"x" * 2000),
    ("d/0.txt", "ü".encode()),
    ("d/0.json", b'{"k": 1}'),
    ("d/1.json", b'{"text": "one"}'),
]
LONG_NAME = f"{'é' * 80}/{'n' * 90}"
PARAGRAPHS = b"\xef\xbb\xbfone\ntwo\n\n \r\nthree\n\nbad \xff\n\n" + b"x" * 300 + b"\n\nfour"
FILES = {
    "quotes": FileCase(
        "a.csv", b'id,text\r\n1,"a ""b"",\r\n\r\nc"\r\n\r\n2,d', [(0, 'a "b",\r\n\r\nc', "1"), (1, "d", "2")]
    ),
    "tabs": FileCase("a.TSV", b"k\tbody\nx\tone, two\n", [(0, "one, two", "x")], [], {"field": "body", "id": "k"}),
    "semicolons": FileCase("a.csv", b"text;n\none;1\n", [(0, "one", None)], [], {"delimiter": ";"}),
    "bad rows": FileCase(
        "a.csv",
        b'text,n\none\nb\xffd,1\n"a"b,1\ntwo,1\n"'
        + b'y,"",\n' * 30
        + b'",1\nthree,1\n'
        + b"z" * 200
        + b'\nfour,1\n"cut',
        [(3, "two", None), (5, "three", None), (7, "four", None)],
        [
            *[("bad_csv", f"row {n}") for n in (1, 2, 3)],
            ("too_large", "row 5"),
            ("too_large", "line 38"),
            ("bad_csv", "row 9"),
        ],
    ),
    "no column": FileCase("a.csv", b"body\none\n", [], [("no_text", "row 1")]),
    "file": FileCase("a.txt", b"one\n\ntwo", [(0, "one\n\ntwo", None)]),
    "large file": FileCase("a.txt", PARAGRAPHS, [], [("too_large", "file 1")]),
    "paragraphs": FileCase(
        "a.txt",
        PARAGRAPHS,
        [(0, "one\ntwo\n", None), (1, "three\n", None), (4, "four", None)],
        [("not_utf8", "paragraph 3"), ("too_large", "paragraph 4")],
        {"document": "paragraph"},
    ),
    "samples": FileCase("a.tar", tar(*SAMPLES), [(0, "ü", "d/0"), (1, "one", "d/1")]),
    "two archives": FileCase("a.tar", 2 * tar(*SAMPLES[3:]), [(0, "one", "d/1")]),
    "long names": FileCase("a.tar", tar((f"{LONG_NAME}.txt", b"a")), [(0, "a", LONG_NAME)]),
    "long names of GNU": FileCase(
        "a.tar", tar((f"{LONG_NAME}.txt", b"a"), form=tarfile.GNU_FORMAT), [(0, "a", LONG_NAME)]
    ),
    "bad samples": FileCase(
        "a.tar",
        tar(("0.txt", b"\xff"), ("1.json", b"{"), ("2.json", b"{}"), ("3.txt", b"x" * 300), ("4.txt", b"a")),
        [(4, "a", "4")],
        [("not_utf8", "0"), ("not_json", "1"), ("no_text", "2"), ("too_large", "3")],
    ),
    "cut member": FileCase("a.tar", tar(*SAMPLES)[:2000], [], [("truncated", "a.tar")]),
    "cut archive": FileCase("a.tar", tar(*SAMPLES)[:5000], [(0, "ü", "d/0")], [("unreadable", "behind d/0.json")]),
    "archive without its end": FileCase(
        "a.tar", tar(*SAMPLES)[:6144], [(0, "ü", "d/0"), (1, "one", "d/1")], [("truncated", "behind d/1.json")]
    ),
    "damaged archive": FileCase(
        "a.tar", tar(("0.txt", b"a"))[:1024] + b"x" * 512, [(0, "a", "0")], [("unreadable", "behind 0.txt")]
    ),
}


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lz4])
@pytest.mark.parametrize("name", FILES)
def test_only_bad_rows_are_dropped(tmp_path: Path, name: str, pack: Callable[[bytes], bytes]) -> None:
    case = FILES[name]
    path = tmp_path / case.name
    path.write_bytes(pack(case.content))
    (kind,) = kinds_of_files([case.name]).values()
    records, dropped = read_source(path, str(kind), 100, **case.options)
    assert [(record.number, record.content, record.id) for record in records] == case.records
    assert [(drop.reason, drop.where.removeprefix(f"{case.name}: ")) for drop in dropped] == case.dropped


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
}


@pytest.mark.parametrize("name", TABLES)
def test_only_bad_parquet_rows_are_dropped(tmp_path: Path, name: str) -> None:
    write, numbers, lost = TABLES[name]
    write(tmp_path / "a.parquet")
    records, dropped = read_source(tmp_path / "a.parquet", "parquet", largest=100)
    assert [record.number for record in records] == numbers
    assert [(drop.reason, drop.where.removeprefix("a.parquet: ")) for drop in dropped] == lost


NESTED = {"d": [{"t": "one", "e": {"id": "x"}, "n": 1}, {"t": None, "e": None, "n": 2}, None], "id": ["0", "1", "2"]}
CHATS = {"m": [[{"role": "user", "content": "a"}, {"role": "bot", "content": None}], None], "id": ["0", "1"]}


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize(
    ("rows", "options", "record", "columns"),
    [
        (NESTED, {"field": "d.t"}, ("one", "0"), ["d.e", "d.n", "id"]),
        (NESTED, {"field": "d.t", "id": "d.e.id"}, ("one", "x"), ["d.e.id", "d.n", "id"]),
        (NESTED, {"field": "id", "id": "d.n"}, ("0", "1"), ["d.t", "d.e", "d.n"]),
        (CHATS, {"field": "m", "message": "{role}: {content}\n"}, ("user: a\nbot: \n", "0"), ["id"]),
    ],
)
def test_nested_columns_and_chats_of_tables_are_read(  # noqa: PLR0917
    tmp_path: Path,
    rows: dict[str, Any],
    options: dict[str, Any],
    record: tuple[str, str],
    columns: list[str],
    kind: str,
) -> None:
    table, path = pa.table(rows), tmp_path / f"a.{kind}"
    if kind == "parquet":
        pq.write_table(table, path)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
    records, dropped = read_source(path, kind, **options)
    assert (records[0].content, records[0].id) == record
    assert records[0].metadata.value.columns.type.names == columns  # type: ignore[union-attr]
    assert {drop.reason for drop in dropped} <= {"no_text"}
    run_here(Extract(), [SourceFile("s", path, path.name, kind, options)], tmp_path / "out")
    (batch,) = read_documents(tmp_path / "out" / "s-00000.parquet")
    assert [(row["text"], row["id"]) for row in batch.to_pylist()][:1] == [record]


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
    file.here.write_bytes(PACK.get(file.here.suffix, bytes)(LINES))
    assert file.cut(4) == file.cut(1) == [file]


def test_files_of_no_bytes_hold_no_documents_and_are_no_error(tmp_path: Path) -> None:
    names = ["0.jsonl", "1.tar", "2.csv", "3.jsonl", "4.txt"]
    for name in names:
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "3.jsonl").write_bytes(b'{"text": "one"}\n')
    files = [SourceFile("s", tmp_path / name, name, str(kind)) for name, kind in kinds_of_files(names).items()]
    summary = run_here(Extract(), files, tmp_path / "out")
    assert (summary["shards"], summary["sources"]["s"]["documents_out"]) == (["s-00000.parquet"], 1)
    assert "failure" not in summary


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
            if text == "text":
                yield text
            if text == "number":
                yield Record(text, number)
            if len(text) < self.shortest:
                yield Dropped("too_short", f"{path.name}: paragraph {number}")
            else:
                yield Record(number, text, metadata={"letters": len(text)})

class NotOne: ...

class Reads(Reader): ...

class Clashing(Paragraphs):
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
        summary = run_step(Extract(), files, folder / "out", engine)
    rows = read_rows(folder / "out" / "own-00000.parquet")
    assert [(row["key"], row["text"], row["metadata"]) for row in rows] == [
        (f"own/a.txt/{n}", TEXT, json.dumps({"letters": len(TEXT)}, separators=(",", ":"))) for n in (0, 2)
    ]
    assert summary["sources"]["own"]["dropped"] == {"too_short": 1}


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("raise", "RuntimeError: no more"),
        ("text", "TypeError: 'text' is neither a Record of a str or bytes nor a Dropped"),
        ("number", "TypeError: Record(number='number', content=1, "),
    ],
)
def test_reader_error_is_reported_with_its_place(folder: Path, line: str, what: str) -> None:
    (folder / "a.txt").write_text(f"{TEXT}\n\n{line}\n\n{TEXT}")
    summary = run_here(Extract(), load_recipe(recipe(folder)).files(), folder / "out")
    assert summary["sources"]["own"]["documents_out"] == 1
    (lost,) = summary["lost"]
    assert (lost["where"], lost["what"][: len(what)]) == ("a.txt: behind record 0", what)


@pytest.mark.parametrize(
    ("kind", "keys", "said"),
    [
        ("code/mine.py:Paragraf", "", ["did you mean Paragraphs?"]),
        ("code/mine.py:NotOne", "", ["not a reader"]),
        ("code/mine.py:Reads", "", ["no method read"]),
        ("code/gone.py:Paragraphs", "", ["gone.py"]),
        ("code/mine.py:Clashing", "", ["its key paths"]),
        ("code/mine.py:Paragraphs", "shortes = 3", ["shortes = 3", "did you mean shortest?"]),
        ("code/mine.py:Paragraphs", "weigth = 3", ["weigth = 3", "did you mean weight?"]),
        ("code/mine.py:Paragraphs", 'shortest = "3"', ["shortest = '3'", "integer"]),
        ("code/mine.py:Paragraphs", 'snapshot = "s"', ["snapshot = 's'", "unknown key"]),
    ],
)
def test_a_wrong_reader_or_key_of_one_is_refused(folder: Path, kind: str, keys: str, said: list[str]) -> None:
    with pytest.raises(UsageFailure) as refusal:
        load_recipe(recipe(folder, kind, keys))
    assert [part for part in [f"{folder / 'data.toml'}: sources.own", *said] if part not in str(refusal.value)] == []


def test_installed_reader_reads_its_patterns(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = folder / "site" / "theirs-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mtnlg_data.readers]\nparagraphs = paragraphs_of_theirs:Paragraphs\n")
    (folder / "site" / "paragraphs_of_theirs.py").write_text(MINE)
    words = ["extract", folder / "a.txt", "--out", folder / "out"]
    (folder / "a.story").write_text(TEXT)
    result = command(*words, folder / "a.story")
    assert isinstance(result.exception, Failure)
    assert "*.parquet" in str(result.exception), "the patterns that there are"
    monkeypatch.syspath_prepend(folder / "site")
    monkeypatch.setenv("PYTHONPATH", str(folder / "site"), prepend=":")
    invoke(*words)
    rows = read_rows(folder / "out" / "documents-00000.parquet")
    assert [row["text"] for row in rows] == [TEXT, "no", TEXT], "not by our own reader of *.txt"
