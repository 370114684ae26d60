"""Group files, and parts of files, into units of extraction, so that shards are even whatever the input files.

A file's reader estimates its text. A file of more than a shard is read in parts of at most a shard, if its reader can;
the parts depend only on the file and the setting, because they are in the keys of documents. Consecutive parts and
files are then grouped, up to a shard per group. Between half a shard and a whole one, a hash of names decides where a
group ends, so adding or removing a file changes only the groups around it. A group is named by a hash of its first file
or part. If there is little text, groups are smaller, so that they feed more than one worker.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mtnlg_data.sources import SourceFile

    #: A file, or a part of it, once for each source that it feeds.
    Piece = tuple[SourceFile, ...]

FILE_CHARACTERS = 1 << 14  # what opening a file costs, as characters of text
#: Minimum number of groups of a little text, unless they would be smaller than ``LITTLE_TEXT`` characters.
FEW_GROUPS, LITTLE_TEXT = 16, 8_000_000
ENDS = 4  # one of so many files may end a group that is half full


class Group(NamedTuple):
    """The files that one unit reads; ``numbers`` are the numbers of its shards, one per source."""

    pieces: tuple[Piece, ...]
    numbers: tuple[int, ...]

    def fingerprint(self) -> object:
        """Identifies the content of its files."""
        return [self.numbers, self.pieces]


def group_files(files: Sequence[SourceFile], shard_characters: int) -> list[Group]:
    """The groups of all files; the files of a group keep their order."""
    by_file: dict[object, list[SourceFile]] = {}
    for index, file in enumerate(files):
        by_file.setdefault(file.path if file.reader.shared else index, []).append(file)
    by_sources: dict[tuple[str, ...], list[Piece]] = {}
    for same in by_file.values():
        cuts = same[0].cut(-(-_characters(same[0]) // shard_characters))
        pieces = by_sources.setdefault(tuple(file.source for file in same), [])
        pieces += [tuple(replace(file, part=cut.part) for file in same) for cut in cuts]
    numbered: dict[str, set[int]] = {}
    return [
        Group(pieces, tuple(_number(file, numbered.setdefault(file.source, set())) for file in pieces[0]))
        for all_pieces in by_sources.values()
        for pieces in _group(all_pieces, shard_characters)
    ]


def _characters(file: SourceFile) -> int:
    """Estimated characters of text in a file, or in its part."""
    return int(file.reader.characters(file.name, file.stats[0])) // file.part.parts


def _group(pieces: Sequence[Piece], most: int) -> Iterator[tuple[Piece, ...]]:
    """Divide the pieces into groups of consecutive ones."""
    sizes = [FILE_CHARACTERS + _characters(piece[0]) for piece in pieces]
    while most > LITTLE_TEXT and FEW_GROUPS * most > sum(sizes):
        most //= 2
    first, total = 0, 0
    for end, size in enumerate(sizes):
        may_end = 2 * total >= most and sum(sizes) > most and _hash(pieces[end - 1][0]) % ENDS == 0
        if end > first and (may_end or total + size > most):
            yield tuple(pieces[first:end])
            first, total = end, 0
        total += size
    yield tuple(pieces[first:])


def _hash(file: SourceFile) -> int:
    digest = hashlib.blake2b(f"{file.part.number}/{file.name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def _number(file: SourceFile, taken: set[int]) -> int:
    """Number of the shard that begins with this file: 0 for the source's first, otherwise one of 15 digits."""
    number = 10**14 + _hash(file) % (9 * 10**14) if taken else 0
    while number in taken:
        number += 1
    taken.add(number)
    return number
