"""What reading and committing a data set need of the Hugging Face Hub's HTTP interface, on loopback, in memory."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

import loopback

if TYPE_CHECKING:
    from urllib.parse import SplitResult

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
        asked, revision = urlsplit(self.path), self.server.revision
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        content = self.server.files.get(asked.path.removeprefix(f"/datasets/me/rows/resolve/{revision}/"))
        if content is not None:
            content = self.server.wrong.pop() if self.server.wrong else content
            begin, end = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            part = content[begin : end + 1]
            self.send(206, part, Content_Range=f"bytes {begin}-{begin + len(part) - 1}/{len(content)}")
        elif (value := self.about(asked, body, revision)) is not None:
            self.send(200, json.dumps(value).encode(), Content_Type="application/json")
        else:
            self.send(404, b'{"error": "Repository not found"}', X_Error_Code="RepoNotFound")

    do_GET = do_POST = answer  # noqa: N815  (http.server's names)

    def about(self, asked: SplitResult, body: bytes, revision: str) -> Any:  # noqa: ANN401  (JSON)
        """What the Hub says of the repository; None of others."""
        if asked.path.startswith(f"{REPOSITORY}/tree/{revision}"):
            below = unquote(asked.path).removeprefix(f"{REPOSITORY}/tree/{revision}").strip("/")
            return self.server.tree(below, recursive=parse_qs(asked.query)["recursive"] == ["true"])
        if asked.path.startswith(f"{REPOSITORY}/paths-info/"):
            paths = json.loads(body)["paths"] if body.startswith(b"{") else parse_qs(body.decode())["paths"]
            return [self.server.entry(path) for path in paths if path in self.server.files]
        if asked.path == f"{REPOSITORY}/preupload/{revision}":
            regular = {"uploadMode": "regular", "shouldIgnore": False}
            return {"files": [{**file, **regular} for file in json.loads(body)["files"]]}
        if asked.path == f"{REPOSITORY}/commit/{revision}":
            self.server.commit([json.loads(line) for line in body.splitlines()])
            return {"commitUrl": f"{self.server.url}/datasets/me/rows/commit/{'2' * 40}", "commitOid": "2" * 40}
        info = {"id": "me/rows", "sha": "1" * 40, "private": False, "tags": []}
        checked = {"errors": (), "warnings": ()}  # of a card
        fixed = {REPOSITORY: info, f"{REPOSITORY}/revision/{revision}": info, "/api/validate-yaml": checked}
        return fixed.get(asked.path)
