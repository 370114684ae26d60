"""Fetching a snapshot: which files of a listing, into which folder, from a server and from a mirror."""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from crawl_server import NAME, PLACES, busy, content, faulty, get, running_server, whole
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from mtnlg_data.cli import app
from mtnlg_data.console import Failure, UsageFailure, error_line, error_status
from mtnlg_data.engine import manifest_path
from mtnlg_data.transfer.remotes import parse_remote, unsafe_path_reason
from mtnlg_data.transfer.snapshot import downloaded_files, fetch_snapshot, read_listing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from crawl_server import Server


@pytest.fixture
def server() -> Iterator[Server]:
    with running_server() as running:
        yield running


# --- complete files --------------------------------------------------------------------------------------------------


def test_every_file_is_downloaded_with_a_manifest_and_nothing_else_is_left(server: Server, tmp_path: Path) -> None:
    summary, waits = get(server, tmp_path)
    assert whole(tmp_path)
    assert (summary["fetched"], summary["kept"], summary["failed"], summary["refused"], waits) == (4, 0, [], [], [])
    assert summary["bytes"] == sum(len(content(place)) for place in PLACES)
    manifest = json.loads(manifest_path(tmp_path / PLACES[0]).read_text())
    assert manifest["sha256"] == hashlib.sha256(content(PLACES[0])).hexdigest()
    assert [name for name, _ in downloaded_files(tmp_path)] == PLACES
    assert [path.name for path in tmp_path.rglob(".*") if path.is_file()] == [".lock"]


def test_a_second_run_fetches_only_missing_and_changed_files(server: Server, tmp_path: Path) -> None:
    get(server, tmp_path, files=2)
    assert not (tmp_path / PLACES[2]).exists()
    (tmp_path / PLACES[0]).write_bytes(bytes(len(content(PLACES[0]))))
    server.requests.clear()
    summary, _ = get(server, tmp_path, files=3)
    assert (summary["fetched"], summary["kept"]) == (2, 1)
    assert sorted(path.rpartition("/")[2] for path, _ in server.requests) == [
        "CC-MAIN-00000.warc.gz",
        "CC-MAIN-00002.warc.gz",
    ]
    assert whole(tmp_path, PLACES[:3])


def test_verify_finds_a_changed_byte_under_unchanged_size_and_time(server: Server, tmp_path: Path) -> None:
    get(server, tmp_path)
    target = tmp_path / PLACES[1]
    status = target.stat()
    target.write_bytes(b"?" + content(PLACES[1])[1:])
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert get(server, tmp_path)[0]["kept"] == 4
    assert get(server, tmp_path, verify=True)[0]["fetched"] == 1
    assert whole(tmp_path)


def test_a_copied_folder_is_read_once_and_then_trusted(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get(server, tmp_path)
    for place in PLACES:
        os.utime(tmp_path / place, (1, 1))
    assert get(server, tmp_path)[0]["kept"] == 4
    monkeypatch.setattr("mtnlg_data.transfer.download.sha256", lambda path: pytest.fail(f"{path} is read again"))
    assert get(server, tmp_path)[0]["kept"] == 4
    (tmp_path / PLACES[1]).write_bytes(b"cut short")
    assert [name for name, _ in downloaded_files(tmp_path)] == [PLACES[0], *PLACES[2:]]


# --- paths and redirects out of the remote ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("http://127.0.0.1:{port}/elsewhere/x", "redirects out of"),
        ("http://127.0.0.1:{port}/mirror/../x", "redirects out of"),
        ("http://127.0.0.1:{port}/mirror/%2e%2e/x", "redirects out of"),
        ("http://localhost:{port}/mirror/x", "another host"),
        ("http://127.0.0.1:1/mirror/x", "another host"),
        ("file:///etc/passwd", "is not allowed"),
        ("https://127.0.0.1.example.org/mirror/x", "another host"),
    ],
)
def test_a_redirect_that_leaves_the_remote_is_refused_and_named(
    server: Server, tmp_path: Path, place: str, words: str
) -> None:
    location = place.format(port=server.server_address[1])
    faulty(server, 0, busy(302, Location=location))
    summary, waits = get(server, tmp_path)
    assert (summary["fetched"], waits) == (3, [])
    assert words in summary["failed"][0]["why"]
    assert location.partition("/..")[0] in summary["failed"][0]["why"]


def test_a_redirect_within_the_remote_is_followed(server: Server, tmp_path: Path) -> None:
    server.files["/mirror/moved.warc.gz"] = content(PLACES[0])
    faulty(server, 0, busy(301, Location="/mirror/moved.warc.gz"))
    assert get(server, tmp_path)[0]["failed"] == []
    assert whole(tmp_path)


LEAVING = [
    "../../etc/passwd.warc.gz",
    f"crawl-data/{NAME}/../CC-MAIN-2020-50/x.warc.gz",
    f"crawl-data/{NAME}/./x.warc.gz",
    f"/crawl-data/{NAME}/x.warc.gz",
    f"crawl-data/{NAME}/%2e%2e/%2e%2e/x.warc.gz",
    f"crawl-data/{NAME}//x.warc.gz",
    f"crawl-data/{NAME}/.hidden/x.warc.gz",
    f"crawl-data/{NAME}/a\\..\\x.warc.gz",
    f"crawl-data/{NAME}/x?y=.warc.gz",
    f"crawl-data/{NAME}/x\u2025.warc.gz",
    "http://example.org/x.warc.gz",
    "//example.org/x.warc.gz",
    "crawl-data/CC-MAIN-2020-50/x.warc.gz",
    f"crawl-data/{NAME}x/x.warc.gz",
    f"crawl-data/{NAME}/x.warc.gz.json",
]


def test_lines_of_a_listing_that_leave_the_folder_are_refused_and_named(server: Server, tmp_path: Path) -> None:
    server.put([*LEAVING, f"crawl-data/{NAME}/{PLACES[0]}"])
    summary, _ = get(server, tmp_path)
    assert (summary["listed"], summary["wanted"], summary["fetched"]) == (len(LEAVING) + 1, 1, 1)
    assert len(summary["refused"]) == len(LEAVING)
    assert all(refused["why"] for refused in summary["refused"])
    assert len(server.requests) == 2
    assert sorted(path.name for path in tmp_path.rglob("*.warc.gz*")) == [
        "CC-MAIN-00000.warc.gz",
        "CC-MAIN-00000.warc.gz.json",
    ]


@given(st.text(alphabet="ab./%\\:\n\x00-_~é ", max_size=24))
def test_a_path_that_is_not_refused_stays_below_its_folder(path: str) -> None:
    if unsafe_path_reason(path) is None:
        folder = Path("/base/folder")
        inside = Path(os.path.normpath(folder / path))
        assert inside.is_relative_to(folder)
        assert inside == folder / path
        assert inside != folder


def test_a_broken_or_oversized_listing_fails_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mtnlg_data.transfer.snapshot.MAX_LINES", 1000)
    listing = tmp_path / "warc.paths.gz"
    for data, words in (
        (gzip.compress(b"a" * 10_000_000), "line 1 is too long"),
        (gzip.compress(b"a\n" * 1001), "one too many"),
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


def test_a_mirror_folder_gives_the_same_files_and_refuses_links_out_of_it(tmp_path: Path) -> None:
    base = mirror(tmp_path / "mirror")
    (tmp_path / "secret").write_bytes(b"secret")
    linked = base / "crawl-data" / NAME / PLACES[3]
    linked.unlink()
    linked.symlink_to(tmp_path / "secret")
    summary = fetch_snapshot(NAME, tmp_path / "out", parse_remote(str(base)))
    assert whole(tmp_path / "out", PLACES[:3])
    assert "refused: it is a link that leaves" in summary["failed"][0]["why"]
    assert not (tmp_path / "out" / PLACES[3]).exists()


def test_the_command_prints_its_summary_and_fails_for_a_missing_file(tmp_path: Path) -> None:
    base = mirror(tmp_path / "mirror")
    words = ["fetch", NAME, "--out", str(tmp_path / "out"), "--base", str(base), "--json"]
    done = CliRunner().invoke(app, [*words, "--files", "1"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["fetched"] == 1
    (base / "crawl-data" / NAME / PLACES[3]).unlink()
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, Failure)
    assert "1 of 4 files could not be fetched; the first: " in str(done.exception)
    assert json.loads(done.stdout)["kept"] == 1


@pytest.mark.parametrize(
    ("number", "status"), [(errno.ENOSPC, 74), (errno.EDQUOT, 74), (errno.EIO, 74), (errno.EACCES, 1)]
)
@pytest.mark.parametrize("what", ["snapshot", "url"])
def test_a_full_disk_is_one_line_and_status_74_and_what_it_holds_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, status: int, what: str
) -> None:
    base, sync = mirror(tmp_path / "mirror"), os.fsync

    def fails(handle: int) -> None:
        if Path(f"/proc/self/fd/{handle}").readlink().name.endswith(".warc.gz.partial"):
            raise OSError(number, os.strerror(number))
        sync(handle)

    from_snapshot = ["fetch", NAME, "--base", str(base)]
    words = from_snapshot if what == "snapshot" else ["fetch", f"file://{base}/crawl-data/{NAME}"]
    words += ["--out", str(tmp_path / "out")]
    monkeypatch.setattr(os, "fsync", fails)
    error = CliRunner().invoke(app, words).exception
    assert isinstance(error, Exception)
    assert error_status(error) == status
    assert os.strerror(number) in error_line(error)
    monkeypatch.undo()
    assert CliRunner().invoke(app, words).exit_code == 0
    assert whole(tmp_path / "out")


def test_an_invalid_snapshot_name_or_remote_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageFailure, match="not the name of a snapshot, such as CC-MAIN-2020-50"):
        fetch_snapshot("../CC-MAIN-2020-50", tmp_path, parse_remote(str(tmp_path)))
    with pytest.raises(UsageFailure, match="neither an http or https URL nor a folder"):
        parse_remote("ftp://example.org/")
    with pytest.raises(Failure, match="no such folder"):
        parse_remote(str(tmp_path / "none"))
