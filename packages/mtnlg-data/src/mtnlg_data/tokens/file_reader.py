"""Files read by position, here or at a URL."""

from __future__ import annotations

import os
import weakref
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

from mtnlg_data.console import Failure
from mtnlg_data.files import naming, open_regular
from mtnlg_data.transfer.url_files import RangeReader
from mtnlg_data.transfer.urls import Url

if TYPE_CHECKING:
    from pathlib import Path

    from mtnlg_data.transfer.urls import Location


class FileReader:
    """A file, here or at a URL, open for reading by position, by any number of threads; closed when garbage-collected.

    Not a memory map: if the file is cut short, a map ends the process with a bus error, and a read by position does
    not. Raises ``Failure`` if there is no such file.
    """

    def __init__(self, path: Location) -> None:
        self.path = path
        if isinstance(path, Url):
            reader = RangeReader(path)
            self.size, self.read = reader.size, reader.read
            return
        try:
            file = open_regular(path, follow=True)
        except OSError as error:
            raise Failure(f"{path}: {error.strerror}; a token store is a pair of .bin and .idx") from None
        weakref.finalize(self, file.close)
        self.size, self.read = os.fstat(file.fileno()).st_size, partial(_read, path, file)


def _read(path: Path, file: BinaryIO, first: int, last: int) -> bytes:
    """Bytes ``first`` to ``last`` (exclusive). Raises ``Failure`` if some are missing."""
    content = b""
    while len(content) < last - first:  # one read moves at most 2 GiB
        with naming(path):
            more = os.pread(file.fileno(), last - first - len(content), first + len(content))
        if not more:
            raise Failure(f"{path}: ends before byte {last}; it was cut short after it was opened")
        content += more
    return content
