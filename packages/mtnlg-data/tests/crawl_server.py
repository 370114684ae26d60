"""A server of a snapshot that fails as it is told, and what fetches from it."""

from __future__ import annotations

import base64
import gzip
import hashlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import loopback

from mtnlg_data.transfer.snapshot import fetch_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Fault = Callable[["Handler", bytes], None]

NAME = "CC-MAIN-2021-04"
PLACES = [f"segments/1610703.{n // 2}/warc/CC-MAIN-{n:05d}.warc.gz" for n in range(4)]


def content(place: str) -> bytes:
    return hashlib.sha256(place.encode()).digest() * 5000  # 160 kB


class Server(loopback.Server):
    """Serves files from memory; ``faults`` lists, by path, the faults of successive GET requests."""

    def __init__(self) -> None:
        super().__init__(Handler)
        self.files: dict[str, bytes] = {}
        self.faults: dict[str, list[Fault]] = {}
        self.headers: dict[str, Callable[[bytes], str]] = {}
        self.url += "/mirror"

    def put(self, lines: list[str]) -> None:
        listing = gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0)
        self.files[f"/mirror/crawl-data/{NAME}/warc.paths.gz"] = listing


class Handler(loopback.Handler):
    """A plain file server with ranges and strong ETags, unless a fault is due."""

    server: Server

    def respond(self) -> None:
        self.server.requests.append((self.command, self.path))
        data = self.server.files.get(self.path)
        due = self.server.faults.get(f"{self.command} {self.path}")
        if due:
            due.pop(0)(self, data or b"")
        elif data is None:
            self.send_error(404)
        else:
            self.answer(data)

    do_GET = do_HEAD = respond  # noqa: N815  (http.server's names)

    def answer(self, data: bytes, cut: int = 0, **headers: Any) -> None:  # noqa: ANN401
        requested = self.headers.get("Range")
        begin, end = map(int, requested.removeprefix("bytes=").split("-")) if requested else (0, len(data) - 1)
        sent = data[begin : end + 1]
        offered = {name: of(data) for name, of in self.server.headers.items()}
        headers = {"Content_Length": len(sent), "ETag": tag(data)} | offered | headers
        self.send(206 if requested else 200, sent[: len(sent) - cut], **headers)


def tag(data: bytes) -> str:
    return f'"{hashlib.sha1(data).hexdigest()[:16]}"'  # noqa: S324  (a name, no secret)


def cut_off(handler: Handler, data: bytes) -> None:
    """The connection ends in the middle."""
    handler.answer(data, cut=1000)


def busy(handler: Handler, data: bytes) -> None:
    del data
    handler.send_error(503)


def ignores_range(handler: Handler, data: bytes) -> None:
    del handler.headers["Range"]
    handler.answer(data)


def wrong(handler: Handler, data: bytes) -> None:
    """Bytes of the right length and the wrong checksum."""
    handler.answer(bytes(len(data)), ETag=tag(data))


def md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data).digest()).decode()  # noqa: S324  (what servers send)


@contextmanager
def running_server() -> Iterator[Server]:
    """The server with all files of the snapshot."""
    with loopback.serving(Server()) as running:
        running.put([f"crawl-data/{NAME}/{place}" for place in PLACES])
        for place in PLACES:
            running.files[f"/mirror/crawl-data/{NAME}/{place}"] = content(place)
        yield running


def faulty(server: Server, *faults: Fault, method: str = "GET", number: int = 0) -> str:
    place = PLACES[number]
    server.faults[f"{method} /mirror/crawl-data/{NAME}/{place}"] = list(faults)
    return place


def get(server: Server, out: Path, **options: Any) -> dict[str, Any]:  # noqa: ANN401
    return fetch_snapshot(NAME, out, server.url, **options)


def whole(out: Path, places: list[str] = PLACES) -> bool:
    return all((out / place).read_bytes() == content(place) for place in places)
