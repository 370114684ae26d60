"""HTTP servers on loopback, for modules that imitate others' servers."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator


class Server(ThreadingHTTPServer):
    """Notes the requests that its handler notes in ``requests``."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.requests: list[tuple[str, str]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def asked(self, method: str, end: str = "") -> int:
        """How many requests of this method came for paths with this end."""
        return sum(one == method and path.partition("?")[0].endswith(end) for one, path in self.requests)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore connections that clients left."""


class Handler(BaseHTTPRequestHandler):
    """Prints nothing."""

    def send(self, status: int, content: bytes, **headers: object) -> None:
        """Answer with this content, and with its length unless a header says another; empty headers are left out."""
        self.send_response_only(status)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        for name, value in ({"Content-Length": len(content)} | given).items():
            if value != "":
                self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the base class's name)
        pass


AServer = TypeVar("AServer", bound=Server)


@contextmanager
def serving(server: AServer) -> Iterator[AServer]:
    """Serve in a thread until the block ends."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()
