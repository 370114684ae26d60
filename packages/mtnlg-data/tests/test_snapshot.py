"""Fetching a snapshot: from a faulty server or a mirror, the exact bytes of the right files, or a named failure."""

from __future__ import annotations

import errno
import gzip
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from command_line import command, invoke
from crawl_server import (
    NAME,
    PLACES,
    busy,
    content,
    cut_off,
    faulty,
    get,
    ignores_range,
    md5,
    running_server,
    whole,
    wrong,
)
from hypothesis import given
from hypothesis import strategies as st

from mtnlg_data.console import Failure, UsageFailure, error_line, error_status
from mtnlg_data.transfer import url_files
from mtnlg_data.transfer.snapshot import SAFE_PATH, downloaded_files, fetch_snapshot, read_listing
from mtnlg_data.transfer.urls import MAX_ATTEMPTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from crawl_server import Fault, Server


@pytest.fixture
def server(no_waits: None) -> Iterator[Server]:
    assert no_waits is None
    with running_server() as running:
        yield running


# --- complete files --------------------------------------------------------------------------------------------------


def test_every_file_is_fetched_once_and_nothing_else_is_left(server: Server, tmp_path: Path) -> None:
    assert get(server, tmp_path, files=2)["fetched"] == 2
    assert [name for name, _ in downloaded_files(tmp_path)] == PLACES[:2]
    summary = get(server, tmp_path)
    assert whole(tmp_path)
    assert [summary[name] for name in ("wanted", "fetched", "kept", "failed", "refused")] == [4, 2, 2, [], []]
    assert summary["bytes"] == sum(len(content(place)) for place in PLACES)
    assert [name for name, _ in downloaded_files(tmp_path)] == PLACES
    assert {path.name for path in tmp_path.rglob(".*") if path.is_file()} == {".lock", ".fetched.jsonl"}
    server.requests.clear()
    assert get(server, tmp_path)["kept"] == 4
    assert server.requests == []


def shorter(path: Path) -> None:
    path.write_bytes(b"cut short")


def other_bytes(path: Path) -> None:
    status = path.stat()
    path.write_bytes(b"?" + path.read_bytes()[1:])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize(
    ("change", "verify", "kept"),
    [
        (Path.unlink, False, 3),
        (shorter, False, 3),
        (lambda path: path.write_bytes(bytes(path.stat().st_size)), False, 3),
        (other_bytes, False, 4),  # not noticed,
        (other_bytes, True, 3),  # unless it is read
        (lambda path: os.utime(path, (1, 1)), False, 4),  # as in a copied folder
    ],
)
def test_a_changed_copy_is_fetched_again(
    server: Server,
    tmp_path: Path,
    change: Any,  # noqa: ANN401
    verify: bool,
    kept: int,
) -> None:
    get(server, tmp_path)
    change(tmp_path / PLACES[0])
    if change in {Path.unlink, shorter}:
        assert [name for name, _ in downloaded_files(tmp_path)] == PLACES[1:]
    summary = get(server, tmp_path, verify=verify)
    assert (summary["kept"], summary["fetched"]) == (kept, 4 - kept)
    assert whole(tmp_path, PLACES[1:] if change is other_bytes and not verify else PLACES)


# --- faults ----------------------------------------------------------------------------------------------------------


def test_a_server_that_ignores_ranges_still_gives_the_file(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(url_files, "BLOCK_BYTES", 70_000)
    faulty(server, *[ignores_range] * 3)
    assert get(server, tmp_path)["failed"] == []
    assert whole(tmp_path)


def test_killed_fetch_resumes_and_new_version_restarts(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(url_files, "BLOCK_BYTES", 70_000)
    for other in (False, True):
        place = faulty(server, *[lambda handler, data: handler.answer(data)] * 2, *[cut_off] * MAX_ATTEMPTS)
        assert len(get(server, tmp_path)["failed"]) == 1
        (partial,) = (tmp_path / place).parent.glob(f".{Path(place).name}.*.partial")
        with partial.open("ab") as file:
            file.write(b"bytes of a block that a kill tore")
        server.faults.clear()
        server.requests.clear()
        if other:
            server.files[f"/mirror/crawl-data/{NAME}/{place}"] = content(place)[::-1]
        assert get(server, tmp_path)["failed"] == []
        assert server.asked("GET", place) == 3 if other else 1
        assert (tmp_path / place).read_bytes() == server.files[f"/mirror/crawl-data/{NAME}/{place}"]
        (tmp_path / place).unlink()


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (wrong, "md5 .* where the server says .*"),
        (busy, f"503, message='Service Unavailable'.*, {MAX_ATTEMPTS} times; run the same command again"),
    ],
)
def test_failing_file_is_named_and_others_are_fetched(server: Server, tmp_path: Path, fault: Fault, why: str) -> None:
    import re

    server.headers["Content-MD5"] = md5
    place = faulty(server, *[fault] * MAX_ATTEMPTS)
    summary = get(server, tmp_path)
    (failed,) = summary["failed"]
    assert (summary["fetched"], failed["path"]) == (3, str(tmp_path / place))
    assert re.search(f"{place}: .*{why}", failed["why"]), failed["why"]
    assert not (tmp_path / place).exists()
    assert len(downloaded_files(tmp_path)) == 3


@pytest.mark.parametrize(
    ("length", "why"),
    [("999999999", "longer than 1,000,000 bytes; --largest allows more"), ("", "does not give its length")],
)
def test_a_file_of_no_or_too_great_a_length_is_refused(server: Server, tmp_path: Path, length: str, why: str) -> None:
    faulty(server, *[lambda handler, data: handler.answer(data, Content_Length=length)] * 2, method="HEAD")
    place = faulty(server, lambda handler, data: handler.answer(data, Content_Length=length))
    (failed,) = get(server, tmp_path, largest=1_000_000)["failed"]
    assert why in failed["why"]
    assert not (tmp_path / place).exists()


def test_a_missing_file_is_requested_no_second_time(server: Server, tmp_path: Path) -> None:
    del server.files[f"/mirror/crawl-data/{NAME}/{PLACES[0]}"]
    (failed,) = get(server, tmp_path)["failed"]
    assert "no such file" in failed["why"]
    assert (server.asked("HEAD", PLACES[0]), server.asked("GET", PLACES[0])) == (1, 1)


# --- paths -----------------------------------------------------------------------------------------------------------

LINES = {
    "/etc/passwd.warc.gz": "not a plain path",
    f"crawl-data/{NAME}/../../x.warc.gz": "not a plain path",
    f"crawl-data/{NAME}/.hidden/x.warc.gz": "not a plain path",
    f"crawl-data/{NAME}/a//x.warc.gz": "not a plain path",
    f"crawl-data/{NAME}/%2e%2e/x.warc.gz": "not a plain path",
    f"crawl-data/{NAME}/{'n' * 201}/x.warc.gz": "not a plain path",
    "http://elsewhere/x.warc.gz": "not a plain path",
    "crawl-data/CC-MAIN-2020-50/x.warc.gz": f"not below crawl-data/{NAME}/",
    f"crawl-data/{NAME}/x.exe": "does not end in .warc.gz",
}


def test_paths_that_leave_the_snapshot_are_refused_by_name(server: Server, tmp_path: Path) -> None:
    server.put([*LINES, *(f"crawl-data/{NAME}/{place}" for place in PLACES)])
    summary = get(server, tmp_path / "out")
    assert whole(tmp_path / "out")
    assert (summary["listed"], summary["wanted"]) == (len(LINES) + 4, 4)
    assert [line["path"] for line in summary["refused"]] == [line[:200] for line in LINES]
    assert all(why in line["why"] for line, why in zip(summary["refused"], LINES.values(), strict=True))
    assert not [path for _, path in server.requests if "x." in path]


@given(st.text(alphabet="ab./\\:\n\x00-_~é ", max_size=24))
def test_a_path_that_is_not_refused_stays_below_its_folder(path: str) -> None:
    if SAFE_PATH.fullmatch(path):
        folder = Path("/base/folder")
        inside = Path(os.path.normpath(folder / path))
        assert inside.is_relative_to(folder)
        assert inside == folder / path != folder


def test_refused_path_drops_only_its_file(server: Server, tmp_path: Path) -> None:
    lines = [f"{PLACES[0]}/x.warc.gz", "/".join(["d" * 200] * 4 + ["x.warc.gz"])]
    server.put([f"crawl-data/{NAME}/{place}" for place in [*PLACES, *lines]])
    for place in lines:
        server.files[f"/mirror/crawl-data/{NAME}/{place}"] = b"x"
    out = tmp_path
    while len(str(out)) < 3500:  # of 4,096 for a whole path
        out /= "o" * 200
    out.mkdir(parents=True)
    get(server, out, files=1)
    summary = get(server, out)
    assert whole(out)
    assert (len(summary["failed"]), summary["fetched"]) == (2, 3)


def test_a_broken_or_oversized_listing_fails_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mtnlg_data.transfer.snapshot.MAX_LINES", 1000)
    listing = tmp_path / "warc.paths.gz"
    for data, words in (
        (gzip.compress(b"a" * 10_000_000), "line 1 exceeds the limits"),
        (gzip.compress(b"a\n" * 1001), "line 1001 exceeds"),
        (b"no gzip", "remove it, and fetch again"),
        (gzip.compress(b"a\n" * 900)[:-9], "remove it, and fetch again"),
    ):
        listing.write_bytes(data)
        with pytest.raises(Failure, match=words):
            read_listing(listing, NAME)
    assert downloaded_files(tmp_path / "none") == []


# --- a mirror, and the command ---------------------------------------------------------------------------------------


def mirror(folder: Path) -> Path:
    crawl = folder / "crawl-data" / NAME
    for place in PLACES:
        (crawl / place).parent.mkdir(parents=True, exist_ok=True)
        (crawl / place).write_bytes(content(place))
    lines = "".join(f"crawl-data/{NAME}/{place}\n" for place in PLACES)
    (crawl / "warc.paths.gz").write_bytes(gzip.compress(lines.encode()))
    return folder


def test_command_prints_summary_and_fails_for_missing_file(tmp_path: Path) -> None:
    base = mirror(tmp_path / "mirror")
    words = ["fetch", NAME, "--out", tmp_path / "out", "--base", base, "--json"]
    assert json.loads(invoke(*words, "--files", 1))["fetched"] == 1
    (base / "crawl-data" / NAME / PLACES[3]).unlink()
    done = command(*words)
    assert isinstance(done.exception, Failure)
    assert "1 of 4 files could not be fetched; the first: " in str(done.exception)
    assert json.loads(done.stdout)["kept"] == 1


@pytest.mark.parametrize(
    ("number", "status"), [(errno.ENOSPC, 74), (errno.EDQUOT, 74), (errno.EIO, 74), (errno.EACCES, 1)]
)
@pytest.mark.parametrize("what", ["snapshot", "url"])
def test_full_disk_is_status_74_and_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, status: int, what: str
) -> None:
    base, sync = mirror(tmp_path / "mirror"), os.fsync

    def fails(handle: int) -> None:
        if Path(f"/proc/self/fd/{handle}").readlink().name.endswith(".partial"):
            raise OSError(number, os.strerror(number))
        sync(handle)

    from_snapshot = ["fetch", NAME, "--base", str(base)]
    words = from_snapshot if what == "snapshot" else ["fetch", f"file://{base}/crawl-data/{NAME}"]
    words += ["--out", str(tmp_path / "out")]
    monkeypatch.setattr(os, "fsync", fails)
    error = command(*words).exception
    assert isinstance(error, Exception)
    assert error_status(error) == status
    assert os.strerror(number) in error_line(error)
    assert str(tmp_path / "out") in error_line(error)
    monkeypatch.undo()
    invoke(*words)
    assert whole(tmp_path / "out")


def test_an_invalid_snapshot_name_or_remote_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageFailure, match="not the name of a snapshot, such as CC-MAIN-2020-50"):
        fetch_snapshot("../CC-MAIN-2020-50", tmp_path, str(tmp_path))
    with pytest.raises(Failure, match="no such folder"):
        fetch_snapshot(NAME, tmp_path, str(tmp_path / "none"))
