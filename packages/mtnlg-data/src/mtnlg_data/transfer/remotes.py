"""Remotes of snapshots: an HTTP(S) server, or a folder that mirrors one.

Neither serves a file from elsewhere: a redirect to another host or out of the remote's path, and a symbolic link that
leaves the mirror, are refused by name.
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

from .download import MAX_WAIT_SECONDS, RemoteStream, TransientError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from email.message import Message

    from .download import Remote

TIMEOUT = 60.0  # seconds without a byte
OK, PARTIAL_CONTENT, RANGE_NOT_SATISFIABLE = 200, 206, 416
RETRIED_STATUSES = {408, 425, 429, 500, 502, 503, 504}
#: Servers whose ETag of 32 hexadecimal digits is the MD5 of the file.
ETAG_IS_MD5 = ("AmazonS3", "MinIO")
ALGORITHMS = {"sha-256": "sha256", "sha-512": "sha512", "sha": "sha1", "md5": "md5"}
CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)")
MAX_PART = 200  # characters; a file system allows 255, and our files beside it have longer names
LENGTH = re.compile(r"\d{1,18}")
SAFE_PATH_PART = re.compile(r"[A-Za-z0-9_+=-][A-Za-z0-9._+=-]*")


def parse_remote(place: str) -> Remote:
    """The remote at an http(s) URL or a folder."""
    if re.match(r"https?://", place):
        return HttpRemote(place)
    if "://" in place:
        raise UsageFailure(f"--base {place}: neither an http or https URL nor a folder")
    if not (folder := Path(place)).is_dir():
        raise Failure(f"{place}: no such folder")
    return FolderRemote(folder)


def unsafe_path_reason(path: str) -> str | None:
    """Why a relative path might leave the folder that it starts from; None where it cannot."""
    parts = path.split("/")
    reasons = {
        "it is absolute": path.startswith("/"),
        "it names a host": "://" in path,
        "it is percent-encoded": "%" in path,
        "it climbs with dots": ".." in parts or "." in parts,
        f"it has a part of more than {MAX_PART} characters": max(map(len, parts)) > MAX_PART,
        "it holds a part that is empty, begins with a dot or has characters other than A-Z a-z 0-9 . _ + = -": not all(
            SAFE_PATH_PART.fullmatch(part) for part in parts
        ),
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


@dataclass(frozen=True)
class FolderRemote:
    """A mirror on disk; a file's version is its size and modification time."""

    root: Path

    @property
    def name(self) -> str:
        """The folder's path."""
        return str(self.root)

    @contextmanager
    def open(self, path: str, start: int, version: str | None) -> Iterator[RemoteStream]:
        """Open a file of the mirror. Raises ``Failure`` where it is missing or a link out of the mirror."""
        file = self.root / path
        if not file.resolve().is_relative_to(self.root.resolve()):
            raise Failure(f"{file}: refused: it is a link that leaves {self.root}")
        if not file.is_file():
            raise Failure(f"{file}: no such file in the mirror")
        status = file.stat()
        current = f"{status.st_size}-{status.st_mtime_ns}"
        with file.open("rb") as stream:
            begin = start if version == current else 0
            stream.seek(begin)
            yield RemoteStream(stream.read, begin, status.st_size, current, {})


class HttpRemote:
    """A server, and the path below which all files lie; a file's version is its strong ETag or modification date."""

    def __init__(self, url: str, timeout: float = TIMEOUT) -> None:
        self.name = url.rstrip("/")
        self._timeout = timeout
        self._opener = urllib.request.build_opener(_SameRemoteRedirects(self.name))

    @contextmanager
    def open(self, path: str, start: int, version: str | None) -> Iterator[RemoteStream]:
        """Request the file from ``start`` on."""
        request = urllib.request.Request(f"{self.name}/{path}")  # noqa: S310  (http or https, see parse_remote)
        if start and version:
            request.add_header("Range", f"bytes={start}-")
            request.add_header("If-Range", version)
        with self._respond(request) as response:
            begin, length = _extent(response, start)

            def read(size: int) -> bytes:
                with _network_errors():
                    return response.read(size)

            yield RemoteStream(read, begin, length, _version(response.headers), _digests(response))

    @contextmanager
    def _respond(self, request: urllib.request.Request) -> Iterator[http.client.HTTPResponse]:
        try:
            with _network_errors():
                response = self._opener.open(request, timeout=self._timeout)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == RANGE_NOT_SATISFIABLE:
                raise TransientError("the server has fewer bytes than it gave before", restart=True) from None
            if error.code in RETRIED_STATUSES:
                raise TransientError(f"HTTP status {error.code}", _retry_after(error.headers)) from None
            raise Failure(f"{request.full_url}: HTTP status {error.code} {error.reason}") from None
        with response:
            yield response


class _SameRemoteRedirects(urllib.request.HTTPRedirectHandler):
    """Follows only redirects that stay below the remote's URL."""

    def __init__(self, url: str) -> None:
        self._base = urlsplit(url)

    def http_error_302(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage
    ) -> IO[bytes] | None:
        """Close the response of a redirect that is not followed, or is no address, which urllib leaves open."""
        try:
            return super().http_error_302(req, fp, code, msg, headers)
        except BaseException:
            fp.close()
            raise

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302

    def redirect_request(  # noqa: PLR0917  (urllib's own signature)
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """Raise ``Failure`` where the target is elsewhere; https in place of http is the same place."""
        new, folder, why = urlsplit(newurl), f"{self._base.path}/", None
        same_host = (new.hostname, new.port) == (self._base.hostname, self._base.port)
        same_scheme = new.scheme == self._base.scheme or (self._base.scheme, new.scheme) == ("http", "https")
        if not (same_host and same_scheme):
            why = "to another host"
        elif not new.path.startswith(folder) or unsafe_path_reason(new.path.removeprefix(folder)):
            why = f"out of {self._base.geturl()}"
        if why is not None:
            raise Failure(f"{req.full_url}: refused: it redirects {why}, to {newurl}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@contextmanager
def _network_errors() -> Iterator[None]:
    """Raise errors of the network as ``TransientError``; an error status of the server passes as it is."""
    try:
        yield
    except urllib.error.HTTPError:
        raise
    except (OSError, http.client.HTTPException, ValueError) as error:  # a URLError is an OSError
        reason = getattr(error, "reason", None) or error
        raise TransientError(f"{type(error).__name__}: {reason}") from error


def _extent(response: http.client.HTTPResponse, start: int) -> tuple[int, int | None]:
    """Offset of the first byte of the body, and the whole file's length where the server gives it."""
    if response.status == PARTIAL_CONTENT:
        content_range = CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if content_range is None or int(content_range[1]) != start:
            raise TransientError("it answers another range than was asked for", restart=True)
        return start, None if content_range[2] == "*" else int(content_range[2])
    length = response.headers.get("Content-Length", "")
    return 0, int(length) if LENGTH.fullmatch(length) else None


def _version(headers: Message) -> str | None:
    """A validator that ``If-Range`` accepts: a strong ETag, or the modification date."""
    tag = headers.get("ETag", "")
    return tag if tag.startswith('"') else headers.get("Last-Modified")


def _retry_after(headers: Message) -> float:
    seconds = headers.get("Retry-After", "")
    return min(float(seconds), MAX_WAIT_SECONDS) if LENGTH.fullmatch(seconds) else 0.0


def _digests(response: http.client.HTTPResponse) -> dict[str, str]:
    """Checksums of the whole file, hashlib name → hex: Repr-Digest (RFC 9530), Digest (RFC 3230), S3's ETag."""
    headers = response.headers
    offered = [*_parse_digests(headers.get("Repr-Digest", "")), *_parse_digests(headers.get("Digest", ""))]
    if response.status == OK and (of_body := headers.get("Content-MD5")):
        offered.append(("md5", of_body))
    digests = {ALGORITHMS[name]: _hex(value) for name, value in offered if name in ALGORITHMS and _hex(value)}
    tag = re.fullmatch(r'"([0-9a-f]{32})"', headers.get("ETag", ""))
    by_kms = headers.get("x-amz-server-side-encryption") == "aws:kms"
    if tag and not by_kms and headers.get("Server", "").startswith(ETAG_IS_MD5):
        digests.setdefault("md5", tag[1])
    return digests


def _parse_digests(header: str) -> list[tuple[str, str]]:
    """Split ``sha-256=:abc=:, md5=def=`` into pairs of algorithm and base64."""
    pairs = (part.strip().partition("=") for part in header.split(",") if "=" in part)
    return [(name.lower(), value.strip(":")) for name, _, value in pairs]


def _hex(value: str) -> str:
    """Base64 as hex; empty where it is not base64."""
    try:
        return base64.b64decode(value, validate=True).hex()
    except ValueError:
        return ""
