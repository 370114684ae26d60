"""What reading and committing a data set need of the Hugging Face Hub's HTTP interface, on loopback, in memory."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import loopback

REPOSITORY = "/api/datasets/me/rows"


class Hub(loopback.Server):
    """Serves ``files``, by path, as the data set me/rows."""

    def __init__(self) -> None:
        super().__init__(Handler)
        self.files: dict[str, bytes] = {}
        self.revision = "main"
        self.wrong: list[bytes] = []  # sent in place of the next files, unlike what the entries say

    def entry(self, path: str) -> dict[str, Any]:
        if path in self.files:
            content = self.files[path]
            digest = hashlib.sha256(content).hexdigest()
            large = {"oid": digest, "size": len(content), "pointerSize": 100}
            entry = {"type": "file", "oid": digest[:40], "size": len(content), "path": path}
            return {**entry, "lfs": large} if path.endswith(".parquet") else entry
        return {"type": "directory", "oid": "0" * 40, "size": 0, "path": path}

    def commit(self, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            match line["key"]:
                case "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                case "deletedFile":
                    del self.files[line["value"]["path"]]

    def tree(self, below: str, *, recursive: bool) -> list[dict[str, Any]]:
        prefix = f"{below}/" if below else ""
        inside = [path for path in self.files if path.startswith(prefix)]
        direct = dict.fromkeys(prefix + path.removeprefix(prefix).partition("/")[0] for path in inside)
        return [self.entry(path) for path in (inside if recursive else direct)]


class Handler(loopback.Handler):
    """Answers of the Hub."""

    server: Hub
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        asked = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        query = parse_qs(asked.query)
        revision = self.server.revision
        resolved = f"/datasets/me/rows/resolve/{revision}/"
        if asked.path.startswith(f"{REPOSITORY}/tree/{revision}"):
            below = unquote(asked.path).removeprefix(f"{REPOSITORY}/tree/{revision}").strip("/")
            self.send(json.dumps(self.server.tree(below, recursive=query["recursive"] == ["true"])).encode())
        elif asked.path.startswith(f"{REPOSITORY}/paths-info/"):
            paths = json.loads(body)["paths"] if body.startswith(b"{") else parse_qs(body.decode())["paths"]
            self.send(json.dumps([self.server.entry(path) for path in paths if path in self.server.files]).encode())
        elif asked.path == f"{REPOSITORY}/preupload/{revision}":
            regular = {"uploadMode": "regular", "shouldIgnore": False}
            self.send(json.dumps({"files": [{**file, **regular} for file in json.loads(body)["files"]]}).encode())
        elif asked.path == f"{REPOSITORY}/commit/{revision}":
            self.server.commit([json.loads(line) for line in body.splitlines()])
            done = {"commitUrl": f"{self.server.url}/datasets/me/rows/commit/{'2' * 40}", "commitOid": "2" * 40}
            self.send(json.dumps(done).encode())
        elif asked.path == "/api/validate-yaml":  # of a card
            self.send(b'{"errors": [], "warnings": []}')
        elif asked.path in {REPOSITORY, f"{REPOSITORY}/revision/{revision}"}:
            self.send(json.dumps({"id": "me/rows", "sha": "1" * 40, "private": False, "tags": []}).encode())
        elif (content := self.server.files.get(asked.path.removeprefix(resolved))) is not None:
            content = self.server.wrong.pop() if self.server.wrong else content
            begin, end = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            part = content[begin : end + 1]
            self.send(part, 206, f"bytes {begin}-{begin + len(part) - 1}/{len(content)}")
        else:
            self.send(b'{"error": "Repository not found"}', 404)

    do_GET = do_POST = answer  # noqa: N815  (http.server's names)

    def send(self, content: bytes, status: int = 200, part: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if part is not None:
            self.send_header("Content-Range", part)
        if status == 404:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()
        self.wfile.write(content)
