"""A server of a snapshot that fails as it is told, and what fetches from it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from mtnlg_data.transfer.snapshot import fetch_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Fault = Callable[["Handler", bytes], None]

NAME = "CC-MAIN-2021-04"
PLACES = [f"segments/1610703.{n // 2}/warc/CC-MAIN-{n:05d}.warc.gz" for n in range(4)]


def content(place: str) -> bytes:
    return hashlib.sha256(place.encode()).digest() * 5000  # 160 kB


class Server(ThreadingHTTPServer):
    """Serves files from memory; ``faults`` lists, by path, the faults of successive GET requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.faults: dict[str, list[Fault]] = {}
        self.requests: list[tuple[str, str]] = []
        self.headers: dict[str, Callable[[bytes], str]] = {}
        self.url = f"http://127.0.0.1:{self.server_address[1]}/mirror"

    def put(self, lines: list[str]) -> None:
        listing = gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0)
        self.files[f"/mirror/crawl-data/{NAME}/warc.paths.gz"] = listing

    def asked(self, method: str, place: str = "") -> int:
        return sum(one == method and path.endswith(place) for one, path in self.requests)


class Handler(BaseHTTPRequestHandler):
    """A plain file server with ranges and strong ETags, unless a fault is due."""

    server: Server

    def do_GET(self) -> None:
        self.server.requests.append((self.command, self.path))
        data = self.server.files.get(self.path)
        due = self.server.faults.get(f"{self.command} {self.path}")
        if due:
            due.pop(0)(self, data or b"")
        elif data is None:
            self.send_error(404)
        else:
            self.answer(data)

    do_HEAD = do_GET  # noqa: N815  (http.server's name)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the base class's name)
        pass

    def answer(self, data: bytes, cut: int = 0, **headers: Any) -> None:  # noqa: ANN401
        requested = self.headers.get("Range")
        begin, end = map(int, requested.removeprefix("bytes=").split("-")) if requested else (0, len(data) - 1)
        sent = data[begin : end + 1]
        self.send_response_only(206 if requested else 200)
        own = {name.replace("_", "-"): value for name, value in headers.items()}
        offered = {name: of(data) for name, of in self.server.headers.items()}
        for name, value in ({"Content-Length": str(len(sent)), "ETag": tag(data)} | offered | own).items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(sent[: len(sent) - cut])


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
    with Server() as running:
        running.put([f"crawl-data/{NAME}/{place}" for place in PLACES])
        for place in PLACES:
            running.files[f"/mirror/crawl-data/{NAME}/{place}"] = content(place)
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def faulty(server: Server, *faults: Fault, method: str = "GET", number: int = 0) -> str:
    place = PLACES[number]
    server.faults[f"{method} /mirror/crawl-data/{NAME}/{place}"] = list(faults)
    return place


def get(server: Server, out: Path, **options: Any) -> dict[str, Any]:  # noqa: ANN401
    return fetch_snapshot(NAME, out, server.url, **options)


def whole(out: Path, places: list[str] = PLACES) -> bool:
    return all((out / place).read_bytes() == content(place) for place in places)
