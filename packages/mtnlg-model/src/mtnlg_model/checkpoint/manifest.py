"""manifest.json, which lists a checkpoint's tensors, pieces and files; and the step-N folders of a run. No torch.

A manifest may come from an untrusted source, so all of it is checked before any tensor is read: file names stay inside
the folder, shapes follow from the configuration, the pieces of a tensor tile it exactly once, and no piece is larger
than the file that holds it. Reading the manifest opens none of the listed files: each is checked to be regular and to
have the listed length when it is opened (530B: 12,404 files, of which each rank reads only some).
"""

from __future__ import annotations

import errno
import gc
import json
import os
import re
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

import xxhash
from pydantic import Field, SerializerFunctionWrapHandler, ValidationError, model_serializer

from mtnlg_model.config import ModelConfig  # noqa: TC001  (pydantic reads it)
from mtnlg_model.console import Failure, say
from mtnlg_model.files import naming, open_regular
from mtnlg_model.settings import Settings

from .boxes import Box, explain_tiling, lengths, volume

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader

SlotName = Literal["weight", "master", "exp_avg", "exp_avg_sq"]
SLOTS: Final[tuple[SlotName, ...]] = ("weight", "master", "exp_avg", "exp_avg_sq")
MOMENTS: Final[tuple[SlotName, ...]] = ("exp_avg", "exp_avg_sq")
DtypeName = Literal["F64", "F32", "F16", "BF16"]
ITEM_BYTES: Final[dict[str, int]] = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
CHAT_FILES: Final = ("chat_template.jinja", "generation_config.json", "tokenizer_config.json")
"""Optional files beside tokenizer.json, explained in `chat_files`."""
MAX_MANIFEST_BYTES = 1 << 30
CHUNK_BYTES = 256 << 10
RETRY_SECONDS = 0.2
_STEP = re.compile(r"step-(0|[1-9][0-9]{0,17})")

NonNegative = Annotated[int, Field(ge=0, lt=1 << 62)]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$", max_length=200)]
Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class CheckpointError(Failure):
    """A checkpoint cannot be read or written. The message names folder, file and field."""


class MissingFileError(CheckpointError):
    """A file is missing."""


class Layout(Settings):
    """Tensor-, context-, pipeline- and data-parallel sizes of the run that wrote a checkpoint.

    ``cp`` is written only if it is not 1, so that earlier versions read what a layout without it wrote.
    """

    tp: Annotated[int, Field(ge=1)] = Field(1, description="tensor-parallel ranks")
    cp: Annotated[int, Field(ge=1)] = Field(1, description="context-parallel ranks, which share each sequence")
    pp: Annotated[int, Field(ge=1)] = Field(1, description="pipeline ranks")
    dp: Annotated[int, Field(ge=1)] = Field(1, description="data-parallel ranks")

    @model_serializer(mode="wrap")
    def _omit_single(self, serialize: SerializerFunctionWrapHandler) -> dict[str, int]:
        return {axis: degree for axis, degree in serialize(self).items() if (axis, degree) != ("cp", 1)}


class Progress(Settings):
    """Training progress. ``stream`` is the fingerprint of the token stream, which a resumed run compares."""

    step: NonNegative
    samples: NonNegative
    tokens: NonNegative
    loss: float
    stream: str
    layout: Layout
    validation_loss: float | None = None
    extra: dict[str, str | int | float] = Field(default_factory=dict)


class Piece(Settings):
    """Entry ``key`` of one file: a box of the tensor, or elements ``flat`` = [a, b) of the box in row-major order."""

    box: Box
    file: FileName
    flat: tuple[NonNegative, NonNegative] | None = None
    key: str

    @property
    def elements(self) -> tuple[int, int]:
        """The elements [a, b) of the box that the entry holds: ``flat``, or all."""
        return self.flat or (0, volume(self.box))

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of the entry in its file: the box's, or one axis if ``flat`` is set."""
        return lengths(self.box) if self.flat is None else (self.flat[1] - self.flat[0],)


class Slot(Settings):
    """One tensor of a parameter, such as its weight or first moment, in pieces of one dtype."""

    dtype: DtypeName
    pieces: Annotated[tuple[Piece, ...], Field(min_length=1)]


class TensorEntry(Settings):
    """Global shape and slots of one parameter."""

    shape: tuple[NonNegative, ...]
    slots: dict[SlotName, Slot]


class FileEntry(Settings):
    """Length and checksum of one file."""

    bytes: NonNegative
    checksum: Hex


class PartialManifest(Settings):
    """Files and tensors of one writer, which `publish` merges into the manifest."""

    files: dict[FileName, FileEntry]
    tensors: dict[str, TensorEntry]


class Manifest(Settings):
    """Contents of manifest.json. ``checksum`` covers all other fields; ``algorithm`` applies to every checksum."""

    format: Literal["mtnlg-checkpoint"] = "mtnlg-checkpoint"
    version: Literal[1] = 1
    algorithm: Literal["xxh3-128"] = "xxh3-128"
    config: ModelConfig
    progress: Progress
    optimizer_steps: NonNegative
    files: dict[FileName, FileEntry]
    tensors: dict[str, TensorEntry]
    checksum: Hex | Literal[""] = ""

    @property
    def digest(self) -> str:
        """Checksum of the configuration and the weights, without optimizer state and progress."""
        slots = {name: entry.slots["weight"] for name, entry in sorted(self.tensors.items())}
        used = {piece.file for slot in slots.values() for piece in slot.pieces}
        sums = {name: self.files[name].checksum for name in sorted(used)}
        with collection_paused():
            weights = {name: slot.model_dump(mode="json") for name, slot in slots.items()}
            return _json_checksum([self.config.model_dump(mode="json"), weights, sums])


M = TypeVar("M", bound=Settings)


def read_manifest(directory: Path) -> Manifest:
    """The checked manifest of a checkpoint folder. Raises ``CheckpointError`` naming what is wrong."""
    return parse_manifest(directory, read_manifest_bytes(directory))


def read_manifest_bytes(directory: Path) -> bytes:
    """Raw bytes of a checkpoint folder's manifest, for `parse_manifest` in any process. Raises ``CheckpointError``."""
    path = directory / MANIFEST
    if not path.is_file():
        hint = "; mtnlg-model import makes one of it" if (directory / "config.json").is_file() else ""
        reason = f"no {MANIFEST} in it" if directory.is_dir() else "no such folder"
        raise CheckpointError(f"{directory}: not a checkpoint: {reason}{hint}")
    return read_bounded(path)


def parse_manifest(directory: Path, raw: bytes) -> Manifest:
    """Parse and check the manifest of ``directory`` without opening its files. Raises ``CheckpointError``."""
    path = directory / MANIFEST
    with collection_paused():
        manifest = parse_json(raw, Manifest, path)
        if not _has_checksum(raw, manifest.checksum):
            raise CheckpointError(f"{path}: checksum does not match the content; the file was changed or damaged")
        check_manifest(manifest, path)
    return manifest


def to_json(manifest: Manifest) -> str:
    """The manifest as JSON: its checksum, then the canonical text of all other fields, which the checksum covers."""
    # `_canonical` defines the canonical text. Pydantic is faster but does not sort keys: `Piece` and the other classes
    # declare theirs in sorted order, and the tensors' slots are sorted here.
    tensors = {
        name: entry.model_copy(update={"slots": dict(sorted(entry.slots.items()))})
        for name, entry in sorted(manifest.tensors.items())
    }
    listed = PartialManifest.model_construct(files=dict(sorted(manifest.files.items())), tensors=tensors)
    fields = manifest.model_dump(mode="json", exclude={"checksum", "files", "tensors"})
    texts = [f'"{name}":{_canonical(value)}' for name, value in fields.items()]
    texts += [listed.model_dump_json(include={name})[1:-1] for name in ("files", "tensors")]
    text = ",".join(sorted(texts)) + "}"
    checksum = xxhash.xxh3_128_hexdigest(f"{{{text}".encode())
    return f'{{"checksum":"{checksum}",{text}\n'


def _has_checksum(raw: bytes, checksum: str) -> bool:
    """Whether the other fields of the manifest ``raw``, as canonical JSON, have this checksum."""
    ours = f'{{"checksum":"{checksum}",'.encode()
    if raw.startswith(ours):  # as `to_json` writes it: what follows is canonical already
        digest = xxhash.xxh3_128(b"{")
        digest.update(memoryview(raw)[len(ours) : -1])
        if digest.hexdigest() == checksum:
            return True
    content = json.loads(raw)
    content.pop("checksum", None)
    return _json_checksum(content) == checksum


def check_manifest(manifest: Manifest, path: Path) -> None:
    """Check the manifest against its own configuration. Raises ``CheckpointError`` at the first contradiction."""
    _check_names(manifest, path)
    claimed = dict.fromkeys(manifest.files, 0)
    keys: set[tuple[str, str]] = set()
    for name, entry in manifest.tensors.items():
        tiling: list[tuple[Box, tuple[int, int] | None]] = []
        for slot_name, slot in entry.slots.items():
            where = f"{path}: {name}: {slot_name}"
            for piece in slot.pieces:
                if piece.file not in claimed:
                    raise CheckpointError(f"{where}: file {piece.file} is not listed in files")
                if (piece.file, piece.key) in keys:
                    raise CheckpointError(f"{where}: {piece.key!r} of {piece.file} is used twice")
                keys.add((piece.file, piece.key))
            # The slots of a parameter mostly have the same pieces; then one check is enough.
            before, tiling = tiling, [(piece.box, piece.flat) for piece in slot.pieces]
            why = None if tiling == before else explain_tiling(entry.shape, tiling)
            if why:
                raise CheckpointError(f"{where}: {why}")
            for piece, (box, flat) in zip(slot.pieces, tiling, strict=True):
                claimed[piece.file] += (flat[1] - flat[0] if flat else volume(box)) * ITEM_BYTES[slot.dtype]
    for name, size in claimed.items():
        if size > manifest.files[name].bytes:
            raise CheckpointError(
                f"{path}: files.{name}: {manifest.files[name].bytes} bytes cannot hold pieces of {size}"
            )


def check_file(path: Path, file: FileEntry) -> None:
    """Check that a regular file of the listed length is there. Raises ``CheckpointError``."""
    with open_file(path) as (_, size):
        check_length(path, size, file)


def check_length(path: Path, size: int, file: FileEntry) -> None:
    """Raise ``CheckpointError`` unless a file of ``size`` bytes has the listed length."""
    if size != file.bytes:
        raise CheckpointError(f"{path}: {size} bytes where {MANIFEST} says {file.bytes}")


@contextmanager
def open_file(path: Path, wait: float = 0.0) -> Iterator[tuple[BufferedReader, int]]:
    """Yield a checkpoint's file, opened by `open_regular`, and its length in bytes.

    A missing file is reported and retried for ``wait`` seconds, since network file systems may show a rename late.
    Raises ``CheckpointError``.
    """
    deadline, is_named = time.monotonic() + wait, False
    while True:
        try:
            opened = open_regular(path)
            break
        except Failure as error:
            raise CheckpointError(str(error)) from None
        except OSError as error:
            missing = error.errno in {errno.ENOENT, errno.ESTALE}
            if not missing or time.monotonic() >= deadline:
                kind = MissingFileError if missing else CheckpointError
                raise kind(f"{path}: {error.strerror}" + f", for {wait:g} s" * (missing and wait > 0)) from None
        if not is_named:
            say(f"{path}: not there yet; waiting up to {wait:g} s for it")
            is_named = True
        time.sleep(RETRY_SECONDS)
    with opened as file, naming(path):
        yield file, os.fstat(file.fileno()).st_size


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause Python's garbage collector: parsing makes many objects but no cycles, and takes twice as long with it."""
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.enable()


def file_checksum(path: Path) -> str:
    """XXH3-128 of a file's bytes, in hex."""
    digest = xxhash.xxh3_128()
    with open_file(path) as (file, _):
        chunk = memoryview(bytearray(CHUNK_BYTES))
        while count := file.readinto(chunk):
            digest.update(chunk[:count])
    return digest.hexdigest()


def _check_names(manifest: Manifest, path: Path) -> None:
    config = manifest.config
    count, expected = len(manifest.tensors), config.tensor_count
    # Count before listing: a forged number of layers must not make us build a list of that length.
    shapes = config.parameter_shapes() if expected <= 4 * (count + 16) else {}
    if shapes.keys() != manifest.tensors.keys():
        unmatched = sorted(shapes.keys() ^ manifest.tensors.keys())[:3]
        raise CheckpointError(f"{path}: tensors: {count} where config has {expected}; see {unmatched}")
    if TOKENIZER not in manifest.files:
        raise CheckpointError(f"{path}: files: {TOKENIZER} is missing")
    moments = {slot in entry.slots for entry in manifest.tensors.values() for slot in MOMENTS}
    if len(moments) > 1:
        raise CheckpointError(f"{path}: only some tensors have {' and '.join(MOMENTS)}")
    for name, entry in manifest.tensors.items():
        if entry.shape != shapes[name]:
            raise CheckpointError(f"{path}: {name}: shape {list(entry.shape)} where config has {list(shapes[name])}")
        if "weight" not in entry.slots:
            raise CheckpointError(f"{path}: {name}: weight is missing")


def read_bounded(path: Path) -> bytes:
    """Content of a regular file of at most `MAX_MANIFEST_BYTES`. Raises ``CheckpointError``."""
    with open_file(path) as (file, size):
        if size > MAX_MANIFEST_BYTES:
            raise CheckpointError(f"{path}: {size} bytes, more than {MAX_MANIFEST_BYTES}")
        return file.read(size)


def parse_json(raw: bytes, schema: type[M], place: Path | str) -> M:
    """Parse JSON into ``schema``. Raises ``CheckpointError`` naming ``place`` and the wrong field."""
    try:
        return schema.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        value = repr(first["input"])
        assignment = f" = {value}" if len(value) <= 60 else ""
        where = f"{place}: {field}{assignment}" if field else place
        raise CheckpointError(f"{where}: {first['msg']}") from None


def _canonical(content: Any) -> str:  # noqa: ANN401  (any JSON value)
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def _json_checksum(content: Any) -> str:  # noqa: ANN401  (as above)
    return xxhash.xxh3_128_hexdigest(_canonical(content).encode())


def resolve_checkpoint(directory: Path) -> Path:
    """``directory`` if it is a checkpoint, else the newest in it or in its ``checkpoints``, else ``directory``."""
    if (directory / MANIFEST).is_file():
        return directory
    return latest(directory) or latest(directory / "checkpoints") or directory


def latest(directory: Path | str) -> Path | None:
    """The newest complete step-N in ``directory``; None if there is none."""
    checkpoints = list_checkpoints(Path(directory))
    return checkpoints[-1][1] if checkpoints else None


def list_checkpoints(directory: Path) -> list[tuple[int, Path]]:
    """(N, folder) of every complete step-N in ``directory``, oldest first."""
    return [(step, path) for step, path in list_steps(directory) if (path / MANIFEST).is_file()]


def list_steps(directory: Path, suffix: str = "") -> list[tuple[int, Path]]:
    """(N, folder) of every step-N, complete or not, or of every step-N``suffix``, in ``directory``, oldest first."""
    paths = directory.iterdir() if directory.is_dir() else ()
    steps = [(_STEP.fullmatch(path.name.removesuffix(suffix)), path) for path in paths if path.name.endswith(suffix)]
    return sorted((int(match[1]), path) for match, path in steps if match)
