"""Copies in memory, as one process sees them: whose folder it is, which copies count, who copies to whom."""

import os
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from threading import current_thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mtnlg_model.checkpoint.manifest import CheckpointError, Layout, PartialManifest, Progress, parse_json
from mtnlg_model.checkpoint.writer import CheckpointWriter
from mtnlg_model.console import Failure
from mtnlg_parallel.engine import zero
from mtnlg_parallel.training import memory_store
from mtnlg_parallel.training.checkpointing import StateCopier
from mtnlg_parallel.training.memory import circle_of
from mtnlg_parallel.training.memory_store import DIRECTORY, Copied, MemoryStore, parse_copied, private_folder

CPU = torch.device("cpu")


def test_the_thread_that_copies_a_ranks_state_works_on_the_ranks_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    device, chosen = torch.device("cuda", 3), dict[str, torch.device]()
    stream = SimpleNamespace(synchronize=lambda: None, wait_event=lambda _: None, record_event=lambda: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)
    monkeypatch.setattr(torch.cuda, "set_device", lambda gpu: chosen.setdefault(current_thread().name[:4], gpu))
    monkeypatch.setattr(zero, "fragment_pieces", lambda _: [])
    engine: Any = SimpleNamespace(optimizer_steps=0)
    progress: Any = None  # nothing reads it
    copier = StateCopier(engine, device)
    assert copier.start(progress, []).pieces.result() == []
    assert chosen == {"copy": device}


@given(st.integers(1, 300))
def test_every_node_copies_to_another_one_and_keeps_one_nodes_copies(nodes: int) -> None:
    following = []
    for node in range(nodes):
        circle = circle_of(node, nodes)
        assert all(circle_of(other, nodes) == circle for other in circle)
        assert len(circle) in ({2, 3} if nodes > 1 else {1})
        following.append(circle[(circle.index(node) + 1) % len(circle)])
    assert Counter(following) == Counter(range(nodes))


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    base = tmp_path / "memory"
    base.mkdir()
    monkeypatch.setenv(DIRECTORY, str(base))
    return base


def test_the_folder_is_the_users_own_and_closed_to_others(base: Path, tmp_path: Path) -> None:
    folder = private_folder(tmp_path / "out")
    assert folder.parent == base
    assert folder.stat().st_mode & 0o777 == 0o700
    assert private_folder(tmp_path / "x" / ".." / "out") == folder
    assert private_folder(tmp_path / "other") != folder


@pytest.mark.parametrize("trap", ["link", "open", "file"])
def test_a_folder_that_another_may_have_laid_is_refused(base: Path, tmp_path: Path, trap: str) -> None:
    folder = private_folder(tmp_path / "out")
    if trap == "open":
        folder.chmod(0o755)
    else:
        folder.rmdir()
        (folder.symlink_to if trap == "link" else lambda source: folder.write_text(str(source)))(tmp_path)
    with pytest.raises(Failure, match=rf"{folder}: .*name another one in {DIRECTORY}, or use train.memory"):
        private_folder(tmp_path / "out")
    assert base.exists()


def test_where_there_is_no_memory_the_folder_for_temporary_files_is_used_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.delenv(DIRECTORY, raising=False)
    monkeypatch.setattr(memory_store, "SHARED_MEMORY", str(tmp_path / "missing"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(memory_store, "say", lines.append)
    folder = private_folder(tmp_path / "out")
    assert folder.parent == tmp_path
    assert [line.endswith(f"copies in memory go to {folder}, which may be a disk") for line in lines] == [True]


@pytest.fixture
def store(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """The store of the only rank of a job, which sees everything of its node."""
    assert base.exists()
    monkeypatch.setattr(memory_store, "all_gather_json", lambda value, _: [value])
    store = MemoryStore(tmp_path / "out", 0, 1, CPU)
    store.open("run", "b")
    return store


def write_copy(store: MemoryStore, step: int, writer: int, world: int = 2, attempt: str = "") -> Path:
    """A writer's files of a copy by ``world`` ranks."""
    folder = store.folder(step, attempt)
    files = CheckpointWriter(folder.parent, step, f"rank-{writer}")
    files.add("w", (2,), "weight", (slice(writer, writer + 1),), torch.ones(1))
    part = parse_json(files.close(leave_part=False), PartialManifest, "part")
    progress = Progress(step=step, samples=0, tokens=0, loss=0.0, stream="s", layout=Layout(dp=world))
    store.complete(folder, writer, Copied(part=part, progress=progress, optimizer_steps=step))
    return folder


def found(store: MemoryStore) -> tuple[str, int, list[int]] | None:
    copy = store.find()
    return (copy.attempt, copy.progress.step, sorted(copy.holders)) if copy else None


def test_the_newest_copy_of_which_all_files_are_there_is_found(store: MemoryStore) -> None:
    assert found(store) is None
    for step in (2, 4):
        for writer in range(2):
            write_copy(store, step, writer, attempt="a")
    assert found(store) == ("a", 4, [0, 1])
    write_copy(store, 6, 0, attempt="a")  # of two attempts each wrote a part: they are never mixed
    write_copy(store, 6, 1, attempt="b")
    assert found(store) == ("a", 4, [0, 1])
    folder = write_copy(store, 8, 0, world=1)
    assert found(store) == ("b", 8, [0])
    os.truncate(folder / "rank-0.weights-0.safetensors", 10)
    assert found(store) == ("a", 4, [0, 1])
    store.open("other", "c")
    assert found(store) is None


def test_older_copies_are_removed_but_not_one_that_is_being_written(store: MemoryStore) -> None:
    for attempt, step in (("a", 4), ("b", 4), ("b", 6), ("b", 8)):
        write_copy(store, step, 0, world=1, attempt=attempt)
    store.remove_older(6)
    assert sorted(path.name for path in store.folder(6).parents[1].glob("*/*")) == ["step-6.tmp", "step-8.tmp"]


def test_a_list_of_files_that_are_not_the_senders_is_refused(store: MemoryStore) -> None:
    folder = write_copy(store, 2, 1)
    raw = (folder / "rank-1.copy.json").read_bytes()
    assert parse_copied(raw, 1, "rank 1").progress.step == 2
    with pytest.raises(CheckpointError, match="rank 0: lists files that are not those of rank 0"):
        parse_copied(raw, 0, "rank 0")
    with pytest.raises(CheckpointError):
        parse_copied(raw.replace(b"rank-1.weights", b"../../weights"), 1, "rank 1")


def test_nodes_of_different_sizes_are_refused(tmp_path: Path, be_rank: Callable[..., None]) -> None:
    be_rank(world=4, local_world=3)
    with pytest.raises(Failure, match="LOCAL_WORLD_SIZE = 3 does not divide 4 ranks"):
        MemoryStore(tmp_path, 0, 4, CPU)
