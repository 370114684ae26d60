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
    from collections.abc import Callable, Iterator, Mapping
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
NOT_FORWARDED = {"connection", "transfer-encoding"}


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
            answer, _ = self.ask("PUT", path, OWN_HEADERS, body)
            assert answer.status in {200, 409}, answer.status

    def get(self, key: str) -> bytes | None:
        """The content of an object; None where there is none."""
        answer, content = self.ask("GET", f"/{key}", OWN_HEADERS)
        return content if answer.status == 200 else None

    def ask(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> tuple[http.client.HTTPResponse, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.moto, timeout=30)
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer, content


OWN_HEADERS = {
    "Host": "127.0.0.1",
    "Authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, "
    "Signature=0",
}


class Handler(loopback.Handler):
    """Forwards a request to moto, and its answer back."""

    server: Store
    protocol_version = "HTTP/1.1"
    close_connection: Any

    def handle_one(self) -> None:
        self.server.requests.append((self.command, self.path))
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name: value for name, value in self.headers.items() if name.lower() != "expect"}
        answer, content = self.server.ask(self.command, self.path, headers, body)
        (self.server.due(self.command, self.path) or answer_with)(self, answer, content)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = handle_one  # noqa: N815  (http.server's names)


def answer_with(handler: Handler, answer: http.client.HTTPResponse, content: bytes, **own: object) -> None:
    """Send the answer with this content; its headers, the length too, are moto's unless they are given."""
    headers = {name: value for name, value in answer.getheaders() if name.lower() not in NOT_FORWARDED}
    handler.send(answer.status, content, **(headers | own))


def cut_short(handler: Handler, answer: http.client.HTTPResponse, content: bytes) -> None:
    """Half of the content, then the connection ends."""
    answer_with(handler, answer, content[: len(content) // 2], Content_Length=len(content))
    handler.close_connection = True
    handler.wfile.flush()
    handler.connection.close()


def shortened(handler: Handler, answer: http.client.HTTPResponse, content: bytes) -> None:
    """Half of the content, as if it were all."""
    half = content[: len(content) // 2]
    answer_with(handler, answer, half, Content_Length=len(half))


def busy(handler: Handler, answer: http.client.HTTPResponse, content: bytes) -> None:
    """503, as S3 says that it wants fewer requests."""
    del answer, content
    error = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
    handler.send(503, b"<?xml version='1.0'?>" + error)


def denied(handler: Handler, answer: http.client.HTTPResponse, content: bytes) -> None:
    """403."""
    del answer, content
    error = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
    handler.send(403, b"<?xml version='1.0'?>" + error)


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
