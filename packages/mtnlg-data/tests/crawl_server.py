"""A server of a snapshot that fails as it is told, and what fetches from it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from mtnlg_data.transfer.remotes import HttpRemote
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
