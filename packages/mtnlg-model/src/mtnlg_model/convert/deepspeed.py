"""Checkpoints of Megatron-DeepSpeed's pipeline engine, the lineage of MT-NLG: layer_03-model_00-model_states.pt …

One file a layer and tensor-parallel rank, each a dictionary of tensors in torch's own format, read as data
(`torchfile`), so nothing of it runs. The run's other files, arguments and optimizer state, are left alone: the number
of heads has to be told.

Rows of query_key_value are q, k, v head by head, ours as well (Megatron's checkpoint version 2.0 and later).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from mtnlg_model.config import ModelConfig
from mtnlg_model.console import Failure
from mtnlg_model.settings import validate

from .output import new_checkpoint
from .torch_file import TorchFile, View

if TYPE_CHECKING:
    from pathlib import Path

    from mtnlg_model.console import Advance

_FILE = re.compile(r"layer_(\d+)(?:-model_(\d+))?-model_states\.pt")

EMBEDDING: Final = {
    "word_embeddings.weight": "embedding.token.weight",
    "position_embeddings.weight": "embedding.position.weight",
}
LAYER: Final = {
    "input_layernorm": "attention_norm",
    "self_attention.query_key_value": "attention.qkv",
    "self_attention.dense": "attention.out",
    "post_attention_layernorm": "mlp_norm",
    "mlp.dense_h_to_4h": "mlp.up",
    "mlp.dense_4h_to_h": "mlp.down",
}
FINAL: Final = {"weight": "final_norm.weight", "bias": "final_norm.bias"}
CUT_ROWS: Final = ("embedding.token.weight", "qkv.weight", "qkv.bias", "up.weight", "up.bias")
CUT_COLUMNS: Final = ("out.weight", "down.weight")
"""How tensor parallelism cuts a tensor; every rank holds the whole of all others."""


def is_pipeline(folder: Path) -> bool:
    """Whether the folder holds a pipeline engine's layers."""
    return folder.is_dir() and any(_FILE.fullmatch(path.name) for path in folder.iterdir())


def import_pipeline(folder: Path, target: Path, tokenizer: Path, heads: int, advance: Advance) -> ModelConfig:
    """Write the layers in ``folder`` as the checkpoint ``target``, one tensor at a time; ``advance(1)`` at every file.

    ``Failure`` where a file is missing, holds anything but the tensors of this decoder, or does not fit the others.
    """
    ranks = _files(folder)
    config, names = _survey(folder, ranks, heads)
    shapes = config.parameter_shapes()
    with new_checkpoint(target, config, tokenizer) as writer:
        for number, files in ranks.items():
            for rank, path in enumerate(files):
                file = TorchFile(path)
                for theirs, view in _views(file).items():
                    name = names[number].get(theirs)
                    if name is None:
                        raise Failure(f"{path}: {theirs}: a tensor that this decoder does not have")
                    cut = _cut(name, shapes[name], rank, len(files))
                    if cut is None:
                        continue
                    expected = tuple(c.stop - c.start for c in cut)
                    if view.shape != expected:
                        raise Failure(f"{path}: {theirs}: shape {list(view.shape)} where {list(expected)} fits")
                    writer.add(name, shapes[name], "weight", cut, file.tensor(view))
                advance(1)
    return config


def count_files(folder: Path) -> int:
    """Number of files that `import_pipeline` reads."""
    return sum(len(files) for files in _files(folder).values())


Ranks = dict[int, list["Path"]]


def _files(folder: Path) -> Ranks:
    found: dict[int, dict[int, Path]] = {}
    for path in folder.iterdir():
        if match := _FILE.fullmatch(path.name):
            found.setdefault(int(match[1]), {})[int(match[2] or 0)] = path
    tp = max(len(files) for files in found.values())
    for number, files in found.items():
        if sorted(files) != list(range(tp)):
            raise Failure(f"{folder}: layer_{number:02d} has ranks {sorted(files)} where others have {tp}")
    return {number: [files[rank] for rank in range(tp)] for number, files in sorted(found.items())}


def _survey(folder: Path, ranks: Ranks, heads: int) -> tuple[ModelConfig, dict[int, dict[str, str]]]:
    """The configuration that the tensors' shapes mean, and our name for each tensor of each numbered file."""
    names: dict[int, dict[str, str]] = {}
    layers, sizes = 0, dict[str, int]()
    for number, files in ranks.items():
        held = _views(TorchFile(files[0]))
        if held.keys() == EMBEDDING.keys() and all(len(table.shape) == 2 for table in held.values()):
            names[number] = EMBEDDING
            tokens, positions = (held[key].shape for key in EMBEDDING)
            sizes |= {"hidden": tokens[1], "vocabulary": tokens[0] * len(files), "sequence": positions[0]}
        elif "self_attention.query_key_value.weight" in held:
            names[number] = {
                f"{theirs}.{kind}": f"layers.{layers}.{ours}.{kind}"
                for theirs, ours in LAYER.items()
                for kind in ("weight", "bias")
            }
            layers += 1
        elif held.keys() == FINAL.keys():
            names[number] = FINAL
        else:
            raise Failure(f"{files[0]}: neither embedding, layer nor final norm: it holds {sorted(held)[:4]}")
    config = validate({**sizes, "layers": layers, "heads": heads}, ModelConfig, str(folder))
    return config, names


def _views(file: TorchFile) -> dict[str, View]:
    held = file.content
    if not isinstance(held, dict) or not all(isinstance(view, View) for view in held.values()):
        raise Failure(f"{file.path}: is no dictionary of tensors")
    return held


def _cut(name: str, shape: tuple[int, ...], rank: int, tp: int) -> tuple[slice, ...] | None:
    """The box that a rank's tensor is of the whole; None where rank 0 has written all of it."""
    box = [slice(0, size) for size in shape]
    if not name.endswith(CUT_ROWS + CUT_COLUMNS):
        return tuple(box) if rank == 0 else None
    axis = 0 if name.endswith(CUT_ROWS) else 1
    part = shape[axis] // tp
    box[axis] = slice(rank * part, (rank + 1) * part)
    return tuple(box)
