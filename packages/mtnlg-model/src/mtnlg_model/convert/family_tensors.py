"""Our tensors as those of a family in Hugging Face's format, and back. Names differ, and these orders:

qkv       ours has q, k and v by kv head, as Megatron's; Llama's are three tensors, GPT-2's all q, all k, all v
linear    GPT-2 stores [inputs, outputs]
padding   rows of the vocabulary that are no tokens are in ours alone
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from mtnlg_model.config import ModelConfig
    from mtnlg_model.families.family import Family


def their_shapes(family: Family, config: ModelConfig, name: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the family's tensors that our tensor ``name`` is made of. Raises ``KeyError`` for others."""
    is_inner = name.startswith("layers.")
    shape = config.layer_shapes()[name.split(".", 2)[2]] if is_inner else config.outer_shapes()[name]
    keys = family.names(name)
    rows = _qkv_rows(config) if len(keys) > 1 else [config.tokens if _has_padding(name) else shape[0]]
    shapes = [(count, *shape[1:]) for count in rows]
    return {key: size[::-1] if family.transposed and is_inner else size for key, size in zip(keys, shapes, strict=True)}


def to_theirs(family: Family, config: ModelConfig, name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Our tensor ``name`` as the family stores it, contiguous."""
    shapes = their_shapes(family, config, name)
    transposed = family.transposed and name.startswith("layers.") and tensor.dim() > 1
    if ".qkv." in name and not family.ordered_by_head:
        groups = torch.split(tensor.view(config.kv_heads, -1, *tensor.shape[1:]), _group_rows(config), dim=1)
        tensor = torch.cat([part.flatten(0, 1) for part in groups])
    rows = [shape[-1 if transposed else 0] for shape in shapes.values()]
    parts = torch.split(tensor[: sum(rows)], rows)
    return {key: (part.T if transposed else part).contiguous() for key, part in zip(shapes, parts, strict=True)}


def from_theirs(family: Family, config: ModelConfig, name: str, tensors: Sequence[Tensor]) -> Tensor:
    """Our tensor ``name``, contiguous, of the family's: inverse of `to_theirs`, with padding of zeros."""
    transposed = family.transposed and name.startswith("layers.")
    tensor = torch.cat([part.T if transposed and part.dim() > 1 else part for part in tensors])
    if ".qkv." in name and not family.ordered_by_head:
        parts = torch.split(tensor, _qkv_rows(config))
        tensor = torch.cat([part.view(config.kv_heads, -1, *part.shape[1:]) for part in parts], dim=1).flatten(0, 1)
    if config.vocabulary_padding and _has_padding(name):
        tensor = torch.cat([tensor, tensor.new_zeros(config.vocabulary_padding, tensor.shape[1])])
    return tensor.contiguous()


def _has_padding(name: str) -> bool:
    return name in {"embedding.token.weight", "head.weight"}


def _qkv_rows(config: ModelConfig) -> list[int]:
    """Rows of all q, all k and all v."""
    return [rows * config.kv_heads for rows in _group_rows(config)]


def _group_rows(config: ModelConfig) -> list[int]:
    """Rows of q, k and v of one kv head."""
    return [config.heads // config.kv_heads * config.head_size, config.head_size, config.head_size]
