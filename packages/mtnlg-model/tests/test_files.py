from __future__ import annotations

import errno
import io
import os
import socket
import sys
from pathlib import Path

import pytest

from mtnlg_model.checkpoint.tensor_file import TensorFile
from mtnlg_model.console import Failure
from mtnlg_model.files import atomic_open, open_regular, read_small, write_text


def write_half(path: Path) -> None:
    with atomic_open(path) as file:
        file.write(b"half")
        raise RuntimeError


def test_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a" / "store.bin"
    write_text(path, "old")
    with pytest.raises(RuntimeError):
        write_half(path)
    assert path.read_text(encoding="utf-8") == "old"
    assert list(path.parent.iterdir()) == [path]


def test_a_small_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b"12345")
    assert read_small(path, 5) == b"12345"
    with pytest.raises(Failure, match=r"x\.json: more than 4 bytes"):
        read_small(path, 4)


@pytest.mark.parametrize("kind", ["link", "pipe", "device", "folder", "socket"])
def test_non_regular_file_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    path = tmp_path / "x.json"
    (tmp_path / "secret").write_bytes(b"secret")
    match kind:
        case "link":
            path.symlink_to("secret")
        case "pipe":
            os.mkfifo(path)
        case "device":
            path = Path("/dev/zero")
        case "folder":
            path.mkdir()
        case "socket":
            monkeypatch.chdir(tmp_path)  # the path of a socket is limited to 107 bytes
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind("x.json")
    with pytest.raises(Failure, match="not a regular file"):
        read_small(path)


def test_a_short_read_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 4)

    def read_three(self: io.FileIO, buffer: bytearray) -> int:
        return io.FileIO.readinto(self, memoryview(buffer)[:3])

    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda handle, size, offset: pread(handle, min(size, 3), offset))
    monkeypatch.setattr("mtnlg_model.files._NamedFile.readinto", read_three, raising=False)
    assert TensorFile(path).entries["a"].shape == (1,)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_read_error_names_the_file() -> None:
    path = Path("/proc/self/mem")  # a regular file whose first page cannot be read
    with open_regular(path) as file, pytest.raises(OSError, match="/proc/self/mem") as caught:
        file.read(1)
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(path))
