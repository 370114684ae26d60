from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mtnlg_model.files import atomic_open, atomic_path, sha256, write_json, write_text

if TYPE_CHECKING:
    from pathlib import Path


def write_half(path: Path) -> None:
    with atomic_open(path) as file:
        file.write(b"half")
        raise RuntimeError


def test_a_failure_in_mid_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
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
