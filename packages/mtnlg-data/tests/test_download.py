"""Downloading the files of a snapshot from a faulty server: the exact bytes, or a named failure."""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from crawl_server import (
    NAME,
    PLACES,
    busy,
    content,
    cut_off,
    digests,
    faulty,
    get,
    honest,
    ignores_range,
    running_server,
    whole,
    wrong,
)

from mtnlg_data.console import Failure
from mtnlg_data.transfer.download import MAX_ATTEMPTS, MAX_WAIT_SECONDS, RemoteStream, backoff, download_file
from mtnlg_data.transfer.remotes import HttpRemote
from mtnlg_data.transfer.snapshot import downloaded_files, fetch_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from crawl_server import Fault, Handler, Server


@pytest.fixture
def server() -> Iterator[Server]:
    with running_server() as running:
        yield running


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
