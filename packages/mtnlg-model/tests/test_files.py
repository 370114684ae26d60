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
from mtnlg_model.files import atomic_open, atomic_path, open_regular, read_small, sha256, write_json, write_text


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


def test_what_is_written_aside_appears_whole_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    with atomic_path(path) as partial:
        partial.write_text("{}", encoding="utf-8")
        assert not path.exists()
    assert path.read_text(encoding="utf-8") == "{}"


def test_json_ends_with_a_newline_and_keeps_its_letters(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"k": "é"})
    assert (tmp_path / "x.json").read_text(encoding="utf-8") == '{\n  "k": "é"\n}\n'


def test_sha256_is_the_one_of_the_standard(tmp_path: Path) -> None:
    write_text(tmp_path / "x", "abc")
    assert sha256(tmp_path / "x") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_what_is_written_is_not_for_others_to_read(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_text(tmp_path / "open", "x")
        os.umask(0o077)
        write_text(tmp_path / "strict", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "strict").stat().st_mode & 0o777 == 0o600


def test_a_small_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b"12345")
    assert read_small(path, 5) == b"12345"
    with pytest.raises(Failure, match=r"x\.json: more than 4 bytes"):
        read_small(path, 4)


@pytest.mark.parametrize("kind", ["link", "pipe", "device", "folder", "socket"])
def test_what_is_no_regular_file_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
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


def test_a_missing_small_file_raises_what_a_missing_file_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_small(tmp_path / "x.json")


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
