"""manifest.json, which lists a checkpoint's tensors, pieces and files; and the step-N folders of a run. No torch.

A manifest may come from an untrusted source, so all of it is checked before any tensor is read: file names stay inside
the folder, shapes follow from the configuration, the pieces of a tensor tile it exactly once, and no piece is larger
than the file that holds it.
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
MAX_MANIFEST_BYTES = 1 << 30
CHUNK_BYTES = 256 << 10
_STEP = re.compile(r"step-(0|[1-9][0-9]{0,17})")

NonNegative = Annotated[int, Field(ge=0, lt=1 << 62)]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$", max_length=200)]
Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class CheckpointError(Failure):
    """A checkpoint cannot be read or written. The message names folder, file and field."""


class Layout(Settings):
    """Tensor-, pipeline- and data-parallel sizes of the run that wrote a checkpoint."""

    tp: Annotated[int, Field(ge=1)] = 1
    pp: Annotated[int, Field(ge=1)] = 1
    dp: Annotated[int, Field(ge=1)] = 1


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

    file: FileName
    key: str
    box: Box
    flat: tuple[NonNegative, NonNegative] | None = None

    @property
    def elements(self) -> tuple[int, int]:
        """The elements [a, b) of the box that the entry holds: ``flat``, or all."""
        return self.flat or (0, volume(self.box))

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of the entry in its file: that of the box, or flat."""
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
        weights = {name: entry.slots["weight"].model_dump(mode="json") for name, entry in sorted(self.tensors.items())}
        used = {piece.file for entry in self.tensors.values() for piece in entry.slots["weight"].pieces}
        sums = {name: self.files[name].checksum for name in sorted(used)}
        return _json_checksum([self.config.model_dump(mode="json"), weights, sums])


M = TypeVar("M", bound=Settings)


def read_json(path: Path, schema: type[M]) -> M:
    """Parse a JSON file into ``schema``. Raises ``CheckpointError`` naming the wrong field."""
    return _parse(_read_bytes(path), schema, path)


def read_manifest(directory: Path) -> Manifest:
    """The checked manifest of a checkpoint folder. Raises ``CheckpointError`` naming what is wrong."""
    path = directory / MANIFEST
    if not path.is_file():
        raise CheckpointError(f"{directory}: not a checkpoint: no {MANIFEST} in it")
    raw = _read_bytes(path)
    manifest = _parse(raw, Manifest, path)
    content = json.loads(raw)
    if content.pop("checksum", "") != _json_checksum(content):
        raise CheckpointError(f"{path}: checksum does not match the content; the file was changed or damaged")
    check_manifest(manifest, path)
    for name, file in manifest.files.items():
        check_file(directory / name, file)
    return manifest


def to_json(manifest: Manifest) -> str:
    """The manifest as JSON, with its checksum."""
    content = manifest.model_dump(mode="json", exclude={"checksum"})
    return json.dumps({**content, "checksum": _json_checksum(content)}) + "\n"


def check_manifest(manifest: Manifest, path: Path) -> None:
    """Check the manifest against its own configuration. Raises ``CheckpointError`` at the first contradiction."""
    _check_names(manifest, path)
    claimed = dict.fromkeys(manifest.files, 0)
    keys: set[tuple[str, str]] = set()
    for name, entry in manifest.tensors.items():
        for slot_name, slot in entry.slots.items():
            where = f"{path}: {name}: {slot_name}"
            for piece in slot.pieces:
                if piece.file not in claimed:
                    raise CheckpointError(f"{where}: file {piece.file} is not listed in files")
                if (piece.file, piece.key) in keys:
                    raise CheckpointError(f"{where}: {piece.key!r} of {piece.file} is used twice")
                keys.add((piece.file, piece.key))
            why = explain_tiling(entry.shape, [(piece.box, piece.flat) for piece in slot.pieces])
            if why:
                raise CheckpointError(f"{where}: {why}")
            for piece in slot.pieces:
                first, last = piece.elements
                claimed[piece.file] += (last - first) * ITEM_BYTES[slot.dtype]
    for name, size in claimed.items():
        if size > manifest.files[name].bytes:
            raise CheckpointError(
                f"{path}: files.{name}: {manifest.files[name].bytes} bytes cannot hold pieces of {size}"
            )


def check_file(path: Path, file: FileEntry) -> None:
    """Check that a regular file of the listed length is there, without opening it. Raises ``CheckpointError``."""
    try:
        status = path.lstat()
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from None
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{path}: not a regular file; a checkpoint has no links or devices")
    if status.st_size != file.bytes:
        raise CheckpointError(f"{path}: {status.st_size} bytes where {MANIFEST} says {file.bytes}")


def file_checksum(path: Path) -> str:
    """XXH3-128 of a file's bytes, in hex."""
    digest = xxhash.xxh3_128()
    with path.open("rb", buffering=0) as file:
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
        raise CheckpointError(f"{path}: tensors: only some of them have {' and '.join(MOMENTS)}")
    for name, entry in manifest.tensors.items():
        if entry.shape != shapes[name]:
            raise CheckpointError(f"{path}: {name}: shape {list(entry.shape)} where config has {list(shapes[name])}")
        if "weight" not in entry.slots:
            raise CheckpointError(f"{path}: {name}: weight is missing")


def _read_bytes(path: Path) -> bytes:
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_MANIFEST_BYTES:
            raise CheckpointError(f"{path}: not a regular file of at most {MAX_MANIFEST_BYTES} bytes")
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from None


def _parse(raw: bytes, schema: type[M], path: Path) -> M:
    try:
        return schema.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        value = repr(first["input"])
        assignment = f" = {value}" if len(value) <= 60 else ""
        raise CheckpointError(f"{path}: {field}{assignment}: {first['msg']}") from None


def _json_checksum(content: Any) -> str:  # noqa: ANN401  (any JSON value)
    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def resolve_checkpoint(directory: Path) -> Path:
    """``directory`` if it is a checkpoint, else the newest checkpoint in it, else ``directory``."""
    return directory if (directory / MANIFEST).is_file() else latest(directory) or directory


def latest(directory: Path) -> Path | None:
    """The newest complete step-N in ``directory``; None if there is none."""
    checkpoints = list_checkpoints(directory)
    return checkpoints[-1][1] if checkpoints else None


def retain(directory: Path, keep: int) -> None:
    """Remove all but the newest ``keep`` checkpoints, and what interrupted writes of older steps left behind."""
    if keep < 1:
        raise CheckpointError(f"retain: keep = {keep}; must be at least 1")
    checkpoints = list_checkpoints(directory)
    for _, path in checkpoints[:-keep]:
        removed = path.with_name(f"{path.name}.tmp")
        shutil.rmtree(removed, ignore_errors=True)
        # Rename before deleting, so a half-deleted checkpoint never looks complete.
        path.rename(removed)
    newest = checkpoints[-1][0] if checkpoints else -1
    for path in directory.glob("step-*.tmp"):
        match = _STEP.fullmatch(path.name.removesuffix(".tmp"))
        if match and int(match[1]) < newest:
            shutil.rmtree(path)


def list_checkpoints(directory: Path) -> list[tuple[int, Path]]:
    """(N, folder) of every complete step-N in ``directory``, oldest first."""
    if not directory.is_dir():
        return []
    steps = [(match, path) for path in directory.iterdir() if (match := _STEP.fullmatch(path.name))]
    return sorted((int(match[1]), path) for match, path in steps if (path / MANIFEST).is_file())
