"""Readers: one class per format, found by its name, or by a reference to a user's own.

    @reader("lines", patterns=["*.txt", "*.txt.gz"])
    class Lines(Reader):
        comment: str = setting("#", "Lines that begin so are left out.")   # a key of [sources.NAME]

        def read(self, path: Path, part: Part, max_bytes: int) -> Iterator[Record | Dropped]: ...

What a reader says of its format (patterns of file names, keys, how a file is read in parts) is said nowhere else.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar

from mtnlg_data.console import UsageFailure
from mtnlg_data.registry import Registry, recipe_folder
from mtnlg_data.settings import Settings, validate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from .record import Dropped, Record

READERS = Registry(
    "mtnlg_data.readers",
    {
        "warc": "mtnlg_data.sources.warc:Warc",
        "jsonl": "mtnlg_data.sources.jsonl:Jsonl",
        "pile": "mtnlg_data.sources.jsonl:Pile",
        "parquet": "mtnlg_data.sources.tables:Parquet",
        "arrow": "mtnlg_data.sources.tables:Arrow",
        "csv": "mtnlg_data.sources.csv_rows:Csv",
        "tar": "mtnlg_data.sources.tar:Tar",
        "text": "mtnlg_data.sources.plain_text:Text",
    },
)
COMPRESSED = {".gz", ".zst", ".xz", ".bz2", ".lz4"}
COMPRESSED_CHARACTERS = 4.0


class Part(NamedTuple):
    """Part ``number``, from 0, of a file that is read in ``parts``."""

    number: int = 0
    parts: int = 1

    def of(self, size: int) -> tuple[int, int]:
        """Begin and end (exclusive) of the part in a file of ``size`` bytes, or of any other unit."""
        return self.number * size // self.parts, (self.number + 1) * size // self.parts

    @property
    def place(self) -> str:
        """Suffix that names the part after a position in a message; empty for a whole file."""
        return f" of part {self.number + 1} of {self.parts}" if self.parts > 1 else ""


WHOLE = Part()


class Reader(Settings):
    """Reads the files of one format; its fields are keys of ``[sources.NAME]``, and all have defaults.

    No reader raises because of a file's content: a record that cannot be read is yielded as ``Dropped``. An exception
    that a user's reader raises nevertheless costs the rest of its file.
    """

    name: ClassVar[str] = ""
    #: Patterns of file names, in lower case, that the stage commands read with this reader.
    patterns: ClassVar[Sequence[str]] = ()
    #: Changes whenever the reader's records change. None: a digest of the reader's code is used instead.
    version: ClassVar[int | None] = None
    #: Whether it yields HTML pages, in which ``clean`` collapses white space by default.
    pages: ClassVar[bool] = False
    #: Whether a file has rows and a schema. A plan samples other files by reading their beginning, which is not
    #: possible for a table; the records of a part are numbered from the beginning of the file.
    is_table: ClassVar[bool] = False
    #: Whether a file that feeds several sources is read once, by ``together``.
    shared: ClassVar[bool] = False

    def code(self) -> object:
        """The version or a digest of its code, for the key of what it has read."""
        if self.version is not None:
            return self.version
        from mtnlg_data.user_code import code_digest  # noqa: PLC0415  (only for readers without a version)

        return code_digest(type(self))

    def read(self, path: Path, part: Part, max_bytes: int) -> Iterator[Record | Dropped]:
        """Yield the records of a file, or of its part; one longer than ``max_bytes`` is dropped unread."""
        raise NotImplementedError

    def parts(self, path: Path, most: int) -> int:
        """Number of parts, at most ``most``, in which a file is read; by default 1, whatever its size."""
        del path, most
        return 1

    def columns(self, path: Path) -> pa.Schema | None:
        """The columns of a table, which its documents keep; None for other files, and if it cannot be read.

        The texts are in the column that the reader's field ``field`` names, or ``text``.
        """
        del path
        return None

    def rows(self, path: Path) -> int:
        """Number of rows of a table."""
        raise NotImplementedError

    def characters(self, name: str, size: int) -> float:
        """Estimated characters of text in a file of ``size`` bytes, by which files are grouped."""
        return size * (COMPRESSED_CHARACTERS if Path(name.lower()).suffix in COMPRESSED else 1.0)

    @classmethod
    def source_defaults(cls, name: str) -> dict[str, object]:
        """Keys of a source of this name that apply unless its table gives them."""
        del name
        return {}

    @property
    def finds_files(self) -> bool:
        """Whether ``find`` takes the place of the source's ``paths``."""
        return False

    def find(self, folder: Path) -> list[tuple[str, Path]]:
        """Names and paths of the source's files, below ``folder``, if the reader's keys say which they are."""
        del folder
        return []

    def wants(self, item: Record | Dropped) -> bool:
        """Whether a record of a shared file is for the source of this reader."""
        del item
        return True

    def together(self, others: Sequence[Reader]) -> Reader:
        """The reader of a shared file that reads what this one and others want."""
        del others
        return self


def compressible(*patterns: str) -> list[str]:
    """These patterns of names, plain and with the suffix of each compression that ``streams`` reads."""
    return [f"{pattern}{suffix}" for pattern in patterns for suffix in ("", *sorted(COMPRESSED))]


R = TypeVar("R", bound=Reader)


def reader(name: str, patterns: Sequence[str] = ()) -> Callable[[type[R]], type[R]]:
    """Give a reader class its name, and the patterns of files that the stage commands read with it."""

    def register(cls: type[R]) -> type[R]:
        cls.name, cls.patterns = name, tuple(map(str.lower, patterns))
        return cls

    return register


def load_reader(kind: str, folder: Path | None = None) -> type[Reader]:
    """The class that a source's ``kind`` names. Raises ``UsageFailure`` if that is no reader."""
    reader = READERS.load(kind, folder)
    if not (isinstance(reader, type) and issubclass(reader, Reader)):
        raise UsageFailure(f"{kind}: not a reader, a subclass of mtnlg_data.Reader")
    if reader.read is Reader.read:
        raise UsageFailure(f"{kind}: defines no method read")
    return reader


def open_reader(kind: str, options: Mapping[str, object], folder: Path | None = None) -> Reader:
    """The reader of a source with these keys. Raises ``UsageFailure`` for a key that it does not take."""
    return _open_reader(kind, json.dumps(options), folder)


@lru_cache(maxsize=64)
def _open_reader(kind: str, options: str, folder: Path | None) -> Reader:
    return validate(json.loads(options), load_reader(kind, folder), f"a source of kind {kind}")


def reader_in_recipe(kind: object) -> type[Reader]:
    """The class of readers of this kind in the recipe that is being read."""
    try:
        return Reader if kind is None else load_reader(str(kind), recipe_folder())
    except UsageFailure:  # which the recipe reports
        return Reader


def all_readers() -> dict[str, type[Reader]]:
    """Every reader that has a name."""
    return {name: load_reader(name) for name in READERS.names()}
