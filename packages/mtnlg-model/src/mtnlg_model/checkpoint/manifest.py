"""manifest.json: what a checkpoint holds and where. Strict models, checked before a byte of a tensor is read. No torch.

A manifest may come from a stranger. File names cannot leave the folder; shapes are those of its own configuration; the
pieces of a tensor tile it exactly once; and the bytes that they claim are bounded by the files that are really there.
"""

from __future__ import annotations

import json
import re
import shutil
import stat
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

import xxhash
from pydantic import Field, ValidationError

from mtnlg_model.config import ModelConfig  # noqa: TC001  (pydantic reads it)
from mtnlg_model.console import Failure
from mtnlg_model.settings import Settings

from .boxes import Box, explain_tiling, lengths, volume

if TYPE_CHECKING:
    from pathlib import Path

SlotName = Literal["weight", "master", "exp_avg", "exp_avg_sq"]
SLOTS: Final[tuple[SlotName, ...]] = ("weight", "master", "exp_avg", "exp_avg_sq")
MOMENTS: Final[tuple[SlotName, ...]] = ("exp_avg", "exp_avg_sq")
DtypeName = Literal["F64", "F32", "F16", "BF16"]
ITEM_BYTES: Final[dict[str, int]] = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
MOST_BYTES = 1 << 30
CHUNK_BYTES = 256 << 10

Whole = Annotated[int, Field(ge=0, lt=1 << 62)]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$", max_length=200)]
Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class CheckpointError(Failure):
    """A checkpoint that cannot be read or written; the line names folder, file and field."""


class Layout(Settings):
    """How the run that wrote a checkpoint was cut: tensor, pipeline and data parallel sizes."""

    tp: Annotated[int, Field(ge=1)] = 1
    pp: Annotated[int, Field(ge=1)] = 1
    dp: Annotated[int, Field(ge=1)] = 1


class Progress(Settings):
    """How far training has come. ``stream`` is the fingerprint of the token stream, which a resume compares."""

    step: Whole
    samples: Whole
    tokens: Whole
    loss: float
    stream: str
    layout: Layout
    validation_loss: float | None = None
    extra: dict[str, str | int | float] = Field(default_factory=dict)


class Piece(Settings):
    """One entry ``key`` of one file: the box of the tensor, or elements [a, b) of the box's row-major flattening."""

    file: FileName
    key: str
    box: Box
    flat: tuple[Whole, Whole] | None = None

    @property
    def stored(self) -> tuple[int, ...]:
        """Shape of the entry in its file."""
        return lengths(self.box) if self.flat is None else (self.flat[1] - self.flat[0],)


class Slot(Settings):
    """One tensor of a parameter (its weight, its first moment …) in pieces of one dtype."""

    dtype: DtypeName
    pieces: Annotated[tuple[Piece, ...], Field(min_length=1)]


class Entry(Settings):
    """A parameter: its global shape and its slots."""

    shape: tuple[Whole, ...]
    slots: dict[SlotName, Slot]


class File(Settings):
    """Length and checksum of one file."""

    bytes: Whole
    checksum: Hex


class Part(Settings):
    """What one writer has written: the manifest before it is merged."""

    files: dict[FileName, File]
    tensors: dict[str, Entry]


class Manifest(Settings):
    """The whole. ``checksum`` is over everything else, so that a flipped bit in this file is seen too.

    ``algorithm`` names how every checksum here is made.
    """

    format: Literal["mtnlg-checkpoint"] = "mtnlg-checkpoint"
    version: Literal[1] = 1
    algorithm: Literal["xxh3-128"] = "xxh3-128"
    config: ModelConfig
    progress: Progress
    optimizer_steps: Whole
    files: dict[FileName, File]
    tensors: dict[str, Entry]
    checksum: Hex | Literal[""] = ""

    @property
    def digest(self) -> str:
        """Over the configuration and all that stands for the weights; optimizer and progress do not enter."""
        weights = {name: entry.slots["weight"].model_dump(mode="json") for name, entry in sorted(self.tensors.items())}
        used = {piece.file for entry in self.tensors.values() for piece in entry.slots["weight"].pieces}
        sums = {name: self.files[name].checksum for name in sorted(used)}
        return _checksum_of([self.config.model_dump(mode="json"), weights, sums])


M = TypeVar("M", bound=Settings)


def read(path: Path, schema: type[M]) -> M:
    """Parse a JSON file into ``schema``; ``CheckpointError`` naming the field where it does not fit."""
    return _parse(_bytes(path), schema, path)


def read_manifest(directory: Path) -> Manifest:
    """The checked manifest of a checkpoint folder; ``CheckpointError`` naming what is wrong with it."""
    path = directory / MANIFEST
    if not path.is_file():
        raise CheckpointError(f"{directory}: no checkpoint: it has no {MANIFEST}")
    raw = _bytes(path)
    manifest = _parse(raw, Manifest, path)
    content = json.loads(raw)
    if content.pop("checksum", "") != _checksum_of(content):
        raise CheckpointError(f"{path}: checksum: does not match the content; the file was changed or damaged")
    check(manifest, path)
    for name, file in manifest.files.items():
        check_file(directory / name, file)
    return manifest


def sealed(manifest: Manifest) -> str:
    """The manifest as JSON with its checksum set."""
    content = manifest.model_dump(mode="json", exclude={"checksum"})
    return json.dumps({**content, "checksum": _checksum_of(content)}) + "\n"


def check(manifest: Manifest, path: Path) -> None:
    """Hold the manifest against its own configuration; ``CheckpointError`` at the first thing that cannot be."""
    _check_names(manifest, path)
    claimed = dict.fromkeys(manifest.files, 0)
    keys: set[tuple[str, str]] = set()
    for name, entry in manifest.tensors.items():
        for slot_name, slot in entry.slots.items():
            place = f"{path}: {name}: {slot_name}"
            for piece in slot.pieces:
                if piece.file not in claimed:
                    raise CheckpointError(f"{place}: file {piece.file} is not among files")
                if (piece.file, piece.key) in keys:
                    raise CheckpointError(f"{place}: {piece.key!r} of {piece.file} is used twice")
                keys.add((piece.file, piece.key))
            why = explain_tiling(entry.shape, [(piece.box, piece.flat) for piece in slot.pieces])
            if why:
                raise CheckpointError(f"{place}: {why}")
            for piece in slot.pieces:
                first, last = piece.flat or (0, volume(piece.box))
                claimed[piece.file] += (last - first) * ITEM_BYTES[slot.dtype]
    for name, size in claimed.items():
        if size > manifest.files[name].bytes:
            raise CheckpointError(
                f"{path}: files.{name}: {manifest.files[name].bytes} bytes cannot hold pieces of {size}"
            )


def check_file(path: Path, file: File) -> None:
    """Hold a file's kind and length against the manifest, without opening it."""
    try:
        found = path.lstat()
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from None
    if not stat.S_ISREG(found.st_mode):
        raise CheckpointError(f"{path}: is no plain file; a checkpoint holds neither links nor devices")
    if found.st_size != file.bytes:
        raise CheckpointError(f"{path}: {found.st_size} bytes where {MANIFEST} says {file.bytes}")


def checksum(path: Path) -> str:
    """The checksum of a file's bytes."""
    found = xxhash.xxh3_128()
    with path.open("rb", buffering=0) as file:
        chunk = memoryview(bytearray(CHUNK_BYTES))
        while count := file.readinto(chunk):
            found.update(chunk[:count])
    return found.hexdigest()


def _check_names(manifest: Manifest, path: Path) -> None:
    config = manifest.config
    found, expected = len(manifest.tensors), config.tensors
    # Count before listing: a lie about layers must not build a list of its length.
    shapes = config.parameter_shapes() if expected <= 4 * (found + 16) else {}
    if shapes.keys() != manifest.tensors.keys():
        odd = sorted(shapes.keys() ^ manifest.tensors.keys())[:3]
        raise CheckpointError(f"{path}: tensors: {found} where config has {expected}; look at {odd}")
    if TOKENIZER not in manifest.files:
        raise CheckpointError(f"{path}: files: {TOKENIZER} is missing")
    moments = {slot in entry.slots for entry in manifest.tensors.values() for slot in MOMENTS}
    if len(moments) > 1:
        raise CheckpointError(f"{path}: tensors: only some of them have {' and '.join(MOMENTS)}")
    for name, entry in manifest.tensors.items():
        if entry.shape != shapes[name]:
            raise CheckpointError(f"{path}: {name}: shape {list(entry.shape)} where config has {list(shapes[name])}")
        if "weight" not in entry.slots:
            raise CheckpointError(f"{path}: {name}: weight is missing")


def _bytes(path: Path) -> bytes:
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:
            raise CheckpointError(f"{path}: is no plain file of at most {MOST_BYTES} bytes")
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from None


def _parse(raw: bytes, schema: type[M], path: Path) -> M:
    try:
        return schema.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        given = repr(first["input"])
        shown = f" = {given}" if len(given) <= 60 else ""
        raise CheckpointError(f"{path}: {field}{shown}: {first['msg']}") from None


def _checksum_of(content: Any) -> str:  # noqa: ANN401  (any JSON value)
    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


_STEP = re.compile(r"step-(0|[1-9][0-9]{0,17})")


def resolve(directory: Path) -> Path:
    """The checkpoint that ``directory`` is, or else the newest that it holds."""
    return directory if (directory / MANIFEST).is_file() else latest(directory) or directory


def latest(directory: Path) -> Path | None:
    """The newest whole step-N under ``directory``; None when there is none."""
    found = whole(directory)
    return found[-1][1] if found else None


def retain(directory: Path, keep: int) -> None:
    """Remove all but the newest ``keep`` checkpoints, and what older killed attempts have left."""
    if keep < 1:
        raise CheckpointError(f"retain: keep = {keep}; at least 1")
    found = whole(directory)
    for _, path in found[:-keep]:
        doomed = path.with_name(f"{path.name}.tmp")
        shutil.rmtree(doomed, ignore_errors=True)
        # First the name, then the content: what is being removed is never taken for whole.
        path.rename(doomed)
    newest = found[-1][0] if found else -1
    for path in directory.glob("step-*.tmp"):
        match = _STEP.fullmatch(path.name.removesuffix(".tmp"))
        if match and int(match[1]) < newest:
            shutil.rmtree(path)


def whole(directory: Path) -> list[tuple[int, Path]]:
    """Every whole step-N under ``directory`` and its N, oldest first."""
    if not directory.is_dir():
        return []
    found = [(match, path) for path in directory.iterdir() if (match := _STEP.fullmatch(path.name))]
    return sorted((int(match[1]), path) for match, path in found if (path / MANIFEST).is_file())
