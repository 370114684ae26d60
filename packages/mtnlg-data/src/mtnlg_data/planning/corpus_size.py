"""Size of a corpus: the number of documents in the files of a recipe, their length and how well they compress.

Estimated from the beginnings of some files.

Up to ``SAMPLED_FILES`` files of each source, evenly spread, are sampled: the first ``SAMPLED_BYTES`` of them together,
or as much more as it takes to hold a record. Of a Parquet or Arrow file ``SAMPLED_ROWS`` rows are read, at a URL from a
copy. Records are extracted as in a run.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

import zstandard

from mtnlg_data.console import Failure
from mtnlg_data.document import group_memory
from mtnlg_data.extract.text import PARSE_ERRORS, extract_record
from mtnlg_data.sources import Dropped, Record, SourceFile
from mtnlg_data.sources.record import read_any
from mtnlg_data.summary import read_failure
from mtnlg_data.transfer.url_files import read_beginning

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mtnlg_data.extract.text import ExtractSettings
    from mtnlg_data.recipe import Recipe

SAMPLED_FILES = 8
SAMPLED_BYTES = 1_000_000
SAMPLED_ROWS = 500
MEAN_CHARACTERS = 4600  # per document of the paper's corpus (paper.md 4.4)
ROW_BYTES = 64  # bytes on disk per document beside its text: id, source, language, score


class CorpusSize(NamedTuple):
    """The size of a corpus, from which a plan is made; the defaults are for English web text."""

    documents: int  # after extraction
    characters: int  # mean length of one
    packed: float = 0.40  # bytes on disk per character, in Parquet at zstd-3
    longest: int = 8_000_000  # bytes of the longest page or record
    near_duplicates: float = 0.3  # share of documents that have one
    shares: Mapping[str, float] | None = None  # share of the text, by source; None: all equal
    page_bytes: float = 17.0  # bytes of web pages per character of their text
    web: float = 1.0  # share of the text that is from web pages
    shard_characters: int = 1_000_000_000  # limit per shard

    @property
    def text(self) -> int:
        """Characters of all documents."""
        return self.documents * self.characters

    def share(self, recipe: Recipe, sources: Iterable[str]) -> float:
        """Share of the text that is from these sources."""
        shares = self.shares or dict.fromkeys(recipe.sources, 1.0)
        return sum(shares[name] for name in sources) / sum(shares.values())

    @property
    def disk(self) -> int:
        """Bytes of the documents as shards."""
        return int(self.packed * self.text) + ROW_BYTES * self.documents

    @property
    def group(self) -> int:
        """Bytes of memory of a worker that streams the shards by row groups."""
        return group_memory(self.characters, min(self.text, self.shard_characters))


def assumed_corpus(recipe: Recipe, documents: int, characters: int = MEAN_CHARACTERS) -> CorpusSize:
    """A corpus of this many documents, in which each source's share of the text is its weight in the blend."""
    weights = {name: getattr(source, "weight", None) or 1.0 for name, source in recipe.sources.items()}
    shares = {name: weight / sum(weights.values()) for name, weight in weights.items()}
    return _with_recipe(CorpusSize(documents, characters, shares=shares), recipe)


def _with_recipe(size: CorpusSize, recipe: Recipe) -> CorpusSize:
    shard_characters = next((s.settings.shard_characters for s in recipe.steps if s.takes == "files"), 10**9)
    web = size.share(recipe, (name for name, source in recipe.sources.items() if source.reader.pages))
    return size._replace(web=web, shard_characters=shard_characters)


class _Sample(NamedTuple):
    """The content of the first ``read`` bytes of a file."""

    lengths: list[int]
    packed: int  # bytes of all texts, compressed
    longest: int
    content: int  # bytes of all pages and records
    read: float
    records: int
    lost: list[Dropped]  # records that cannot be read, except one cut off by the sample's end


def estimate_corpus(recipe: Recipe) -> CorpusSize:
    """Size of the corpus of a recipe; the share of near duplicates is not estimated.

    Raises ``Failure`` if a source has no file yet, or if so many records cannot be read that a run would fail.
    """
    settings = next(step.settings for step in recipe.steps if step.takes == "files")
    by_source: dict[str, list[SourceFile]] = {}
    for file in recipe.files():
        by_source.setdefault(file.source, []).append(file)
    documents = packed = pages = 0.0
    characters = dict.fromkeys(by_source, 0.0)
    longest = 0
    for source, files in by_source.items():
        chosen = files[:: -(-len(files) // SAMPLED_FILES)]
        samples = [_sample(file, settings, SAMPLED_BYTES // len(chosen)) for file in chosen]
        lost = [one for sample in samples for one in sample.lost]
        counts = {"failed": len(lost), "documents_in": len(lost) + sum(sample.records for sample in samples)}
        read = {"sources": {source: counts}, "lost": [], "files_lost": 0, "errors": [one._asdict() for one in lost]}
        if failure := read_failure(read, settings.max_failed):
            raise Failure(failure)
        scale = sum(file.stats[0] for file in files) / max(1.0, sum(sample.read for sample in samples))
        documents += scale * sum(len(sample.lengths) for sample in samples)
        characters[source] += scale * sum(sum(sample.lengths) for sample in samples)
        packed += scale * sum(sample.packed for sample in samples)
        longest = max([longest, *(sample.longest for sample in samples)])
        if recipe.sources[source].reader.pages:
            pages += scale * sum(sample.content for sample in samples)
    text = sum(characters.values())
    if documents < 1 or text < 1:
        return CorpusSize(0, 0)
    shares = {source: count / text for source, count in characters.items()}
    size = CorpusSize(round(documents), round(text / documents), packed / text, longest, shares=shares)
    size = _with_recipe(size, recipe)
    return size._replace(page_bytes=pages / (text * size.web)) if size.web else size


def _sample(file: SourceFile, settings: ExtractSettings, size: int) -> _Sample:
    with TemporaryDirectory() as folder:
        if file.reader.is_table:
            with file.local(Path(folder, "copy")) as local:
                items = list(islice(read_any(file.reader, local, settings.largest), SAMPLED_ROWS))
                read = file.stats[0] * len(items) / max(len(items), file.reader.rows(local.here))
        else:
            beginning = Path(folder, file.path.name)
            beginning.write_bytes(read_beginning(file.path, size))
            items = list(read_any(file.reader, replace(file, path=beginning), settings.largest))
            read = min(file.stats[0], size)
    records = [item for item in items if isinstance(item, Record)]
    is_cut = read < file.stats[0]
    if is_cut and not records:
        return _sample(file, settings, 4 * size)
    lost = [item for item in items if isinstance(item, Dropped) and item.what and not (item.ends_file and is_cut)]
    texts = [text for record in records if (text := _text(record, settings))]
    packed = len(zstandard.compress("".join(texts).encode("utf-8", "surrogatepass"), 3))
    sizes = [len(record.content) for record in records]
    return _Sample([*map(len, texts)], packed, max(sizes, default=0), sum(sizes), read, len(records), lost)


def _text(record: Record, settings: ExtractSettings) -> str:
    try:
        extracted = extract_record(record, settings)
    except PARSE_ERRORS:
        return ""
    return "" if extracted.reason else extracted.text
