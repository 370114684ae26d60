"""Source files → shards of documents: the units of extraction.

A file is read once, from its first byte to its last, whatever comes of it. It feeds one source, or several (of a file
of the Pile each subset is a source), each with shards of its own; a shard that has ``shard_characters`` of text is
followed by a further one, so that the work of the later stages spreads however large the files were. What is held
meanwhile is a row group a source.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import count, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mtnlg_data.document import Document, Tallies, shard_name, writing_documents
from mtnlg_data.engine import key_of, manifest_path, run_units
from mtnlg_data.sources import Dropped, Record, SourceFile, read_records
from mtnlg_data.sources.jsonl import read_pile
from mtnlg_data.tally import stage

from .text import BROKEN, ExtractSettings, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mtnlg_data.document import DocumentWriter
    from mtnlg_data.engine import Engine, Summary
    from mtnlg_data.tally import Tally


class Feed(NamedTuple):
    """What one file gives to one source, of whose files it is the ``number``-th."""

    file: SourceFile
    number: int

    def takes(self, item: Record | Dropped) -> bool:
        """Whether an item of the file is of this source."""
        return self.file.subset is None or item.subset == self.file.subset


@dataclass(frozen=True)
class Extraction:
    """Unit: one file → the shards of every source that it feeds; the output is the first of the first source."""

    feeds: tuple[Feed, ...]
    state: tuple[int, int]  # size and time of change: a checksum would read every crawl file twice
    settings: ExtractSettings
    folder: Path

    @property
    def output(self) -> Path:
        """See ``Unit``."""
        first = self.feeds[0]
        return self.folder / shard_name(first.file.source, first.number)

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        files = ((number, file.source, file.name, file.kind, file.field, file.subset) for file, number in self.feeds)
        return key_of("extract", list(files), self.state, self.settings.model_dump())


def extract_documents(files: Sequence[SourceFile], out: Path, settings: ExtractSettings, engine: Engine) -> Summary:
    """Write ``out/<source>-<number>.parquet`` for every file, and further ones for the large.

    Returns the stage's account with ``languages`` and, in the order of the files, the names of the ``shards``.
    """
    units = []
    for feeds in _by_file(files):
        status = feeds[0].file.path.stat()
        units.append(Extraction(feeds, (status.st_size, status.st_mtime_ns), settings, out))
    summaries = run_units(engine, extract_file, units, "extract")
    languages: Counter[str] = Counter()
    for summary in summaries:
        languages.update(summary["languages"])
    sources = list(dict.fromkeys(file.source for file in files))
    shards = [name for summary in summaries for name in summary["shards"]]
    return {**stage("extract", summaries, sources), "languages": dict(languages.most_common()), "shards": shards}


def _by_file(files: Sequence[SourceFile]) -> list[tuple[Feed, ...]]:
    """The feeds of every file; of the Pile's files each has all its sources."""
    numbers: Counter[str] = Counter()
    feeds: dict[object, list[Feed]] = {}
    for place, file in enumerate(files):
        feeds.setdefault(file.path if file.kind == "pile" else place, []).append(Feed(file, numbers[file.source]))
        numbers[file.source] += 1
    return [tuple(of) for of in feeds.values()]


def extract_file(unit: Extraction) -> Summary:
    """Run one unit."""
    tallies = Tallies()
    languages: Counter[str] = Counter()
    with ExitStack() as stack:
        shards = [stack.enter_context(_writing(feed, unit, tallies[feed.file.source])) for feed in unit.feeds]
        for item in _items(unit):
            # What cannot be told to be of any source is counted with the first.
            takers = [own for own in shards if own.feed.takes(item)] or shards[:1]
            if isinstance(item, Record):
                _extract(item, takers, languages, unit.settings)
            else:
                for own in takers:
                    own.drop(item)
    names = [path.name for own in shards for path in own.paths]
    return {**tallies.summary(), "languages": dict(sorted(languages.items())), "shards": names, "files": names[1:]}


def _items(unit: Extraction) -> Iterator[Record | Dropped]:
    """What the file holds. Raises ``OSError`` naming it where the system cannot read it: then it is not the file's."""
    file, largest = unit.feeds[0].file, unit.settings.largest
    subsets = {feed.file.subset for feed in unit.feeds}
    wanted = None if None in subsets else {subset for subset in subsets if subset is not None}
    try:
        yield from read_pile(file.path, wanted, largest) if file.kind == "pile" else read_records(file, largest)
    except OSError as error:
        if error.filename is None and error.errno:
            raise OSError(error.errno, os.strerror(error.errno), str(file.path)) from error
        raise


def _extract(record: Record, takers: Sequence[_Shards], languages: Counter[str], settings: ExtractSettings) -> None:
    try:
        text, language, length, reason = text_of(record, settings)
    except BROKEN as error:
        where = f"{takers[0].feed.file.path.name}: record {record.place}"
        for own in takers:
            own.tally.fail("not_extracted", where, f"{type(error).__name__}: {error}")
        return
    languages.update([language] if language else [])
    for own in takers:
        file = own.feed.file
        name = f"{file.source}/{file.name}/{record.place}"
        if reason is not None:
            own.tally.drop(length, reason)
            own.tally.show(reason, name, record.url or text)
            continue
        own.tally.keep(length, len(text))
        own.add(Document(name, file.source, text, record.url, language))


class _Shards:
    """The shards of one source out of one file, written as documents come; made by ``_writing``."""

    def __init__(self, feed: Feed, unit: Extraction, tally: Tally, stack: ExitStack) -> None:
        self.feed = feed
        self.tally = tally
        self.paths: list[Path] = []
        self._unit = unit
        self._stack = stack
        self._writer = self._begin()

    def add(self, document: Document) -> None:
        """Append a document, to a further shard where the present one is full."""
        if self._writer.characters >= self._unit.settings.shard_characters:
            self._stack.close()
            self._writer = self._begin()
        self._writer.add(document)

    def drop(self, item: Dropped) -> None:
        """Count what is no document."""
        if item.what is None:
            self.tally.drop(0, item.reason)
        else:
            self.tally.fail(item.reason, item.where, item.what)

    def path(self, part: int) -> Path:
        """What a shard is called."""
        return self._unit.folder / shard_name(self.feed.file.source, self.feed.number, part)

    def _begin(self) -> DocumentWriter:
        self.paths.append(self.path(len(self.paths)))
        return self._stack.enter_context(writing_documents(self.paths[-1]))


@contextmanager
def _writing(feed: Feed, unit: Extraction, tally: Tally) -> Iterator[_Shards]:
    """Put shards in place as they are full, the last in the end; what the file filled beyond it before goes."""
    with ExitStack() as stack:
        shards = _Shards(feed, unit, tally, stack)
        yield shards
    for stale in takewhile(Path.exists, map(shards.path, count(len(shards.paths)))):
        manifest_path(stale).unlink(missing_ok=True)
        stale.unlink()
