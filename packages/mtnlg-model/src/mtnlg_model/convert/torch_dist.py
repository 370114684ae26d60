"""Megatron-LM's ``torch_dist`` checkpoints: an index, ``.metadata``, and files of pieces, __0_0.distcp …

They are ``torch.distributed.checkpoint`` folders. The index is a pickle of classes and every piece a file of
``torch.save``; both are read as data (`pickled`, `torchfile`), so nothing of them runs. Pieces are boxes of the global
tensors, ours as well, so each goes over as it is, one at a time. Megatron-Core stacks the layers, decoder.layers.X of
[layers, …], or numbers them, decoder.layers.N.X; rows of linear_qkv are q, k, v head by head, as ours. Optimizer state
is left behind.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mtnlg_model.checkpoint.boxes import lengths, volume
from mtnlg_model.config import ModelConfig
from mtnlg_model.console import Failure
from mtnlg_model.settings import validate

from . import pickle_reader
from .output import new_checkpoint, refuse_unless_held
from .pickle_reader import Global, Record
from .torch_file import TorchFile, View

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from mtnlg_model.checkpoint.boxes import Box
    from mtnlg_model.console import Advance

INDEX: Final = ".metadata"
ARGUMENTS: Final = "common.pt"
MOST_INDEX_BYTES: Final = 1 << 30
LEFT_ALONE: Final = ("optimizer.", "chained_", "rng_state", "rerun_state")
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
OTHER_MODELS: Final = ("apply_residual_connection_post_layernorm", "apply_layernorm_1p", "squared_relu")
"""Megatron's switches that make another function of tensors of the same shapes."""
_LAYER = re.compile(r"decoder\.layers\.(?:(\d{1,9})\.)?(.+?)(weight|bias)")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Chunk:
    """A box of a tensor, and the bytes of a file that hold it."""

    box: Box
    file: str
    start: int
    length: int


@dataclass(frozen=True)
class Held:
    """A tensor of the index: its global shape and its chunks. That these tile it `publish` checks."""

    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]


def is_torch_dist(folder: Path) -> bool:
    """Whether the folder is a torch.distributed checkpoint."""
    return (folder / INDEX).exists()


def import_torch_dist(folder: Path, target: Path, tokenizer: Path, heads: int | None, advance: Advance) -> ModelConfig:
    """Write the model in ``folder`` as the checkpoint ``target``, one piece at a time; ``advance(1)`` at every piece.

    ``heads`` is read from the run's arguments, common.pt, where it is None. ``Failure`` where the folder holds no such
    model, or one of another function than this decoder's.
    """
    held = read_index(folder)
    config = _config(folder, held, heads)
    shapes = config.parameter_shapes()
    with new_checkpoint(target, config, tokenizer) as writer:
        for key, tensor in held.items():
            for chunk in tensor.chunks:
                piece = _read(folder, key, chunk)
                for name, box, part in _ours(key, chunk.box, piece):
                    if name not in shapes:
                        raise Failure(f"{folder / INDEX}: {key}: a tensor that this decoder does not have")
                    writer.add(name, shapes[name], "weight", tuple(slice(*bounds) for bounds in box), part)
                advance(1)
    return config


def count_pieces(folder: Path) -> int:
    """Number of pieces that `import_torch_dist` reads."""
    return sum(len(held.chunks) for held in read_index(folder).values())


def read_index(folder: Path) -> dict[str, Held]:
    """The model's tensors, by Megatron's names, with the optimizer's and what is no tensor left out."""
    path = folder / INDEX
    try:
        if path.stat().st_size > MOST_INDEX_BYTES:
            raise Failure(f"{path}: is larger than {MOST_INDEX_BYTES} bytes")
        index = pickle_reader.read(path.read_bytes(), path)
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from None
    tensors, stored = _state(index, "Metadata", "state_dict_metadata", "storage_data", path=path)
    if not isinstance(tensors, dict) or not isinstance(stored, dict):
        raise Failure(f"{path}: no index of a torch.distributed checkpoint")
    places = _places(stored, path)
    held = {}
    for key, entry in tensors.items():
        if not isinstance(key, str) or key.startswith(LEFT_ALONE) or _is_bytes(entry):
            continue
        size, chunks = _state(entry, "TensorStorageMetadata", "size", "chunks", path=path)
        if not isinstance(chunks, list):
            raise Failure(f"{path}: {key}: chunks are no list")
        held[key] = Held(_size(size, path), tuple(_chunk(key, chunk, places, path) for chunk in chunks))
    return held


def _places(stored: dict[Any, Any], path: Path) -> dict[tuple[str, tuple[int, ...]], tuple[str, int, int]]:
    """File, offset and length of every chunk, by the name of its tensor and its own offsets there."""
    places = {}
    for index, info in stored.items():
        name = _state(index, "MetadataIndex", "fqn", path=path)[0]
        # What is no tensor, pickled bytes, has no offset.
        if (offsets := index.state.get("offset")) is None or not isinstance(name, str):
            continue
        file, start, length = _state(info, "_StorageInfo", "relative_path", "offset", "length", path=path)
        if not isinstance(file, str) or not _FILE.fullmatch(file):
            raise Failure(f"{path}: {name}: file {file!r:.60} is no plain name in this folder")
        if type(start) is not int or type(length) is not int or info.state.get("transform_descriptors"):
            raise Failure(f"{path}: {name}: stored in a way that cannot be read")
        places[name, _size(offsets, path)] = (file, start, length)
    return places


def _chunk(key: str, entry: object, places: dict[Any, tuple[str, int, int]], path: Path) -> Chunk:
    offsets, sizes = (
        _size(value, path) for value in _state(entry, "ChunkStorageMetadata", "offsets", "sizes", path=path)
    )
    if (key, offsets) not in places or len(offsets) != len(sizes) or 0 in sizes:
        raise Failure(f"{path}: {key}: no file holds its piece at {list(offsets)}")
    box = tuple((offset, offset + size) for offset, size in zip(offsets, sizes, strict=True))
    return Chunk(box, *places[key, offsets])


def _state(record: object, kind: str, *fields: str, path: Path) -> list[Any]:
    """These fields of a record that would have been an object of the class ``kind``."""
    if isinstance(record, Record) and isinstance(record.what, Global) and record.what.name == kind:
        state = record.state
        if isinstance(state, dict) and all(field in state for field in fields):
            return [state[field] for field in fields]
    raise Failure(f"{path}: no index of a torch.distributed checkpoint: a {kind} is missing or lacks {fields[0]}")


def _is_bytes(entry: object) -> bool:
    return isinstance(entry, Record) and isinstance(entry.what, Global) and entry.what.name == "BytesStorageMetadata"


def _size(value: object, path: Path) -> tuple[int, ...]:
    match value:
        case Record(what=Global("torch", "Size"), arguments=(tuple(sizes),)):
            if all(type(size) is int and 0 <= size < 1 << 62 for size in sizes):
                return sizes
    raise Failure(f"{path}: a size that is none")


def _config(folder: Path, held: dict[str, Held], heads: int | None) -> ModelConfig:
    """The configuration that the shapes and the run's arguments mean."""
    try:
        tokens, positions = (held[key].shape for key in OUTER if key.startswith("embedding."))
        vocabulary, hidden = tokens
        sequence, _ = positions
    except (KeyError, ValueError):
        raise Failure(f"{folder}: no GPT with learned positions: it has no two tables of embeddings") from None
    arguments = _arguments(folder)
    for switch in OTHER_MODELS:
        if arguments.get(switch):
            raise Failure(f"{folder / ARGUMENTS}: {switch} = True: this decoder has it not")
    content = {
        "layers": max((_layers(key, tensor) for key, tensor in held.items()), default=0),
        "hidden": hidden,
        "heads": heads or arguments.get("num_attention_heads"),
        "sequence": sequence,
        "vocabulary": vocabulary,
        "layer_norm_eps": arguments.get("layernorm_epsilon", 1e-5),
    }
    if content["heads"] is None:
        raise Failure(f"{folder}: does not tell the number of attention heads; give --heads N")
    config = validate(content, ModelConfig, str(folder))
    files = {chunk.file for tensor in held.values() for chunk in tensor.chunks}
    refuse_unless_held(config, [folder / file for file in files])
    return config


def _arguments(folder: Path) -> dict[str, Any]:
    """Megatron's arguments of the run; empty where the folder has none."""
    path = folder / ARGUMENTS
    content = TorchFile(path).content if path.is_file() else {}
    arguments = content.get("args") if isinstance(content, dict) else None
    state = arguments.state if isinstance(arguments, Record) else None
    return state if isinstance(state, dict) else {}


def _layers(key: str, held: Held) -> int:
    match = _LAYER.fullmatch(key)
    if match is None:
        return 0
    return int(match[1]) + 1 if match[1] else held.shape[0] if held.shape else 0


def _read(folder: Path, key: str, chunk: Chunk) -> Tensor:
    path = folder / chunk.file
    file = TorchFile(path, chunk.start, chunk.length)
    if not isinstance(file.content, View):
        raise Failure(f"{path}: {key}: is no tensor of numbers that a model is made of")
    tensor = file.tensor(file.content)
    if tensor.numel() != volume(chunk.box):
        raise Failure(f"{path}: {key}: {list(tensor.shape)} where the index means {list(lengths(chunk.box))}")
    return tensor.reshape(lengths(chunk.box))


def _ours(key: str, box: Box, tensor: Tensor) -> list[tuple[str, Box, Tensor]]:
    """The pieces of our tensors, by name, that a piece of Megatron's is: one, or one a layer where they are stacked."""
    match = _LAYER.fullmatch(key)
    if match is None:
        return [(OUTER.get(key, ""), box, tensor)]
    number, module, kind = match.groups()
    inner = INNER.get(module, "") + kind
    if number is not None or not box:
        return [(f"layers.{number}.{inner}", box, tensor)]
    first, last = box[0]
    return [(f"layers.{n}.{inner}", box[1:], tensor[n - first]) for n in range(first, last)]
