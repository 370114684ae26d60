"""Figures of a part, a JSON line each in results.jsonl, written when they are measured and never measured again."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FILE = "results.jsonl"

Row = dict[str, Any]


def read_rows(out: Path) -> list[Row]:
    """Return the rows of results.jsonl; a torn last line is left out."""
    path = out / FILE
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


class Results:
    """Appends rows of one part to results.jsonl; every row has ``part`` and ``key``."""

    def __init__(self, out: Path, part: str) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self._path, self._part = out / FILE, part
        rows = read_rows(out)
        self._path.write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in rows))  # without a torn line
        self._keys = {row["key"] for row in rows if row["part"] == part}

    def has(self, key: str) -> bool:
        """Whether this call or an earlier one has measured ``key``."""
        return key in self._keys

    def add(self, key: str, line: str, figures: Mapping[str, object]) -> None:
        """Append a row and print it as ``line``."""
        text = json.dumps({"part": self._part, "key": key, "line": line, **figures}) + "\n"
        with self._path.open("a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        self._keys.add(key)
        print(f"{self._part}: {key}: {line}", flush=True)
