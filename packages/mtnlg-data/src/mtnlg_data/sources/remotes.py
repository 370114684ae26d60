"""Where a snapshot is fetched from: a server over HTTP(S), or a folder that mirrors one.

Neither gives a file from elsewhere: a redirect to another host or out of the base's path, and a link that leaves the
mirror, are refused and named.
"""

from __future__ import annotations

import base64
import http.client
import re
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING
from urllib.parse import urlsplit

from mtnlg_data.console import Failure, UsageFailure

from .download import LONGEST_WAIT, Offer, Transient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from email.message import Message

    from .download import Base

TIMEOUT = 60.0  # seconds without a byte
OK, PARTIAL, OUT_OF_RANGE = 200, 206, 416
BUSY = {408, 425, 429, 500, 502, 503, 504}
#: Servers whose ETag of 32 hexadecimal digits is the MD5 of the file.
ETAG_IS_MD5 = ("AmazonS3", "MinIO")
ALGORITHMS = {"sha-256": "sha256", "sha-512": "sha512", "sha": "sha1", "md5": "md5"}
CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
PART = re.compile(r"[A-Za-z0-9_+=-][A-Za-z0-9._+=-]*")


def refusal(path: str) -> str | None:
    """Why a relative path might lead out of the folder it starts from; None where it cannot."""
    if path.startswith("/"):
        return "it is absolute"
    if "://" in path:
        return "it names a host"
    if "%" in path:
        return "it is percent-encoded"
    parts = path.split("/")
    if ".." in parts or "." in parts:
        return "it climbs with dots"
    if not all(PART.fullmatch(part) for part in parts):
        return "it holds a part that is empty, begins with a dot or has characters other than A-Z a-z 0-9 . _ + = -"
    return None


@dataclass(frozen=True)
class Folder:
    """A mirror on a disk."""

    root: Path

    @property
    def name(self) -> str:
        """See ``Base``."""
        return str(self.root)

    @contextmanager
    def open(self, path: str, start: int, version: str | None) -> Iterator[Offer]:
        """See ``Base``; a version is a size and a time of change."""
        file = self.root / path
        if not file.resolve().is_relative_to(self.root.resolve()):
            raise Failure(f"{file}: refused: it is a link that leaves {self.root}")
        if not file.is_file():
            raise Failure(f"{file}: no such file in the mirror")
        status = file.stat()
        now = f"{status.st_size}-{status.st_mtime_ns}"
        with file.open("rb") as stream:
            begin = start if version == now else 0
            stream.seek(begin)
            yield Offer(stream.read, begin, status.st_size, now, {})


class Web:
    """A server, and the path below which everything lies. ``timeout`` is in seconds without a byte."""

    def __init__(self, url: str, timeout: float = TIMEOUT) -> None:
        self.name = url.rstrip("/")
        self._timeout = timeout
        self._opener = urllib.request.build_opener(_Redirects(self.name))

    @contextmanager
    def open(self, path: str, start: int, version: str | None) -> Iterator[Offer]:
        """See ``Base``; a version is a strong ETag or a date of change."""
        request = urllib.request.Request(f"{self.name}/{path}")  # noqa: S310  (http or https, see base_of)
        if start and version:
            request.add_header("Range", f"bytes={start}-")
            request.add_header("If-Range", version)
        with self._answer(request) as answer:
            begin, length = _extent(answer, start)

            def read(size: int) -> bytes:
                with _network():
                    return answer.read(size)

            yield Offer(read, begin, length, _version(answer.headers), _digests(answer))

    @contextmanager
    def _answer(self, request: urllib.request.Request) -> Iterator[http.client.HTTPResponse]:
        try:
            with _network():
                answer = self._opener.open(request, timeout=self._timeout)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == OUT_OF_RANGE:
                raise Transient("the server has fewer bytes than it gave before", again=True) from None
            if error.code in BUSY:
                raise Transient(f"HTTP status {error.code}", _asked_to_wait(error.headers)) from None
            raise Failure(f"{request.full_url}: HTTP status {error.code} {error.reason}") from None
        with answer:
            yield answer


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirect that stays below the base, and no other."""

    def __init__(self, base: str) -> None:
        self._base = urlsplit(base)

    def redirect_request(  # noqa: PLR0917  (urllib's own signature)
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """Raise ``Failure`` where the new place is elsewhere; https in place of http is no other place."""
        there, path, why = urlsplit(newurl), f"{self._base.path}/", None
        same_host = (there.hostname, there.port) == (self._base.hostname, self._base.port)
        same_scheme = there.scheme == self._base.scheme or (self._base.scheme, there.scheme) == ("http", "https")
        if not (same_host and same_scheme):
            why = "to another host"
        elif not there.path.startswith(path) or refusal(there.path.removeprefix(path)):
            why = f"out of {self._base.geturl()}"
        if why is not None:
            fp.close()
            raise Failure(f"{req.full_url}: refused: it redirects {why}, to {newurl}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@contextmanager
def _network() -> Iterator[None]:
    """Errors of the network as ``Transient``; an answer of the server that says no passes."""
    try:
        yield
    except urllib.error.HTTPError:
        raise
    except (OSError, http.client.HTTPException) as error:  # a URLError is an OSError
        reason = getattr(error, "reason", None) or error
        raise Transient(f"{type(error).__name__}: {reason}") from error


def _extent(answer: http.client.HTTPResponse, start: int) -> tuple[int, int | None]:
    """The first byte that comes, and the length of the whole file where it is told."""
    if answer.status == PARTIAL:
        told = CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        if told is None or int(told[1]) != start:
            raise Transient("it answers another range than was asked for", again=True)
        return start, None if told[2] == "*" else int(told[2])
    length = answer.headers.get("Content-Length", "")
    return 0, int(length) if length.isdecimal() else None


def _version(headers: Message) -> str | None:
    """What ``If-Range`` takes: a strong ETag, or the date of change."""
    tag = headers.get("ETag", "")
    return tag if tag.startswith('"') else headers.get("Last-Modified")


def _asked_to_wait(headers: Message) -> float:
    seconds = headers.get("Retry-After", "")
    return min(float(seconds), LONGEST_WAIT) if seconds.isdecimal() else 0.0


def _digests(answer: http.client.HTTPResponse) -> dict[str, str]:
    """Checksums of the whole file, in hex, by hashlib's name: Repr-Digest (RFC 9530), Digest (RFC 3230), S3's ETag."""
    headers = answer.headers
    told = [*_listed(headers.get("Repr-Digest", "")), *_listed(headers.get("Digest", ""))]
    if answer.status == OK and (of_body := headers.get("Content-MD5")):
        told.append(("md5", of_body))
    found = {ALGORITHMS[name]: _hex(value) for name, value in told if name in ALGORITHMS and _hex(value)}
    tag = re.fullmatch(r'"([0-9a-f]{32})"', headers.get("ETag", ""))
    of_kms = headers.get("x-amz-server-side-encryption") == "aws:kms"
    if tag and not of_kms and headers.get("Server", "").startswith(ETAG_IS_MD5):
        found.setdefault("md5", tag[1])
    return found


def _listed(header: str) -> list[tuple[str, str]]:
    """The pairs of ``sha-256=:abc=:, md5=def=``."""
    pairs = (part.strip().partition("=") for part in header.split(",") if "=" in part)
    return [(name.lower(), value.strip(":")) for name, _, value in pairs]


def _hex(value: str) -> str:
    """Base64 as hex; nothing where it is none."""
    try:
        return base64.b64decode(value, validate=True).hex()
    except ValueError:
        return ""


def base_of(place: str) -> Base:
    """The base that a person names: a URL of http or https, or a folder."""
    if re.match(r"https?://", place):
        return Web(place)
    if "://" in place:
        raise UsageFailure(f"--base {place}: neither a URL of http or https nor a folder")
    if not (folder := Path(place)).is_dir():
        raise Failure(f"{place}: no such folder")
    return Folder(folder)
