"""Fetching a snapshot is killed repeatedly at random moments, and ends with the server's bytes."""

from __future__ import annotations

import gzip
import hashlib
import os
import random
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMAND = str(Path(sys.executable).with_name("mtnlg-data"))
NAME = "CC-MAIN-2021-04"
BLOCK = 1 << 16
PATHS = [f"segments/1/warc/{n:05d}.warc.gz" for n in range(6)]
KILLS = 6


class Server(ThreadingHTTPServer):
    """Serves six files of 2 MB; kills process ``victim`` after ``until`` more blocks."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        randbytes = random.Random(7).randbytes
        self.files = {f"/crawl-data/{NAME}/{path}": randbytes((2 << 20) + n) for n, path in enumerate(PATHS)}
        listing = "".join(f"crawl-data/{NAME}/{path}\n" for path in PATHS)
        self.files[f"/crawl-data/{NAME}/warc.paths.gz"] = gzip.compress(listing.encode(), mtime=0)
        self.victim: subprocess.Popen[bytes] | None = None
        self.until = 0
        self._lock = threading.Lock()

    def sent_a_block(self) -> None:
        with self._lock:
            self.until -= 1
            if self.until == 0 and self.victim is not None:
                os.kill(self.victim.pid, signal.SIGKILL)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore connections that killed processes left."""


class Handler(BaseHTTPRequestHandler):
    """A file server with ranges and strong ETags."""

    server: Server

    def do_GET(self) -> None:
        data = self.server.files[self.path]
        tag = f'"{hashlib.sha256(data).hexdigest()[:20]}"'
        requested = self.headers.get("Range") if self.headers.get("If-Range") == tag else None
        begin = int(requested.removeprefix("bytes=").rstrip("-")) if requested else 0
        self.send_response(206 if begin else 200)
        self.send_header("ETag", tag)
        self.send_header("Content-Length", str(len(data) - begin))
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        for offset in range(begin, len(data), BLOCK):
            self.wfile.write(data[offset : offset + BLOCK])
            self.server.sent_a_block()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the base class's name)
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_killed_fetch_ends_with_the_servers_bytes(server: Server, tmp_path: Path) -> None:
    rng = random.Random(3)
    base = f"http://127.0.0.1:{server.server_address[1]}"
    command = [COMMAND, "--quiet", "fetch", NAME, "--out", str(tmp_path), "--base", base, "--workers", "3"]
    killed = 0
    for _ in range(KILLS):
        server.until = rng.randrange(1, 60)
        server.victim = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        killed += server.victim.wait() == -signal.SIGKILL
        server.victim = None
        for path in PATHS:
            content = server.files[f"/crawl-data/{NAME}/{path}"]
            assert not (tmp_path / path).exists() or (tmp_path / path).read_bytes() == content
    assert killed >= KILLS // 2
    subprocess.run(command, check=True)
    for path in PATHS:
        assert (tmp_path / path).read_bytes() == server.files[f"/crawl-data/{NAME}/{path}"]
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    names = {Path(path).name for path in PATHS} | {"warc.paths.gz"}
    assert left == names | {".lock", ".fetched.jsonl"}
