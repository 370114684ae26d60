"""Convert our tensors to those of a Hugging Face family and back. Names differ, and so do these layouts:

qkv       ours is q, k, v of each kv head, as Megatron's; Llama has three tensors; GPT-2 has all q, all k, all v
pairs     the two values of q or k that are rotated together are neighbours in GPT-J, half the rotary size apart in ours
norms     StableLM has one tensor for the q or k of each head, ours one for all
packed    Phi-3's gate_up_proj is our gate, then our up
linear    GPT-2 stores [inputs, outputs]
padding   only ours has padding rows of the vocabulary, which are no tokens

So several tensors of theirs may correspond to several of ours: a `Family.group`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mtnlg_model.config import VOCABULARY_TENSORS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from mtnlg_model.config import ModelConfig
    from mtnlg_model.families.family import Family


def their_shapes(family: Family, config: ModelConfig, name: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the family's tensors in the group of our tensor. Raises ``KeyError`` if it has no group."""
    ours, theirs = family.group(name)
    shapes = [config.parameter_shape(each) for each in ours]
    total = sum(shape[0] for shape in shapes) - _padding(config, name)
    parts = len(theirs)
    rows = _qkv_rows(config) if parts > 1 and ".qkv." in name else [total // parts] * parts
    sizes = [(count, *shapes[0][1:]) for count in rows]
    flip = family.transposed and name.startswith("layers.")
    return {key: size[::-1] if flip else size for key, size in zip(theirs, sizes, strict=True)}


def to_theirs(family: Family, config: ModelConfig, name: str, *tensors: Tensor) -> dict[str, Tensor]:
    """The family's tensors, contiguous, from ours: all of the group of ``name``, in the group's order."""
    tensor = torch.cat(tensors) if len(tensors) > 1 else tensors[0]
    shapes = their_shapes(family, config, name)
    transposed = family.transposed and name.startswith("layers.") and tensor.dim() > 1
    if ".qkv." in name and family.interleaved:
        tensor = _reordered(config, tensor, _pairs(config).argsort())
    if ".qkv." in name and not family.ordered_by_head:
        groups = torch.split(tensor.view(config.kv_heads, -1, *tensor.shape[1:]), _group_rows(config), dim=1)
        tensor = torch.cat([part.flatten(0, 1) for part in groups])
    rows = [shape[-1 if transposed else 0] for shape in shapes.values()]
    parts = torch.split(tensor[: sum(rows)], rows)
    return {key: (part.T if transposed else part).contiguous() for key, part in zip(shapes, parts, strict=True)}


def from_theirs(family: Family, config: ModelConfig, name: str, tensors: Sequence[Tensor]) -> Tensor:
    """Our tensor ``name``, contiguous, from the family's in its group: inverse of `to_theirs`, padded with zeros."""
    transposed = family.transposed and name.startswith("layers.")
    tensor = torch.cat([part.T if transposed and part.dim() > 1 else part for part in tensors])
    if ".qkv." in name and not family.ordered_by_head:
        parts = torch.split(tensor, _qkv_rows(config))
        tensor = torch.cat([part.view(config.kv_heads, -1, *part.shape[1:]) for part in parts], dim=1).flatten(0, 1)
    if ".qkv." in name and family.interleaved:
        tensor = _reordered(config, tensor, _pairs(config))
    if padding := _padding(config, name):
        tensor = torch.cat([tensor, tensor.new_zeros(padding, *tensor.shape[1:])])
    ours, _ = family.group(name)
    if len(ours) > 1:
        rows = [config.parameter_shape(each)[0] for each in ours]
        tensor = torch.split(tensor, rows)[ours.index(name)]
    return tensor.contiguous()


def _padding(config: ModelConfig, name: str) -> int:
    return config.vocabulary_padding if name in VOCABULARY_TENSORS else 0


def _pairs(config: ModelConfig) -> Tensor:
    """Index of our values of a q or k head, [D], in a family that stores the two values of a pair side by side."""
    order_D = torch.arange(config.head_size)
    return torch.cat((order_D[: config.rotary_size].view(-1, 2).t().flatten(), order_D[config.rotary_size :]))


def _reordered(config: ModelConfig, tensor: Tensor, order_D: Tensor) -> Tensor:
    """Our qkv with the rows of each q and k head permuted by ``order_D``."""
    heads = tensor.view(config.kv_heads, -1, config.head_size, *tensor.shape[1:])
    return torch.cat((heads[:, :-1].index_select(2, order_D), heads[:, -1:]), dim=1).flatten(0, 2)


def _qkv_rows(config: ModelConfig) -> list[int]:
    """Rows of all q, all k and all v."""
    return [rows * config.kv_heads for rows in _group_rows(config)]


def _group_rows(config: ModelConfig) -> list[int]:
    """Rows of q, k and v of one kv head."""
    return [config.heads // config.kv_heads * config.head_size, config.head_size, config.head_size]
