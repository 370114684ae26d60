"""Every reader of others' files opens them by the one opener, and meets odd files with a `Failure`."""

from __future__ import annotations

import ast
import bz2
import gzip
import io
import lzma
import os
import re
import resource
import signal
import tarfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import zstandard

from mtnlg_data.console import Failure as DataFailure
from mtnlg_data.decontaminate.ngrams import read_task_texts
from mtnlg_data.document import DocumentFile, text_bytes
from mtnlg_data.filters.lists import read_lines
from mtnlg_data.quality.classifier import open_scorer
from mtnlg_data.recipe import load_recipe
from mtnlg_data.report.inspection import inspect_path
from mtnlg_data.sources.reader import WHOLE, open_reader
from mtnlg_data.summary import read_summary as read_curation
from mtnlg_data.tokens.blend import read_blend
from mtnlg_data.tokens.store import TokenStore, writing_store
from mtnlg_data.tokens.tokenizer import read_tokenizer as open_tokenizer
from mtnlg_data.tokens.tokenizer_file import read_tokenizer
from mtnlg_data.transfer.snapshot import read_listing
from mtnlg_data.transfer.url_files import read_beginning
from mtnlg_eval.report.run_files import read_run
from mtnlg_eval.report.samples import write_samples
from mtnlg_eval.results.folder import ResultFolder
from mtnlg_eval.scoring.answer_store import AnswerStore
from mtnlg_eval.studies.hans import read_verdicts
from mtnlg_eval.tasks.formats import read_raw_rows
from mtnlg_eval.tasks.lm_eval_tasks import _read_config as read_task
from mtnlg_model.chat import Chat
from mtnlg_model.checkpoint.chat_files import read_chat_files
from mtnlg_model.checkpoint.manifest import FileEntry, check_file, file_checksum, read_manifest
from mtnlg_model.checkpoint.tensor_file import TensorFile
from mtnlg_model.console import Failure
from mtnlg_model.convert.config_json import read_config
from mtnlg_model.convert.torch_file import TorchFile
from mtnlg_model.files import sha256
from mtnlg_model.settings import read_toml
from mtnlg_parallel.planner.cluster import load_cluster
from mtnlg_parallel.record.history import read_events
from mtnlg_parallel.record.metrics import read_steps
from mtnlg_parallel.record.run_dir import read_summary
from mtnlg_parallel.statuses import read_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PACKAGES = Path(__file__).parents[1] / "packages"
OPENERS = {"open_regular", "open_file", "regular"}
LIBRARIES = {"bz2", "gzip", "io", "lzma", "mmap", "np", "os", "pa", "pq", "tarfile", "zipfile"}
NAMES = {"from_file", "load_model", "load_yaml", "read_bytes", "read_text"}
READS = {"OSFile", "ParquetFile", "fromfile", "load", "memmap", "memory_map", "open"}
READS |= {"read_metadata", "read_schema", "read_table"}
ADDRESS = re.compile(r"0x[0-9a-f]+")
PACKAGE_DATA = re.compile(r"\(?files\(")
ALLOWED = {
    "data/files.py": "the opener",
    "model/files.py": "the opener",
    "data/decontaminate/matches.py": "written by an earlier task of the same step",
    "data/steps/decontaminate.py": "as above",
    "data/dedup/clusters.py": "as above",
    "data/dedup/minhash.py": "as above",
    "data/dedup/verify.py": "an unnamed temporary file",
    "data/engine/ray_cluster.py": "the package's own code",
    "data/exchange.py": "written by an earlier task of the same step",
    "data/extract/boilerplate.py": "jusText's own stop lists",
    "data/schema.py": "in memory",
    "data/steps/__init__.py": "the package's own code",
    "data/tokens/tokenizer.py": "written by an earlier task of the same step",
    "data/transfer/url_files.py": "a download of this process",
    "eval/results/provenance.py": "/proc",
    "eval/tasks/sources.py": "the package's own YAML",
    "data/engine/machine.py": "/proc and /sys",
    "parallel/shared_memory.py": "memory and pipes of this run's own processes",
}


def plain_reads(tree: ast.AST) -> Iterator[int]:
    """Lines of calls that read a file otherwise than by an opener; writing is left to the tests of writers."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        receiver, _, name = (text := ast.unparse(call.func)).rpartition(".")
        strings = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        is_read = name in NAMES or (name in READS and receiver in LIBRARIES) or text == "open"
        is_read |= name == "open" and (not call.args or any(set(string) <= set("rb+") for string in strings))
        is_write = any(set(string) <= set("wxab+") for string in strings) or "O_WRONLY" in ast.unparse(call)
        by_opener = any(isinstance(node, ast.Call) and ast.unparse(node.func) in OPENERS for node in ast.walk(call))
        if is_read and not is_write and not by_opener and not PACKAGE_DATA.match(receiver):
            yield call.lineno


def source_trees() -> Iterator[tuple[str, ast.Module]]:
    """Every module of the packages: its path, such as data/files.py, and its syntax tree."""
    for path in sorted(PACKAGES.glob("*/src/**/*.py")):
        package, *parts = path.relative_to(PACKAGES).parts
        yield "/".join([package.removeprefix("mtnlg-"), *parts[2:]]), ast.parse(path.read_text(encoding="utf-8"))


def test_every_read_uses_the_opener() -> None:
    plain = {name: lines for name, tree in source_trees() if (lines := list(plain_reads(tree)))}
    assert {name: lines for name, lines in plain.items() if name not in ALLOWED} == {}
    assert sorted(ALLOWED.keys() - plain.keys()) == []


class Case(NamedTuple):
    """A reader: name and content of its file, what reads it, whether links are followed and all bytes are read."""

    file: str
    content: bytes
    read: Callable[[Path], object]
    follow: bool = True
    linear: bool = False


def vocabulary(merges: Path) -> Path:
    path = merges.with_name("vocab.json")
    path.write_text('{"a": 0}')
    return path


def records(kind: str) -> Callable[[Path], object]:
    return lambda path: list(open_reader(kind, {}).read(path, WHOLE, 1 << 20))


def file_bytes(write: Callable[[io.BytesIO], object]) -> bytes:
    buffer = io.BytesIO()
    write(buffer)
    return buffer.getvalue()


def arrow_bytes(buffer: io.BytesIO) -> None:
    with pa.ipc.new_file(buffer, TABLE.schema) as writer:
        writer.write_table(TABLE)


def lz4(content: bytes) -> bytes:
    return bytes(pa.compress(content, "lz4", asbytes=True))


def tar_bytes() -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        member = tarfile.TarInfo("a.txt")
        member.size = 3
        archive.addfile(member, io.BytesIO(b"one"))
    return target.getvalue()


FLIPS = 64
TABLE = pa.table({"text": ["one", "two"], "id": ["a", "b"]})
LINES = b'{"text": "one"}\n{"text": "two"}\n'
PARQUET = file_bytes(lambda file: pq.write_table(TABLE, file))
STEP = b'{"step": 1, "loss": 2.0}\n'
HEADER = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
CURATION = b"""input = "."
steps = ["clean", "filter", "deduplicate"]
[sources.web]
files = ["*.jsonl"]
[clean.where.language.zh]
shortest = 150
[filter]
rules = ["gopher_quality"]
"""
CHAT = b'{"chat_template": "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}", "eos_token": "</s>"}'
TASK = b"task: own\ndataset_path: json\ndoc_to_text: '{{question}}'\nmetric_list:\n  - metric: acc\n"


def torch_bytes() -> bytes:
    return file_bytes(lambda file: torch.save({"a": torch.ones(2)}, file))


def chat(path: Path) -> str:
    talk = Chat.read([path.parent])
    return talk.render([{"role": "user", "content": "hi"}])


def study(path: Path) -> object:
    return read_run(path.parents[1]).studies


def task(path: Path) -> object:
    try:
        return read_task(path)
    except Exception as error:  # noqa: BLE001  (as `load_lm_eval_tasks`)
        raise Failure(f"{path}: {error}") from None


CASES = {
    "recipe": Case("train.toml", b"a = 1\n", lambda path: read_toml(path, "train.toml")[1]),
    "cluster": Case("cluster.toml", b'like = "x"\n', lambda path: load_cluster(str(path))),
    "jsonl": Case("a.jsonl", LINES, records("jsonl"), linear=True),
    "jsonl.gz": Case("a.jsonl.gz", gzip.compress(LINES), records("jsonl"), linear=True),
    "jsonl.zst": Case("a.jsonl.zst", zstandard.compress(LINES), records("jsonl")),
    "jsonl.xz": Case("a.jsonl.xz", lzma.compress(LINES), records("jsonl"), linear=True),
    "jsonl.bz2": Case("a.jsonl.bz2", bz2.compress(LINES), records("jsonl")),
    "jsonl.lz4": Case("a.jsonl.lz4", lz4(LINES), records("jsonl")),
    "csv": Case("a.csv", b"text,n\none,1\n", records("csv"), linear=True),
    "text": Case("a.txt", b"one\n", records("text"), linear=True),
    "tar": Case("a.tar", tar_bytes(), records("tar"), linear=True),
    "parquet": Case("a.parquet", PARQUET, records("parquet")),
    "arrow": Case("a.arrow", file_bytes(arrow_bytes), records("arrow")),
    "warc": Case("a.warc", b"WARC/1.0\r\nContent-Length: 0\r\n\r\n\r\n\r\n", records("warc"), linear=True),
    "documents": Case("a.parquet", PARQUET, lambda path: DocumentFile(path).rows),
    "footer": Case("a.parquet", PARQUET, text_bytes),
    "inspect": Case("a.parquet", PARQUET, lambda path: inspect_path(path, 1, 10)),
    "inspect folder": Case("a.parquet", PARQUET, lambda path: inspect_path(path.parent, 1, 10)),
    "beginning": Case("a", LINES, lambda path: read_beginning(path, 5)),
    "list": Case("a.txt", b"a.example\n", lambda path: list(read_lines(path))),
    "list.gz": Case("a.gz", gzip.compress(b"a.example\n"), lambda path: list(read_lines(path)), linear=True),
    "task texts": Case("a.jsonl", b'{"task": "t", "id": "1", "text": "x"}\n', lambda path: list(read_task_texts(path))),
    "classifier": Case("a.npy", b"\x93NUMPY", lambda path: open_scorer(path, "good")),
    "index": Case("a.idx", b"", lambda path: len(TokenStore(path.with_suffix("")))),
    "tokens": Case("a.bin", b"", lambda path: TokenStore(path.with_suffix("")).checksum()),
    "merges": Case("merges.txt", b"#version: 0.2\n", lambda path: open_tokenizer([vocabulary(path), path])),
    "blend": Case("blend.json", b"{}", lambda path: read_blend(path.parent), follow=False),
    "tokenizer": Case("tokenizer.json", b"{}", read_tokenizer, follow=False),
    "metrics": Case("metrics.jsonl", STEP, lambda path: list(read_steps(path.parent)), follow=False),
    "history": Case("history.jsonl", b"{}\n", lambda path: list(read_events(path.parent)), follow=False),
    "summary": Case("summary.json", b"{}", lambda path: read_summary(path.parent), follow=False),
    "failure": Case("rank-0.failure", b"{}", read_failure, follow=False),
    "hans": Case("samples.jsonl", b"{}\n", read_verdicts, follow=False),
    "answers": Case("samples.jsonl", b"{}\n", lambda path: write_samples(path.parent, {"a": path}), follow=False),
    "rows": Case("a.jsonl", LINES, lambda path: list(read_raw_rows("boolq", [path]))),
    "race": Case("a.txt", b"{}", lambda path: list(read_raw_rows("race_h", [path]))),
    "manifest": Case("manifest.json", b"{}", lambda path: read_manifest(path.parent), follow=False),
    "length": Case("a", b"1", lambda path: check_file(path, FileEntry(bytes=1, checksum="0" * 32)), follow=False),
    "checksum": Case("a", b"1", file_checksum, follow=False, linear=True),
    "digest": Case("a", b"1", sha256, linear=True),
    "tensors": Case(
        "a.safetensors",
        len(HEADER).to_bytes(8, "little") + HEADER + b"\0" * 4,
        lambda path: TensorFile(path).entries,
        follow=False,
    ),
    "config": Case("config.json", b'{"model_type": "gpt2"}', lambda path: read_config(path.parent), follow=False),
    "torch.save": Case("a.pt", torch_bytes(), lambda path: TorchFile(path).content, follow=False),
    "chat files": Case("chat_template.jinja", b"x", lambda path: read_chat_files(path.parent), follow=False),
    "chat template": Case("tokenizer_config.json", CHAT, chat, follow=False),
    "curation": Case("data.toml", CURATION, lambda path: load_recipe(path).dump()),
    "curation's summary": Case("summary.json", b"{}", read_curation, follow=False),
    "listing": Case("a.paths.gz", gzip.compress(b"crawl-data/a.warc.gz\n"), read_listing, linear=True),
    "task": Case("task.yaml", TASK, task),
    "result": Case("results/a.json", b"{}", lambda path: ResultFolder(path.parents[1]).results(), follow=False),
    "gap": Case(
        "not_run/a.json",
        b'{"task": "a", "why": "", "checkpoint": ""}',
        lambda path: ResultFolder(path.parents[1]).gaps(),
        follow=False,
    ),
    "training's summary": Case("train/summary.json", b"{}", lambda path: read_run(path.parents[1]), follow=False),
    "study": Case("eval/hans.json", b"{}", study, follow=False),
    "scores": Case("scores.sqlite", b"", lambda path: AnswerStore("a", path).lookup([b"b"]), follow=False),
}


def test_security_page_lists_every_reader() -> None:
    rows = [f"| {name} | `{case.file}` | {'followed' if case.follow else 'refused'} |" for name, case in CASES.items()]
    assert "\n".join(rows) in (PACKAGES.parent / "SECURITY.md").read_text(encoding="utf-8")


@contextmanager
def guarded() -> Iterator[None]:
    """A read that waits or fills memory fails: an alarm, and a limit of the address space."""

    def ring(*_: object) -> NoReturn:
        raise AssertionError("the reader waits or does not end")

    before, handler = resource.getrlimit(resource.RLIMIT_AS), signal.signal(signal.SIGALRM, ring)
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 30), before[1]))
    signal.alarm(60)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def read(case: Case, path: Path) -> str:
    """What a reader returns, or the class of its failure; anything else that it raises is a defect."""
    try:
        return ADDRESS.sub("", repr(case.read(path)))
    except (DataFailure, Failure, OSError) as error:
        if path.name not in str(error) and str(path.with_suffix("")) not in str(error):
            raise
        return type(error).__name__


def outcome(case: Case, path: Path) -> str:
    with guarded():
        return read(case, path)


def place(case: Case, folder: Path) -> Path:
    """The file of a case, with what it needs beside it."""
    if case.file in {"a.idx", "a.bin"}:
        with writing_store(folder / "a", 512) as writer:
            writer.add(np.arange(20))
    else:
        (folder / case.file).parent.mkdir(exist_ok=True)
        (folder / case.file).write_bytes(case.content)
    return folder / case.file


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "link to a pipe"])
@pytest.mark.parametrize("name", CASES)
def test_no_reader_opens_what_is_no_regular_file(tmp_path: Path, name: str, kind: str) -> None:
    path = place(CASES[name], tmp_path)
    path.unlink()
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
        case "link to a pipe":
            os.mkfifo(tmp_path / "pipe")
            path.symlink_to("pipe")
    with pytest.raises((DataFailure, Failure)), guarded():
        CASES[name].read(path)


@pytest.mark.parametrize("name", CASES)
def test_links_are_followed_for_users_files_only(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    path = place(case, tmp_path)
    plain = outcome(case, path)
    (tmp_path / "elsewhere").mkdir()
    path.rename(tmp_path / "elsewhere" / path.name)
    path.symlink_to(tmp_path / "elsewhere" / path.name)
    if case.follow:
        assert outcome(case, path) == plain
    else:
        with pytest.raises((DataFailure, Failure), match="not a regular file"):
            case.read(path)


@pytest.mark.parametrize("name", CASES)
def test_cut_damaged_and_sparse_files_end_in_results_or_failures(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    path = place(case, tmp_path)
    content = path.read_bytes()
    for size in {0, 1, 7, 8, *(len(content) * eighth // 8 for eighth in range(8)), len(content) - 1}:
        path.write_bytes(content[:size])
        outcome(case, path)
    for position in range(0, len(content), max(1, len(content) // FLIPS)):
        path.write_bytes(content[:position] + bytes([content[position] ^ 0xFF]) + content[position + 1 :])
        outcome(case, path)
    for found in (PACKAGES.parent / "tests/fuzz/corpus" / name).glob("*"):
        path.write_bytes(found.read_bytes())
        outcome(case, path)
    if not case.linear:  # else it would be read to its end
        path.write_bytes(content)
        os.truncate(path, 1 << 40)
        outcome(case, path)
