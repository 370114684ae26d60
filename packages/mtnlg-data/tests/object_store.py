"""A real S3 server (moto's) on loopback, and a proxy before it that cuts, delays, refuses and falsifies its answers."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import loopback
from command_line import outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Fault = Callable[["Handler", http.client.HTTPResponse, bytes], None]

SECRET = "aSecretThatNobodyMayWriteDown"  # noqa: S105
START_MOTO = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
NOT_FORWARDED = {"connection", "transfer-encoding", "server", "date", "content-length"}


@contextmanager
def running_moto() -> Iterator[int]:
    """The port of a server of its own process, which ends with the block or with this process."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    with subprocess.Popen(
        [sys.executable, "-c", START_MOTO],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


class Store(loopback.Server):
    """Passes requests on to an S3 server, except those for which a fault is due.

    ``faults`` lists, by method and end of the path, the faults of successive requests; ``requests`` what was asked for.
    """

    def __init__(self, port: int) -> None:
        super().__init__(Handler)
        self.moto = port
        self.faults: dict[tuple[str, str], list[Fault]] = {}
        self.bucket = ""

    def due(self, method: str, path: str) -> Fault | None:
        for (wanted, end), faults in self.faults.items():
            if method == wanted and path.partition("?")[0].endswith(end) and faults:
                return faults.pop(0)
        return None

    def put(self, key: str, content: bytes) -> None:
        """Store an object, not through the proxy; of a new bucket if there is none."""
        for path, body in ((f"/{key.partition('/')[0]}", b""), (f"/{key}", content)):
            status, _ = self.ask("PUT", path, body)
            assert status in {200, 409}, status

    def get(self, key: str) -> bytes | None:
        """The content of an object; None where there is none."""
        status, content = self.ask("GET", f"/{key}")
        return content if status == 200 else None

    def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.moto, timeout=30)
        connection.request(method, path, body, {"Host": "127.0.0.1", "Authorization": AUTHORIZATION})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, content


AUTHORIZATION = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"


class Handler(loopback.Handler):
    """Forwards a request to moto, and its answer back."""

    server: Store
    protocol_version = "HTTP/1.1"
    close_connection: Any

    def handle_one(self) -> None:
        self.server.requests.append((self.command, self.path))
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        connection = http.client.HTTPConnection("127.0.0.1", self.server.moto, timeout=30)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "expect"}
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        fault = self.server.due(self.command, self.path)
        if fault is None:
            answer_with(self, answer, content)
        else:
            fault(self, answer, content)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = handle_one  # noqa: N815  (http.server's names)


def answer_with(
    handler: Handler, answer: http.client.HTTPResponse, content: bytes, promised: int | None = None
) -> None:
    """Send the answer with this content; ``promised`` is the length that it is said to have."""
    handler.send_response(answer.status)
    for name, value in answer.getheaders():
        if name.lower() not in NOT_FORWARDED:
            handler.send_header(name, value)
    length = answer.getheader("Content-Length") if handler.command == "HEAD" else None
    handler.send_header("Content-Length", length or str(len(content) if promised is None else promised))
    handler.end_headers()
    handler.wfile.write(content)


def cut_short(handler: Handler, answer: http.client.HTTPResponse, content: bytes) -> None:
    """Half of the content, then the connection ends."""
    answer_with(handler, answer, content[: len(content) // 2], len(content))
    handler.close_connection = True
    handler.wfile.flush()
    handler.connection.close()


def shortened(handler: Handler, answer: http.client.HTTPResponse, content: bytes) -> None:
    """Half of the content, as if it were all."""
    answer_with(handler, answer, content[: len(content) // 2])


def busy(handler: Handler, answer: http.client.HTTPResponse, content: bytes) -> None:
    """503, as S3 says that it wants fewer requests."""
    del answer, content
    body = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
    handler.send_response(503)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def denied(handler: Handler, answer: http.client.HTTPResponse, content: bytes) -> None:
    """403."""
    del answer, content
    body = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
    handler.send_response(403)
    handler.send_header("Content-Length", "0" if handler.command == "HEAD" else str(len(body)))
    handler.end_headers()
    handler.wfile.write(b"" if handler.command == "HEAD" else body)


def hanging(handler: Handler, answer: http.client.HTTPResponse, content: bytes) -> None:
    """Nothing at all, until the client has given up."""
    del answer, content
    handler.close_connection = True
    while handler.connection.recv(1 << 16):  # empty when the client closes the connection
        pass


FAULTS: list[Fault] = [cut_short, shortened, busy, hanging]


def command(*words: object) -> tuple[int, str]:
    """Exit status and last line of a command that runs in this process."""
    status, line = outcome(*words)
    assert SECRET not in line
    return status, line


def upload(store: Store, folder: Path, prefix: str) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            store.put(f"{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes())
