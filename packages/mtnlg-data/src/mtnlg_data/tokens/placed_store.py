"""A store of known size, written in its place by many units at once.

    allocate_store   the three files at their size, under ``state``, and the header of the index
    write_range      one range of keys: its bytes of ``.bin``, and its entries in the three arrays of ``.idx``
    check_span       a GiB of either file, read back: its checksums, in place in ``.crc``; its SHA-256 and unigrams
    write_store      the files renamed to where the store belongs

A unit that finished is not run again, so its bytes must still be there: where the files are not, whatever was done for
them is forgotten (``allocate_store``). A unit that runs twice writes the same bytes to the same place.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from mtnlg_data.engine import Unit
from mtnlg_data.files import atomic_open, atomic_path, sync_directory, write_json

from . import store
from .blend import held_out
from .checked_file import BLOCK_BYTES, CRC, block_checksums, block_count
from .encoding import read_sorted
from .store import HEADER, bin_path, crc_path, dtype_for, idx_path, pack_header

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.engine import Summary
    from mtnlg_data.exchange import KeyRange

READ_BYTES = 1 << 22  # whole blocks
DIGEST_BYTES = hashlib.sha256().digest_size


class PlacedStore(NamedTuple):
    """The files at work, and what the store will hold."""

    prefix: Path
    documents: int
    tokens: int
    vocabulary: int

    @property
    def width(self) -> int:
        """Bytes of a token."""
        return dtype_for(self.vocabulary).itemsize

    @property
    def bin_bytes(self) -> int:
        """Size of ``.bin``."""
        return self.tokens * self.width

    @property
    def idx_bytes(self) -> int:
        """Size of ``.idx``."""
        return HEADER.size + 12 * self.documents + 8 * (self.documents + 1)

    def sizes(self) -> dict[Path, int]:
        """The size of each file."""
        crc_bytes = CRC.size * (block_count(self.bin_bytes) + block_count(self.idx_bytes))
        return {
            bin_path(self.prefix): self.bin_bytes,
            crc_path(self.prefix): crc_bytes,
            idx_path(self.prefix): self.idx_bytes,
        }

    def training_tokens(self, validation: float) -> int:
        """Tokens of the documents that are not held out, by the index that is written."""
        held = held_out(self.documents, validation)
        if not held:
            return self.tokens
        offset = HEADER.size + 4 * self.documents + 8 * (self.documents - held)
        return int(np.fromfile(idx_path(self.prefix), "<i8", 1, offset=offset)[0]) // self.width


def allocate_store(placed: PlacedStore) -> None:
    """Make files of the store's size where they are not there, and forget what units wrote into others.

    The folder is this store's alone.
    """
    folder, sizes = placed.prefix.parent, placed.sizes()
    if all(path.exists() and path.stat().st_size == size for path, size in sizes.items()):
        return
    folder.mkdir(parents=True, exist_ok=True)
    for pattern in ("*.json", "*"):  # manifests first: without one a unit runs again
        for path in folder.glob(pattern):
            path.unlink()
        sync_directory(folder)
    for path, size in sizes.items():
        with atomic_path(path) as partial, partial.open("r+b") as file:
            file.truncate(size)
            if path == idx_path(placed.prefix):
                file.write(pack_header(placed.documents, dtype_for(placed.vocabulary)))
                file.seek(size - 8)
                file.write(np.array(placed.documents, "<i8").tobytes())  # where the last document ends


@dataclass(frozen=True)
class RangeUnit(Unit):
    """Unit: the encoded documents of a range of keys -> their places in a store; the output counts them."""

    folder: Path  # of the encoded files
    keys: KeyRange
    contents: str  # digest of the keys of the units that encoded
    placed: PlacedStore
    document: int  # documents before this range
    token: int  # tokens before it
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        return ("range", self.contents, self.keys, self.placed[1:], self.document, self.token)


def write_range(unit: RangeUnit) -> Summary:
    """Write the documents of a range; they are on disk before the unit is done.

    Raises ``ValueError`` for an id outside the vocabulary, which would wrap in uint16 unnoticed, and for a document of
    more tokens than the index can say.
    """
    placed, document, token = unit.placed, unit.document, unit.token
    dtype, lengths_at, offsets_at = dtype_for(placed.vocabulary), HEADER.size, HEADER.size + 4 * placed.documents
    with (
        bin_path(placed.prefix).open("r+b", buffering=0) as tokens,
        idx_path(placed.prefix).open("r+b", buffering=0) as index,
    ):
        for _, ids, sizes in read_sorted(unit.folder, unit.keys, dtype):
            if len(ids) and int(ids.max()) >= placed.vocabulary:
                raise ValueError(f"token id {ids.max()} outside the vocabulary of {placed.vocabulary}")
            if len(sizes) and int(sizes.max()) > np.iinfo(np.int32).max:
                raise ValueError(f"a document of {sizes.max()} tokens: the index counts them in int32")
            _write_at(tokens.fileno(), placed.width * token, ids)
            offsets = placed.width * (token + np.cumsum(sizes) - sizes)
            _write_at(index.fileno(), lengths_at + 4 * document, sizes.astype("<i4"))
            _write_at(index.fileno(), offsets_at + 8 * document, offsets.astype("<i8"))
            bounds = np.arange(document, document + len(sizes), dtype="<i8")
            _write_at(index.fileno(), offsets_at + 8 * (placed.documents + document), bounds)
            document += len(sizes)
            token += len(ids)
        os.fsync(tokens.fileno())
        os.fsync(index.fileno())
    written = {"documents": document - unit.document, "tokens": token - unit.token}
    write_json(unit.output, written)
    return written


def _write_at(handle: int, place: int, array: NDArray[np.generic]) -> None:
    content = memoryview(array.tobytes())
    while content:  # one write moves at most 2 GiB
        written = os.pwrite(handle, content, place)
        content, place = content[written:], place + written


@dataclass(frozen=True)
class SpanUnit(Unit):
    """Unit: number ``span`` of a file's spans -> its checksums, in ``.crc``, and its SHA-256 and unigrams."""

    placed: PlacedStore
    suffix: Literal["bin", "idx"]
    span: int
    contents: str  # digest of the keys of the units that encoded
    validation: float
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        return ("span", self.contents, self.placed[1:], self.suffix, self.span, store.SPAN_BYTES, self.validation)


def check_span(unit: SpanUnit) -> Summary:
    """Write the checksums of a span, its SHA-256, and how often each token is in documents that are not held out."""
    placed, is_bin = unit.placed, unit.suffix == "bin"
    path, first = (bin_path if is_bin else idx_path)(placed.prefix), unit.span * store.SPAN_BYTES
    training_bytes = placed.width * placed.training_tokens(unit.validation)
    digest, checksums = hashlib.sha256(), b""
    unigrams = np.zeros(placed.vocabulary if is_bin else 0, np.int64)
    with path.open("rb") as file:
        file.seek(first)
        for place in range(first, first + store.SPAN_BYTES, READ_BYTES):
            content = file.read(min(READ_BYTES, first + store.SPAN_BYTES - place))
            digest.update(content)
            checksums += block_checksums(content, block_count(len(content)))
            if is_bin and place < training_bytes:
                tokens = np.frombuffer(content[: training_bytes - place], dtype_for(placed.vocabulary))
                unigrams += np.bincount(tokens, minlength=placed.vocabulary)
    block = first // BLOCK_BYTES + (0 if is_bin else block_count(placed.bin_bytes))
    with crc_path(placed.prefix).open("r+b", buffering=0) as file:
        _write_at(file.fileno(), CRC.size * block, np.frombuffer(checksums, "<u4"))
        os.fsync(file.fileno())
    with atomic_open(unit.output) as output:
        output.write(digest.digest() + unigrams.tobytes())
    return {}


@dataclass(frozen=True)
class StoreUnit(Unit):
    """Unit: a store whose spans are all checked -> the same, in its place."""

    placed: PlacedStore
    contents: str  # digest of the keys of the units that encoded
    validation: float
    output: Path  # its .bin

    def _key_parts(self) -> tuple[object, ...]:
        return ("store", self.contents, self.placed.vocabulary, self.validation)

    def file_digest(self, path: Path) -> str:
        """That of a file's spans."""
        return store.span_digest([path])

    def spans(self) -> list[SpanUnit]:
        """The units that check it."""
        files: tuple[tuple[Literal["bin", "idx"], int], ...]
        files = (("bin", self.placed.bin_bytes), ("idx", self.placed.idx_bytes))
        return [
            SpanUnit(self.placed, suffix, span, self.contents, self.validation,
                     self.placed.prefix.with_name(f"{suffix}-{span:07d}.span"))
            for suffix, size in files
            for span in range(-(-size // store.SPAN_BYTES))
        ]  # fmt: skip


def write_store(unit: StoreUnit) -> Summary:
    """Put the files in place, the index last; ``unigrams`` counts each token of the documents that are not held out."""
    placed, prefix = unit.placed, unit.output.with_suffix("")
    digests: dict[str, bytes] = {"bin": b"", "idx": b""}
    unigrams = np.zeros(placed.vocabulary, np.int64)
    for span in unit.spans():
        content = span.output.read_bytes()
        digests[span.suffix] += content[:DIGEST_BYTES]
        if span.suffix == "bin":
            unigrams += np.frombuffer(content, np.int64, offset=DIGEST_BYTES)
    training_tokens = placed.training_tokens(unit.validation)
    for path in (idx_path(prefix), crc_path(prefix)):
        path.unlink(missing_ok=True)  # never leave an index beside the tokens of another run
    for path_of in (bin_path, crc_path, idx_path):
        path_of(placed.prefix).rename(path_of(prefix))
    sync_directory(prefix.parent)
    paths = {"bin": bin_path(prefix).name, "idx": idx_path(prefix).name}
    return {
        "documents": placed.documents,
        "tokens": placed.tokens,
        "training_tokens": training_tokens,
        "store": hashlib.sha256(digests["bin"] + digests["idx"]).hexdigest(),
        "unigrams": unigrams.tolist(),
        "files": [idx_path(prefix).name, crc_path(prefix).name],
        "digests": {paths[suffix]: hashlib.sha256(digest).hexdigest() for suffix, digest in digests.items()},
    }
