"""Every file is written aside and renamed, or by the one opener: no pipe, device or link in its place is written to."""

from __future__ import annotations

import ast
import os
import resource
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
import torch

from mtnlg_data import files as data_files
from mtnlg_data.console import Failure as DataFailure
from mtnlg_data.document import writing_documents
from mtnlg_data.engine.folder_lock import lock_folder
from mtnlg_data.quality.classifier import Classifier
from mtnlg_data.schema import Document
from mtnlg_data.tokens.store import writing_store
from mtnlg_data.transfer.url_files import Copy, FetchRecord
from mtnlg_eval.scoring.answer_store import AnswerStore
from mtnlg_model import files
from mtnlg_model.checkpoint.tensor_file import TensorSpec, write_tensor_file
from mtnlg_model.console import Failure
from mtnlg_model.convert.output import new_folder
from mtnlg_parallel.launch.agent import start_rank
from mtnlg_parallel.layout import Coordinates
from mtnlg_parallel.record import history
from mtnlg_parallel.record.profiler import StepProfiler
from mtnlg_parallel.record.recorder import Recorder
from mtnlg_parallel.record.trackers import BackgroundTracker, TensorBoard
from mtnlg_parallel.statuses import Failed, write_failure
from test_openers import guarded, source_trees

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SAFE = {"atomic_path", "atomic_open", "open_to_update", "new_or_regular", "new_folder"}
"""They write aside, into a new folder, or refuse what is no regular file."""

WRITES = {"ParquetWriter", "SummaryWriter", "copyfile", "export_chrome_trace", "link", "memmap", "new_file", "tofile"}
WRITES |= {"touch", "write_bytes", "write_table"}
ALLOWED = {
    "data/console.py": "/dev/null",
    "data/dedup/verify.py": "an unnamed temporary file",
    "data/document.py": "through its writer of a partial file",
    "data/engine/ray_cluster.py": "a private folder",
    "data/exchange.py": "through its writers of partial files",
    "data/planning/corpus_size.py": "a private folder",
    "data/schema.py": "in memory",
    "data/tally.py": "through its writer of a partial file",
    "model/console.py": "/dev/null",
    "parallel/cli.py": "a function of ours, which writes aside",
    "parallel/conformance/ranks.py": "/dev/null",
    "parallel/engine/process.py": "/dev/null",
    "parallel/launch/health.py": "a new file of a random name",
    "parallel/record/trackers.py": "a new file of the library's, named by time and process",
    "parallel/shared_memory.py": "memory and pipes of this run's own processes",
}


def plain_writes(tree: ast.AST) -> Iterator[int]:
    """Lines of calls that write to a file, but for those to what a block of `SAFE` has opened."""
    safe = {*SAFE}
    for block in ast.walk(tree):
        for item in block.items if isinstance(block, ast.With) else []:
            if isinstance(item.optional_vars, ast.Name) and safe & {*names(item.context_expr)}:
                safe.add(item.optional_vars.id)
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        receiver, _, name = ast.unparse(call.func).rpartition(".")
        modes = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        to_write = any(set(mode) <= set("rwxab+t") and set(mode) & set("wxa+") for mode in modes)
        is_write = (
            name in WRITES or bool(receiver and name == "write_text") or (name in {"open", "fdopen"} and to_write)
        )
        is_write |= any(flag in ast.unparse(call) for flag in ("O_WRONLY", "O_RDWR", "O_CREAT"))
        if is_write and not safe & {*names(call)}:
            yield call.lineno


def names(node: ast.AST) -> Iterator[str]:
    """All names within."""
    return (part.id for part in ast.walk(node) if isinstance(part, ast.Name))


def test_every_write_goes_aside_or_through_the_opener() -> None:
    plain = {name: lines for name, tree in source_trees() if (lines := list(plain_writes(tree)))}
    assert {name: lines for name, lines in plain.items() if name not in ALLOWED} == {}
    assert sorted(ALLOWED.keys() - plain.keys()) == []


class Output(NamedTuple):
    """A file, by its path below a run's folder, and what writes it."""

    file: str
    write: Callable[[Path], object]


def document(path: Path) -> None:
    with writing_documents(path) as writer:
        writer.add(Document("text", "id", "source"))


def tokens(path: Path) -> None:
    with writing_store(path.with_suffix(""), 512) as store:
        store.add(np.arange(20))


def lock(path: Path) -> None:
    with lock_folder(path.parent):
        pass


def converted(path: Path) -> None:
    with new_folder(path.parent / "converted"):
        pass


def record_step(path: Path) -> None:
    recorder = Recorder(path.parent, None, [])  # type: ignore[arg-type]
    try:
        recorder.record({"step": 1, "loss": 1.0, "seconds": 1.0})
    finally:
        with suppress(OSError):
            recorder._file.close()


def rank_log(path: Path) -> None:
    start_rank(0, ["true"], {}, path.parent).process.wait()


def answers(path: Path) -> None:
    AnswerStore("model", path).save([(b"key", 1)])


def profiled(path: Path) -> None:
    profiler = StepProfiler(range(1, 2), path.parents[1], 0, Coordinates(0, 0, 0))
    profiler.before_step(1)
    profiler.after_step(1)


def events(path: Path) -> None:
    board = BackgroundTracker("TensorBoard", lambda step: TensorBoard(path.parent, step), 0)
    board.log(1, {"loss": 1.0})
    board.close()


OUTPUTS = {
    "page": Output("report.html", lambda path: files.write_text(path, "page")),
    "result": Output("results.json", lambda path: files.write_json(path, {})),
    "manifest": Output("a.json", lambda path: data_files.write_json(path, {})),
    "documents": Output("a.parquet", document),
    "classifier": Output("a.npy", Classifier(np.zeros(1 << 20, np.int32), 0).save),
    "tokens": Output("a.bin", tokens),
    "index": Output("a.idx", tokens),
    "lock": Output(".lock", lock),
    "fetched": Output(".fetched.jsonl", lambda path: FetchRecord(path.parent).add("a", Copy("u", 1, None, 1, "s"))),
    "converted": Output(".converted.tmp.lock", converted),
    "tensors": Output(
        "a.safetensors",
        lambda path: write_tensor_file(path, {"a": TensorSpec(torch.float32, (4,))}, lambda _: torch.zeros(4)),
    ),
    "metrics": Output("metrics.jsonl", record_step),
    "history": Output("history.jsonl", lambda path: history.append(path.parent, "start")),
    "failure": Output("logs/rank-0.failure", lambda path: write_failure(path.parents[1], 0, Failed("it failed", 1))),
    "rank log": Output("rank-0.log", rank_log),
    "answers": Output("scores.sqlite", answers),
    "profile": Output("profile/rank-0.json.gz", profiled),
    "events": Output("tensorboard", events),
}


def written(output: Output, path: Path) -> str:
    """What comes of writing: nothing, or one line that names the file or one beside it."""
    said = ""
    with guarded():
        try:
            output.write(path)
        except (DataFailure, Failure, OSError) as error:
            said = str(error)
    assert not said or str(path.parent) in said
    return said


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "link"])
@pytest.mark.parametrize("name", OUTPUTS)
def test_no_writer_waits_or_writes_elsewhere(tmp_path: Path, name: str, kind: str) -> None:
    output, elsewhere = OUTPUTS[name], tmp_path / "elsewhere"
    path = tmp_path / "out" / output.file
    path.parent.mkdir(parents=True)
    elsewhere.write_bytes(b"")
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            (path / "in").mkdir(parents=True)
        case "device":
            path.symlink_to("/dev/full")
        case "link":
            path.symlink_to(elsewhere)
    before = path.lstat().st_mode
    said = written(output, path)
    assert name in {"failure", "events"} or said
    assert (elsewhere.read_bytes(), path.lstat().st_mode) == (b"", before)


@pytest.mark.parametrize(
    "name", [name for name in OUTPUTS if name != "events"]
)  # whose threads, TensorBoard's own, outlive the test
def test_a_full_disk_is_one_line_and_leaves_no_part_of_a_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / "out" / OUTPUTS[name].file
    path.parent.mkdir(parents=True)
    limit, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limit[1]))
    try:
        written(OUTPUTS[name], path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    left: list[Any] = [file.stat().st_size for file in path.parents[0].rglob("*") if file.is_file()]
    assert not any(left)
