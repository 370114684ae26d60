"""Lists for the rules: files of one entry per line, plain or .gz; empty lines and lines that begin with # are ignored.

Of long lists (published ones of domains have millions of entries) only sorted 64-bit hashes are kept: eight bytes per
entry in every process.
"""

from __future__ import annotations

import gzip
import re
import zlib
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from mtnlg_data.console import Failure
from mtnlg_data.files import open_regular, sha256
from mtnlg_data.text.hashing import hash_strings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mtnlg_data.array_types import Bools, UInt64s

NO_LETTERS_OR_DIGITS = re.compile("[^a-z0-9]+")
BYTES_AT_A_TIME = 1 << 22
FORMAT = "a filter's list has one entry per line, plain or .gz"


class ListFile(NamedTuple):
    """A file of a list and its SHA-256, so that a list that has changed is read again."""

    path: Path
    digest: str

    @classmethod
    def of(cls, path: Path) -> ListFile:
        """The file as it is now. Raises ``Failure`` as `check_list` does."""
        check_list(path)
        return cls(path, sha256(path))


def check_list(path: Path) -> None:
    """Read the first lines of a list. Raises ``Failure`` as `read_lines` does."""
    next(read_lines(path), None)


def read_lines(path: Path) -> Iterator[list[str]]:
    """The entries of a list, in batches. Raises ``Failure`` if the file does not exist or is not text."""
    if not path.is_file():
        raise Failure(f"{path}: no such file; {FORMAT}")
    try:
        with (
            open_regular(path, follow=True) as file,
            gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file as lines,
        ):
            while some := lines.read(BYTES_AT_A_TIME) + lines.readline(BYTES_AT_A_TIME):
                if b"\0" in some:
                    raise Failure(f"{path}: not a text file; {FORMAT}")
                stripped = (
                    line.decode("utf-8", "replace").removeprefix("\ufeff").strip() for line in some.split(b"\n")
                )
                yield [line for line in stripped if line and not line.startswith("#")]
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise Failure(f"{path}: damaged: {error}; {FORMAT}") from None


@cache
def hashed_entries(files: tuple[ListFile, ...], *, domains: bool) -> UInt64s:
    """Hashes of all entries, sorted; those of domains in lower case and without a full stop at either end."""
    parts = (lines for file in files for lines in read_lines(file.path))
    entries = ([line.lower().strip(".") for line in lines] if domains else lines for lines in parts)
    hashes = (hash_strings(pa.array(lines, pa.string())) for lines in entries)
    return np.unique(np.concatenate([np.empty(0, np.uint64), *hashes]))


@cache
def entry_words(files: tuple[ListFile, ...]) -> frozenset[str]:
    """The entries in lower case, reduced to ASCII letters and digits."""
    lines = (line for file in files for some in read_lines(file.path) for line in some)
    return frozenset(NO_LETTERS_OR_DIGITS.sub("", line.lower()) for line in lines) - {""}


def is_in(hashes: UInt64s, known: UInt64s) -> Bools:
    """Which of these hashes are among the known ones, which are sorted."""
    places = np.searchsorted(known, hashes)
    places[places == len(known)] = 0
    return known[places] == hashes if len(known) else np.zeros(len(hashes), np.bool_)
