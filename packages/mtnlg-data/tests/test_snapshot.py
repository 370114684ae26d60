"""Fetching a snapshot from a faulty server and from a mirror: the exact bytes, or a named failure."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from mtnlg_data.cli import app
from mtnlg_data.console import Failure, UsageFailure
from mtnlg_data.engine import manifest_path
from mtnlg_data.transfer.download import MAX_ATTEMPTS, MAX_WAIT_SECONDS, RemoteStream, backoff, download_file
from mtnlg_data.transfer.remotes import HttpRemote, parse_remote, unsafe_path_reason
from mtnlg_data.transfer.snapshot import downloaded_files, fetch_snapshot, read_listing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Fault = Callable[["Handler", bytes], None]

NAME = "CC-MAIN-2021-04"
PLACES = [f"segments/1610703.{n // 2}/warc/CC-MAIN-{n:05d}.warc.gz" for n in range(4)]


def content(place: str) -> bytes:
    return hashlib.sha256(place.encode()).digest() * 5000  # 160 kB


class Server(ThreadingHTTPServer):
    """Serves files from memory; ``faults`` lists, by path, the faults of successive requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.faults: dict[str, list[Fault]] = {}
        self.requests: list[tuple[str, str | None]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/mirror"

    def put(self, lines: list[str]) -> None:
        listing = gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0)
        self.files[f"/mirror/crawl-data/{NAME}/warc.paths.gz"] = listing

    def ranges(self, place: str) -> list[str | None]:
        return [requested for path, requested in self.requests if path.endswith(place)]


class Handler(BaseHTTPRequestHandler):
    """A plain file server with ranges and strong ETags, unless a fault is due."""

    server: Server

    def do_GET(self) -> None:
        self.server.requests.append((self.path, self.headers.get("Range")))
        data = self.server.files.get(self.path)
        if data is None:
            self.send_error(404)
            return
        due = self.server.faults.get(self.path)
        (due.pop(0) if due else plain)(self, data)

    def version_string(self) -> str:
        return ""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the base class's name)
        pass

    def start(self, data: bytes) -> int:
        """Start of the requested range, or 0 without one and for another version."""
        requested = self.headers.get("Range")
        same = self.headers.get("If-Range") == tag(data)
        return int(requested.removeprefix("bytes=").rstrip("-")) if requested and same else 0

    def answer(self, data: bytes, body: bytes | None = None, start: int | None = None, **headers: Any) -> None:  # noqa: ANN401
        begin = self.start(data) if start is None else start
        sent = data[begin:] if body is None else body
        self.send_response_only(206 if begin else 200)
        defaults = {"ETag": tag(data), "Content-Length": str(len(data) - begin)}
        if begin:
            defaults["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        for name, value in (defaults | {key.replace("_", "-"): value for key, value in headers.items()}).items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(sent)


def tag(data: bytes) -> str:
    return f'"{hashlib.sha1(data).hexdigest()[:16]}"'  # noqa: S324  (a name, no secret)


def plain(handler: Handler, data: bytes) -> None:
    handler.answer(data)


def cut_off(size: int) -> Fault:
    """The connection ends after this many bytes of the requested range."""
    return lambda handler, data: handler.answer(data, data[handler.start(data) :][:size])


def busy(status: int = 503, **headers: str) -> Fault:
    def fault(handler: Handler, data: bytes) -> None:
        del data
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()

    return fault


def ignores_range(handler: Handler, data: bytes) -> None:
    """Ignores the requested range."""
    handler.answer(data, start=0)


def wrong(digest: str) -> Fault:
    """Bytes of the right length and the wrong checksum."""

    def fault(handler: Handler, data: bytes) -> None:
        handler.answer(data, bytes(len(data)), 0, **digests(data)[digest])

    return fault


def honest(digest: str) -> Fault:
    return lambda handler, data: handler.answer(data, **digests(data)[digest])


def digests(data: bytes) -> dict[str, dict[str, Any]]:
    sha, md5 = hashlib.sha256(data).digest(), hashlib.md5(data).digest()  # noqa: S324  (what S3 sends)
    return {
        "Digest": {"Digest": f"unheard-of=x, SHA-256={base64.b64encode(sha).decode()}"},
        "Repr-Digest": {"Repr_Digest": f"sha-256=:{base64.b64encode(sha).decode()}:"},
        "Content-MD5": {"Content_MD5": base64.b64encode(md5).decode()},
        "ETag of S3": {"ETag": f'"{md5.hex()}"', "Server": "AmazonS3"},
    }


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        running.put([f"crawl-data/{NAME}/{place}" for place in PLACES])
        for place in PLACES:
            running.files[f"/mirror/crawl-data/{NAME}/{place}"] = content(place)
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def faulty(server: Server, number: int, *faults: Fault) -> str:
    place = PLACES[number]
    server.faults[f"/mirror/crawl-data/{NAME}/{place}"] = list(faults)
    return place


def get(server: Server, out: Path, **options: Any) -> tuple[dict[str, Any], list[float]]:  # noqa: ANN401
    """Fetch; returns the summary and the requested sleeps in seconds."""
    waits: list[float] = []
    return fetch_snapshot(NAME, out, HttpRemote(server.url, timeout=5), sleep=waits.append, **options), waits


def whole(out: Path, places: list[str] = PLACES) -> bool:
    return all((out / place).read_bytes() == content(place) for place in places)


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


# --- a faulty server -------------------------------------------------------------------------------------------------


def test_an_interrupted_download_resumes_where_it_stopped(server: Server, tmp_path: Path) -> None:
    place = faulty(server, 0, cut_off(70_000), cut_off(50_000))
    summary, waits = get(server, tmp_path)
    assert server.ranges(place) == [None, "bytes=70000-", "bytes=120000-"]
    assert whole(tmp_path)
    assert summary["failed"] == []
    assert len(waits) == 2


def test_a_killed_run_resumes_after_the_synced_bytes(server: Server, tmp_path: Path) -> None:
    place = faulty(server, 0, *[cut_off(0 if n else 70_000) for n in range(MAX_ATTEMPTS)])
    assert len(get(server, tmp_path)[0]["failed"]) == 1
    partial = (tmp_path / place).with_name(f".{Path(place).name}.partial")
    with partial.open("ab") as file:
        file.write(b"bytes that were written but not synced before the kill")
    server.requests.clear()
    assert get(server, tmp_path)[0]["failed"] == []
    assert server.ranges(place) == ["bytes=70000-"]
    assert whole(tmp_path)


def test_a_partial_file_changed_on_disk_is_downloaded_from_the_start(server: Server, tmp_path: Path) -> None:
    place = faulty(server, 0, *[cut_off(0 if n else 70_000) for n in range(MAX_ATTEMPTS)])
    get(server, tmp_path)
    partial = (tmp_path / place).with_name(f".{Path(place).name}.partial")
    partial.write_bytes(b"x" * 70_000)
    server.requests.clear()
    get(server, tmp_path)
    assert server.ranges(place) == [None]
    assert whole(tmp_path)


def test_a_file_that_changed_on_the_server_is_downloaded_from_the_start(server: Server, tmp_path: Path) -> None:
    place = faulty(server, 0, cut_off(70_000))
    path = f"/mirror/crawl-data/{NAME}/{place}"
    new = b"another version" * 9000

    def replace(seconds: float) -> None:
        del seconds
        server.files[path] = new

    fetch_snapshot(NAME, tmp_path, HttpRemote(server.url, timeout=5), sleep=replace)
    assert (tmp_path / place).read_bytes() == new


@pytest.mark.parametrize(
    "fault",
    [busy(503), busy(500), busy(429), cut_off(1000), wrong("Digest"), lambda handler, _: handler.connection.close()],
    ids=["503", "500", "429", "cut off", "wrong bytes", "hangs up"],
)
def test_a_file_that_fails_twice_is_downloaded_at_the_third_attempt(
    server: Server, tmp_path: Path, fault: Fault
) -> None:
    place = faulty(server, 2, fault, fault)
    summary, waits = get(server, tmp_path)
    assert (summary["failed"], len(waits), len(server.ranges(place))) == ([], 2, 3)
    assert whole(tmp_path)


def test_retry_after_is_obeyed_up_to_a_limit(server: Server, tmp_path: Path) -> None:
    faulty(server, 0, busy(503, Retry_After="7"), busy(503, Retry_After="99999"))
    _, waits = get(server, tmp_path)
    assert waits == [7, MAX_WAIT_SECONDS]


def test_a_server_that_ignores_ranges_still_gives_the_file(server: Server, tmp_path: Path) -> None:
    faulty(server, 1, cut_off(70_000), ignores_range)
    assert get(server, tmp_path)[0]["failed"] == []
    assert whole(tmp_path)


def test_a_response_with_another_range_is_discarded(server: Server, tmp_path: Path) -> None:
    def other(handler: Handler, data: bytes) -> None:
        handler.answer(data, start=60_000)

    place = faulty(server, 1, cut_off(70_000), other)
    assert get(server, tmp_path)[0]["failed"] == []
    assert server.ranges(place) == [None, "bytes=70000-", None]
    assert whole(tmp_path)


@pytest.mark.parametrize("digest", ["Digest", "Repr-Digest", "Content-MD5", "ETag of S3"])
def test_every_checksum_that_a_server_may_offer_is_checked(server: Server, tmp_path: Path, digest: str) -> None:
    faulty(server, 0, honest(digest))
    faulty(server, 3, wrong(digest), honest(digest))
    summary, waits = get(server, tmp_path)
    assert (summary["failed"], len(waits)) == ([], 1)
    assert whole(tmp_path)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (wrong("Digest"), "its bytes have sha256 .* where .* is promised"),
        (
            lambda handler, data: handler.answer(data, start=0, Content_Length="999999"),
            "160000 bytes came where 999999",
        ),
        (busy(502), "HTTP status 502"),
    ],
    ids=["wrong bytes", "a length that lies", "502"],
)
def test_a_file_that_always_fails_is_named_and_the_others_are_fetched(
    server: Server, tmp_path: Path, fault: Fault, words: str
) -> None:
    place = faulty(server, 0, *[fault] * MAX_ATTEMPTS)
    summary, waits = get(server, tmp_path)
    assert (summary["fetched"], len(waits)) == (3, MAX_ATTEMPTS - 1)
    (failed,) = summary["failed"]
    assert failed["path"] == str(tmp_path / place)
    assert re.search(f"{place}: {words}.*, {MAX_ATTEMPTS} times; the same command tries again", failed["why"])
    assert not (tmp_path / place).exists()
    assert len(downloaded_files(tmp_path)) == 3


def test_a_file_without_length_and_checksum_is_refused(server: Server, tmp_path: Path) -> None:
    faulty(server, 0, lambda handler, data: handler.answer(data, Content_Length=""))
    (failed,) = get(server, tmp_path)[0]["failed"]
    assert "the server gives neither length nor checksum, so a cut-off file would look whole" in failed["why"]


@pytest.mark.parametrize("length", [None, ""], ids=["Content-Length", "no Content-Length"])
def test_a_file_over_the_ceiling_is_refused_and_no_byte_of_it_stays(
    server: Server, tmp_path: Path, length: str | None
) -> None:
    """Without a length, the server goes on sending; what is received stops at the ceiling, in whole blocks."""
    headers: dict[str, Any] = {} if length is None else {"Content_Length": length}
    place = faulty(server, 0, lambda handler, data: handler.answer(data, **headers, **digests(data)["Digest"]))
    server.files[f"/mirror/crawl-data/{NAME}/{place}"] = content(place) * 20
    (failed,) = get(server, tmp_path, largest=len(content(place)))[0]["failed"]
    assert failed["why"].endswith(f"{place}: longer than 160,000 bytes; --largest allows more")
    assert not [path for path in tmp_path.rglob("*00000*") if path.is_file()]
    assert whole(tmp_path, PLACES[1:])


class Endless:
    """A remote whose file has no end; it is an error to read more than a few blocks of it."""

    name = "endless"

    @contextmanager
    def open(self, path: str, start: int, version: str | None) -> Iterator[RemoteStream]:
        del path, start, version
        blocks = iter([bytes(1 << 20)] * 4)
        yield RemoteStream(lambda size: next(blocks)[:size], 0, None, None, {"sha256": "0" * 64})


def test_a_file_without_end_is_received_up_to_the_ceiling(tmp_path: Path) -> None:
    stop = threading.Event()
    with pytest.raises(Failure, match=r"endless/x: longer than 2,000,000 bytes"):
        download_file(Endless(), "x", tmp_path / "x", sleep=lambda _: None, stop=stop, largest=2_000_000)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "headers",
    [{"Content_Length": "9" * 5000}, {"Content_Length": "", "Retry_After": "9" * 5000}, {"Content_Length": "\xb2"}],
)
def test_a_length_that_is_no_number_costs_its_file_alone(
    server: Server, tmp_path: Path, headers: dict[str, Any]
) -> None:
    faulty(server, 0, lambda handler, data: handler.answer(data, **headers))
    summary, _ = get(server, tmp_path)
    assert (summary["fetched"], len(summary["failed"])) == (3, 1)


@pytest.mark.parametrize("location", ["http://[::1/x.warc.gz", "//127.0.0.1:port/x.warc.gz", "/mirror/\xff.warc.gz"])
def test_a_redirect_that_is_no_address_costs_its_file_alone(server: Server, tmp_path: Path, location: str) -> None:
    faulty(server, 0, *[busy(302, Location=location)] * MAX_ATTEMPTS)
    summary, _ = get(server, tmp_path)
    assert (summary["fetched"], len(summary["failed"])) == (3, 1)


def test_a_path_that_the_file_system_refuses_costs_its_file_alone(server: Server, tmp_path: Path) -> None:
    below = f"{PLACES[0]}/x.warc.gz"
    deep = "/".join(["d" * 200] * 4 + ["x.warc.gz"])
    lines = [f"{'long' * 75}/x.warc.gz", f"{'n' * 201}.warc.gz", below, deep]
    server.put([f"crawl-data/{NAME}/{place}" for place in [*lines, *PLACES]])
    for place in lines:
        server.files[f"/mirror/crawl-data/{NAME}/{place}"] = b"x"
    out = tmp_path
    while len(str(out)) < 3500:  # of 4,096 for a whole path
        out /= "o" * 200
    out.mkdir(parents=True)
    summary, _ = get(server, out)
    assert whole(out, PLACES[1:])
    assert [refused["why"] for refused in summary["refused"]] == ["it has a part of more than 200 characters"] * 2
    assert len(summary["failed"]) == 2
    assert summary["fetched"] == 4


def test_a_link_in_place_of_a_partial_file_is_refused_and_its_target_left_alone(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("precious")
    partial = tmp_path / "out" / PLACES[0]
    partial.parent.mkdir(parents=True)
    partial.with_name(f".{partial.name}.partial").symlink_to(target)
    summary, _ = get(server, tmp_path / "out")
    assert "not a regular file, or a link" in summary["failed"][0]["why"]
    assert (summary["fetched"], target.read_text()) == (3, "precious")


def test_a_missing_file_is_requested_once(server: Server, tmp_path: Path) -> None:
    del server.files[f"/mirror/crawl-data/{NAME}/{PLACES[0]}"]
    summary, waits = get(server, tmp_path)
    assert (summary["fetched"], waits, len(server.ranges(PLACES[0]))) == (3, [], 1)
    assert "HTTP status 404" in summary["failed"][0]["why"]


def test_waits_grow_and_are_bounded() -> None:
    longest = [max(backoff(tries) for _ in range(200)) for tries in range(1, 12)]
    assert longest == sorted(longest[:7]) + longest[7:]
    assert 0.5 <= longest[0] <= 1
    assert max(longest) <= MAX_WAIT_SECONDS


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


def test_an_invalid_snapshot_name_or_remote_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageFailure, match="not the name of a snapshot, such as CC-MAIN-2020-50"):
        fetch_snapshot("../CC-MAIN-2020-50", tmp_path, parse_remote(str(tmp_path)))
    with pytest.raises(UsageFailure, match="neither an http or https URL nor a folder"):
        parse_remote("ftp://example.org/")
    with pytest.raises(Failure, match="no such folder"):
        parse_remote(str(tmp_path / "none"))
