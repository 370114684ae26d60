"""Import checkpoints of Megatron-DeepSpeed's pipeline engine, which trained MT-NLG: layer_03-model_00-model_states.pt …

Each file holds one layer of one tensor-parallel rank, a dictionary of tensors, read as data (`torch_file`) without
executing anything. The run's arguments come from mp_rank_00_model_states.pt unless given. Optimizer state is not read.

Rows of query_key_value are q, k, v per head, as in our decoder (Megatron's checkpoint version 2.0 and later).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from mtnlg_model.console import Failure, progress

from .megatron import config_of
from .output import new_checkpoint
from .torch_file import TorchFile, View

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mtnlg_model.config import ModelConfig

ARGUMENTS: Final = "mp_rank_00_model_states.pt"
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


def is_deepspeed(folder: Path) -> bool:
    """Whether the folder has layer files of the pipeline engine."""
    return folder.is_dir() and any(_FILE.fullmatch(path.name) for path in folder.iterdir())


def import_deepspeed(
    folder: Path, target: Path, tokenizer: Path, *, arguments: Mapping[str, Any] | None = None
) -> ModelConfig:
    """Write the layers in ``folder`` as the checkpoint ``target``, one tensor at a time.

    ``arguments`` are the run's, by default those in `ARGUMENTS`. Raises ``Failure`` if a file is missing, has a tensor
    that this decoder does not have, or contradicts another file.
    """
    files = _layer_files(folder)
    config, names = _read_config(folder, files, arguments)
    shapes, count = config.parameter_shapes(), sum(map(len, files.values()))
    with new_checkpoint(target, config, tokenizer) as writer, progress("import", count, "files") as advance:
        for number, ranks in files.items():
            for rank, path in enumerate(ranks):
                file = TorchFile(path)
                for key, view in _views(file).items():
                    name = names[number].get(key)
                    if name is None:
                        raise Failure(f"{path}: {key}: not a tensor of this decoder")
                    part, whole = view.shape, shapes[name]
                    axes = list(zip(part, whole, strict=False))
                    if len(part) != len(whole) or any(total not in {size, size * len(ranks)} for size, total in axes):
                        expected = f"no slice of {list(whole)} on {len(ranks)} ranks"
                        raise Failure(f"{path}: {key}: shape {list(part)}, {expected}")
                    if part != whole or rank == 0:  # every rank has a copy of what is not sliced
                        starts = [rank * size if size < total else 0 for size, total in axes]
                        index = tuple(slice(start, start + size) for start, size in zip(starts, part, strict=True))
                        writer.add(name, whole, "weight", index, file.tensor(view))
                advance(1)
    return config


def _layer_files(folder: Path) -> dict[int, list[Path]]:
    """Files of all tensor-parallel ranks, in order of rank, by pipeline layer number."""
    files: dict[int, dict[int, Path]] = {}
    for path in folder.iterdir():
        if match := _FILE.fullmatch(path.name):
            files.setdefault(int(match[1]), {})[int(match[2] or 0)] = path
    tp = max(len(ranks) for ranks in files.values())
    for number, ranks in files.items():
        if sorted(ranks) != list(range(tp)):
            raise Failure(f"{folder}: layer_{number:02d} has ranks {sorted(ranks)} where others have {tp}")
    return {number: [ranks[rank] for rank in range(tp)] for number, ranks in sorted(files.items())}


def _read_config(
    folder: Path, files: dict[int, list[Path]], arguments: Mapping[str, Any] | None
) -> tuple[ModelConfig, dict[int, dict[str, str]]]:
    """The configuration implied by the tensors' shapes, and our names of their tensors by layer number."""
    names: dict[int, dict[str, str]] = {}
    layers, sizes = 0, dict[str, int]()
    for number, ranks in files.items():
        views = _views(TorchFile(ranks[0]))
        if views.keys() == EMBEDDING.keys() and all(len(view.shape) == 2 for view in views.values()):
            names[number] = EMBEDDING
            tokens, positions = (views[key].shape for key in EMBEDDING)
            sizes |= {"hidden": tokens[1], "vocabulary": tokens[0] * len(ranks), "sequence": positions[0]}
        elif "self_attention.query_key_value.weight" in views:
            names[number] = {
                f"{theirs}.{kind}": f"layers.{layers}.{ours}.{kind}"
                for theirs, ours in LAYER.items()
                for kind in ("weight", "bias")
            }
            layers += 1
        elif views.keys() == FINAL.keys():
            names[number] = FINAL
        else:
            raise Failure(f"{ranks[0]}: not an embedding, layer or final norm: its tensors are {sorted(views)[:4]}")
    return config_of({**sizes, "layers": layers}, folder / ARGUMENTS, arguments), names


def _views(file: TorchFile) -> dict[str, View]:
    views = file.content
    if not isinstance(views, dict) or not all(isinstance(view, View) for view in views.values()):
        raise Failure(f"{file.path}: not a dictionary of tensors")
    if not all(isinstance(key, str) for key in views):
        raise Failure(f"{file.path}: the name of a tensor is not a string")
    return views
