"""Which files, and parts of files, make one unit of extraction, so that shards are even whatever the input files.

A file's text is estimated from its size and format. One of more than a shard is cut into parts of at most a shard; that
depends on the file and the setting alone, for the parts are in the keys of documents. Parts and files then go together,
in their order, up to a shard. Where a group ends between a half and a whole shard is decided by a hash of names, so a
file more or less changes the groups around it and leaves the others as they are; they are named by a hash of what they
begin with. Of little text the groups are smaller, so that it feeds more than one worker.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from mtnlg_data.sources import cut_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mtnlg_data.sources import SourceFile

    #: A file, or a part of it, once for each source that it feeds.
    Piece = tuple[SourceFile, ...]

#: Characters of text for each byte of a file, if most is kept: a little too many rather than too few.
TEXT_SHARES = {".warc.gz": 0.25, ".warc": 0.05, ".arc.gz": 0.25, ".arc": 0.05, ".parquet": 3.0}
COMPRESSED_TEXT_SHARE = 4.0  # .gz, .zst, .xz, .bz2
FILE_CHARACTERS = 1 << 14  # what opening a file costs, as characters of text
#: Groups that even a little text makes, unless they would be smaller than this.
FEW_GROUPS, LITTLE_TEXT = 16, 8_000_000


class Group(NamedTuple):
    """What one unit reads; ``numbers`` are those of its shards, by source."""

    pieces: tuple[Piece, ...]
    numbers: tuple[int, ...]


def group_files(files: Sequence[SourceFile], shard_characters: int) -> list[Group]:
    """The groups of all files, each in the order of its files."""
    by_file: dict[object, list[SourceFile]] = {}
    for index, file in enumerate(files):  # the Pile's hold several sources, and are read once
        by_file.setdefault(file.path if file.kind == "pile" else index, []).append(file)
    by_sources: dict[tuple[str, ...], list[Piece]] = {}
    for same in by_file.values():
        count = -(-_characters(same[0]) // shard_characters)
        pieces = by_sources.setdefault(tuple(file.source for file in same), [])
        pieces += [tuple(replace(file, part=cut.part) for file in same) for cut in cut_file(same[0], count)]
    numbered: dict[str, set[int]] = {}
    return [
        Group(pieces, tuple(_number(file, numbered) for file in pieces[0]))
        for all_pieces in by_sources.values()
        for pieces in _group(all_pieces, shard_characters)
    ]


def _characters(file: SourceFile) -> int:
    """Text of a file, or of its part, about."""
    name = file.name.lower()
    shares = (share for suffix, share in TEXT_SHARES.items() if name.endswith(suffix))
    compressed = name.endswith((".gz", ".zst", ".xz", ".bz2"))
    share = next(shares, COMPRESSED_TEXT_SHARE if compressed else 1.0)
    return int(file.stats[0] * share) // file.part.parts


def _group(pieces: Sequence[Piece], shard_characters: int) -> Iterator[tuple[Piece, ...]]:
    """Consecutive pieces that go together."""
    sizes = [FILE_CHARACTERS + _characters(piece[0]) for piece in pieces]
    ranks = [_hash(piece[0]) for piece in pieces]
    most = shard_characters
    while most > LITTLE_TEXT and FEW_GROUPS * most > sum(sizes):
        most //= 2
    first = 0
    while first < len(pieces):
        total, end, ends = 0, first, []
        while end < len(pieces) and total + sizes[end] <= most:
            total += sizes[end]
            end += 1
            if 2 * total >= most:
                ends.append(end)
        if end < len(pieces) and ends:
            end = min(ends, key=lambda end: ranks[end - 1])
        end = max(end, first + 1)
        yield tuple(pieces[first:end])
        first = end


def _hash(file: SourceFile) -> int:
    digest = hashlib.blake2b(f"{file.part.number}/{file.name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def _number(file: SourceFile, numbered: dict[str, set[int]]) -> int:
    """The number of the shard that begins with this file: 0 for the source's first, else of 15 digits."""
    taken = numbered.setdefault(file.source, set())
    number = 10**14 + _hash(file) % (9 * 10**14) if taken else 0
    while number in taken:
        number += 1
    taken.add(number)
    return number
