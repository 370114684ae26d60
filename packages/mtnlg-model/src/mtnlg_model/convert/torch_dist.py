"""Import Megatron-LM's ``torch_dist`` checkpoints: an index, ``.metadata``, and files of chunks, __0_0.distcp …

These are ``torch.distributed.checkpoint`` folders. The index is a pickle of classes and every chunk a ``torch.save``
file; both are read as data (`pickle_reader`, `torch_file`), without executing anything. Chunks are boxes of the global
tensors, as in our checkpoints, so each is copied as it is, one at a time. Megatron-Core stacks the layers,
decoder.layers.X of shape [layers, …], or numbers them, decoder.layers.N.X. Rows of linear_qkv are q, k, v per head, as
in our decoder. Optimizer state is not imported.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mtnlg_model.checkpoint.boxes import lengths, volume
from mtnlg_model.console import Failure, progress
from mtnlg_model.files import read_small

from . import pickle_reader
from .megatron import config_of
from .output import new_checkpoint, require_file_size
from .pickle_reader import Global, Record
from .torch_file import TorchFile, View, is_shape

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from torch import Tensor

    from mtnlg_model.checkpoint.boxes import Box
    from mtnlg_model.config import ModelConfig

INDEX: Final = ".metadata"
ARGUMENTS: Final = "common.pt"
MAX_INDEX_BYTES: Final = 1 << 28
IGNORED_PREFIXES: Final = ("optimizer.", "chained_", "rng_state", "rerun_state")
OUTER: Final = {
    "embedding.word_embeddings.weight": "embedding.token.weight",
    "embedding.position_embeddings.weight": "embedding.position.weight",
    "decoder.final_layernorm.weight": "final_norm.weight",
    "decoder.final_layernorm.bias": "final_norm.bias",
}
INNER: Final = {
    "self_attention.linear_qkv.layer_norm_": "attention_norm.",
    "self_attention.linear_qkv.": "attention.qkv.",
    "self_attention.linear_proj.": "attention.out.",
    "mlp.linear_fc1.layer_norm_": "mlp_norm.",
    "mlp.linear_fc1.": "mlp.up.",
    "mlp.linear_fc2.": "mlp.down.",
}
_LAYER = re.compile(r"decoder\.layers\.(?:(\d{1,9})\.)?(.+?)(weight|bias)")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Chunk:
    """A box of a tensor, and the bytes of the file that contain it."""

    box: Box
    file: str
    start: int
    length: int


@dataclass(frozen=True)
class IndexedTensor:
    """A tensor of the index: global shape and chunks. `publish` checks that the chunks tile the tensor."""

    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]


def is_torch_dist(folder: Path) -> bool:
    """Whether the folder is a torch.distributed.checkpoint folder."""
    return (folder / INDEX).exists()


def import_torch_dist(
    folder: Path, target: Path, tokenizer: Path, *, arguments: Mapping[str, Any] | None = None
) -> ModelConfig:
    """Write the model in ``folder`` as the checkpoint ``target``, one chunk at a time.

    ``arguments`` are the run's, by default those in common.pt. Raises ``Failure`` if the folder is damaged or its model
    is not a GPT of this decoder's architecture.
    """
    tensors = read_index(folder)
    config = _read_config(folder, tensors, arguments)
    shapes, count = config.parameter_shapes(), sum(len(tensor.chunks) for tensor in tensors.values())
    with new_checkpoint(target, config, tokenizer) as writer, progress("import", count, "chunks") as advance:
        for key, tensor in tensors.items():
            for chunk in tensor.chunks:
                data = _read_chunk(folder, key, chunk)
                for name, box, piece in _our_pieces(key, chunk.box, data):
                    if name not in shapes:
                        raise Failure(f"{folder / INDEX}: {key}: not a tensor of this decoder")
                    writer.add(name, shapes[name], "weight", tuple(slice(*bounds) for bounds in box), piece)
                advance(1)
    return config


def read_index(folder: Path) -> dict[str, IndexedTensor]:
    """The model's tensors by Megatron's names, without optimizer state and entries that are not tensors."""
    path = folder / INDEX
    try:
        index = pickle_reader.read(read_small(path, MAX_INDEX_BYTES), path)
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from None
    entries, storage = _state(index, "Metadata", "state_dict_metadata", "storage_data", path=path)
    if not isinstance(entries, dict) or not isinstance(storage, dict):
        raise Failure(f"{path}: not the index of a torch.distributed checkpoint")
    locations = _chunk_locations(storage, path)
    tensors = {}
    for key, entry in entries.items():
        if not isinstance(key, str) or key.startswith(IGNORED_PREFIXES):
            continue
        match entry:
            case Record(what=Global(name="BytesStorageMetadata")):  # no tensor
                continue
        size, chunks = _state(entry, "TensorStorageMetadata", "size", "chunks", path=path)
        if not isinstance(chunks, list):
            raise Failure(f"{path}: {key}: chunks are not a list")
        chunks = tuple(_chunk(key, chunk, locations, path) for chunk in chunks)
        tensors[key] = IndexedTensor(_size(size, path), chunks)
    _check_overlaps(tensors.values(), path)
    return tensors


def _check_overlaps(tensors: Iterable[IndexedTensor], path: Path) -> None:
    """Raise ``Failure`` where two chunks share bytes of a file: each byte is to be read once."""
    end: dict[str, int] = {}
    for chunk in sorted((chunk for tensor in tensors for chunk in tensor.chunks), key=lambda c: (c.file, c.start)):
        if chunk.start < end.get(chunk.file, 0) or chunk.length <= 0:
            raise Failure(f"{path}: damaged: chunks overlap at byte {chunk.start} of {chunk.file}")
        end[chunk.file] = chunk.start + chunk.length


def _chunk_locations(storage: dict[Any, Any], path: Path) -> dict[tuple[str, tuple[int, ...]], tuple[str, int, int]]:
    """File, offset and length of every chunk, by the name of its tensor and its offsets within it."""
    locations = {}
    for index, info in storage.items():
        name = _state(index, "MetadataIndex", "fqn", path=path)[0]
        # Pickled bytes, which are not tensors, have no offset.
        if (offsets := index.state.get("offset")) is None or not isinstance(name, str):
            continue
        file, start, length = _state(info, "_StorageInfo", "relative_path", "offset", "length", path=path)
        if not isinstance(file, str) or not _FILE.fullmatch(file):
            shown = f"{file!r:.60}" if isinstance(file, str) else f"a {type(file).__name__}"
            raise Failure(f"{path}: {name}: file {shown} is not a name in this folder")
        if type(start) is not int or type(length) is not int or info.state.get("transform_descriptors"):
            raise Failure(f"{path}: {name}: unsupported storage format")
        locations[name, _size(offsets, path)] = (file, start, length)
    return locations


def _chunk(key: str, entry: object, locations: dict[Any, tuple[str, int, int]], path: Path) -> Chunk:
    offsets, sizes = (
        _size(value, path) for value in _state(entry, "ChunkStorageMetadata", "offsets", "sizes", path=path)
    )
    if (key, offsets) not in locations or len(offsets) != len(sizes) or 0 in sizes:
        raise Failure(f"{path}: {key}: no file has its chunk at {list(offsets)}")
    box = tuple((offset, offset + size) for offset, size in zip(offsets, sizes, strict=True))
    return Chunk(box, *locations[key, offsets])


def _state(record: object, kind: str, *fields: str, path: Path) -> list[Any]:
    """These fields of a record of class ``kind``. Raises ``Failure`` if it is anything else."""
    match record:
        case Record(what=Global(name=name), state=dict(state)) if name == kind and state.keys() >= {*fields}:
            return [state[field] for field in fields]
    raise Failure(f"{path}: not the index of a torch.distributed checkpoint: no {kind} with {fields[0]}")


def _size(value: object, path: Path) -> tuple[int, ...]:
    match value:
        case Record(what=Global("torch", "Size"), arguments=(tuple(sizes),)) if is_shape(sizes):
            return sizes
    raise Failure(f"{path}: damaged: a size is not a torch.Size")


def _read_config(folder: Path, tensors: dict[str, IndexedTensor], arguments: Mapping[str, Any] | None) -> ModelConfig:
    """The configuration implied by the shapes and the run's arguments."""
    try:
        (vocabulary, hidden), (sequence, _) = (tensors[key].shape for key in OUTER if key.startswith("embedding."))
    except (KeyError, ValueError):
        raise Failure(f"{folder}: not a GPT with learned positions: no token and position embedding") from None
    layers = max((_layer_count(key, tensor) for key, tensor in tensors.items()), default=0)
    sizes = {"layers": layers, "hidden": hidden, "sequence": sequence, "vocabulary": vocabulary}
    config = config_of(sizes, folder / ARGUMENTS, arguments)
    files = {chunk.file for tensor in tensors.values() for chunk in tensor.chunks}
    require_file_size(config, [folder / file for file in files])
    return config


def _layer_count(key: str, tensor: IndexedTensor) -> int:
    """Number of layers that this tensor implies: its layer's number + 1, or the size of the stack."""
    match = _LAYER.fullmatch(key)
    if match is None:
        return 0
    return int(match[1]) + 1 if match[1] else tensor.shape[0] if tensor.shape else 0


def _read_chunk(folder: Path, key: str, chunk: Chunk) -> Tensor:
    path = folder / chunk.file
    file = TorchFile(path, chunk.start, chunk.length)
    if not isinstance(file.content, View):
        raise Failure(f"{path}: {key}: not a floating-point tensor")
    tensor = file.tensor(file.content)
    if tensor.numel() != volume(chunk.box):
        raise Failure(f"{path}: {key}: {list(tensor.shape)} where the index says {list(lengths(chunk.box))}")
    return tensor.reshape(lengths(chunk.box))


def _our_pieces(key: str, box: Box, tensor: Tensor) -> list[tuple[str, Box, Tensor]]:
    """(name, box, data) of our tensors in a chunk of Megatron's: one, or one per layer if layers are stacked."""
    match = _LAYER.fullmatch(key)
    if match is None:
        return [(OUTER.get(key, ""), box, tensor)]
    number, module, kind = match.groups()
    inner = INNER.get(module, "") + kind
    if number is not None or not box:
        return [(f"layers.{number}.{inner}", box, tensor)]
    first, last = box[0]
    return [(f"layers.{n}.{inner}", box[1:], tensor[n - first]) for n in range(first, last)]
