"""Import and export of Hugging Face GPT-2 folders, one tensor at a time: memory is a few tensors, never the model.

GPT-2 stores linear layers as Conv1D, [inputs, outputs], and qkv as q | k | v over all heads. Our decoder stores
[outputs, inputs] and q, k, v per head, as Megatron does. Otherwise only the names differ.
"""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from mtnlg_model.checkpoint.manifest import TOKENIZER
from mtnlg_model.checkpoint.tensor_file import DTYPES, TensorFile, TensorSpec, write_tensor_file
from mtnlg_model.config import ModelConfig
from mtnlg_model.console import Failure
from mtnlg_model.files import read_small, write_json
from mtnlg_model.settings import validate
from mtnlg_model.tokenizer import Tokenizer

from .output import new_checkpoint, new_folder, require_file_size

if TYPE_CHECKING:
    from torch import Tensor

    from mtnlg_model.checkpoint.reader import Checkpoint
    from mtnlg_model.console import Advance

OUTER: Final = {
    "embedding.token.weight": "transformer.wte.weight",
    "embedding.position.weight": "transformer.wpe.weight",
    "final_norm.weight": "transformer.ln_f.weight",
    "final_norm.bias": "transformer.ln_f.bias",
}
INNER: Final = {
    "attention_norm": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "mlp_norm": "ln_2",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}
IGNORED_SUFFIXES: Final = (".attn.bias", ".attn.masked_bias", "lm_head.weight")
"""Causal masks in older folders, and the head, which is tied to the token embedding."""
INDEX = "model.safetensors.index.json"
SHARD_BYTES = 5 << 30
CONFIG_BYTES = 1 << 20
INDEX_BYTES = 1 << 26


class Gpt2Config(BaseModel):
    """The fields of a GPT-2 config.json that decide the model; others are ignored."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    model_type: str
    n_layer: int
    n_embd: int
    n_head: int
    n_positions: int
    vocab_size: int
    n_inner: int | None = None
    activation_function: str = "gelu_new"
    resid_pdrop: float = 0.1
    attn_pdrop: float = 0.1
    initializer_range: float = 0.02
    layer_norm_epsilon: float = 1e-5
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    add_cross_attention: bool = False
    tie_word_embeddings: bool = True


class _Index(BaseModel):
    weight_map: dict[str, str]


def gpt2_name(name: str) -> str:
    """GPT-2's name of our tensor ``name``."""
    if name in OUTER:
        return OUTER[name]
    _, number, rest = name.split(".", 2)
    module, kind = rest.rsplit(".", 1)
    return f"transformer.h.{number}.{INNER[module]}.{kind}"


def to_gpt2(name: str, tensor: Tensor, heads: int) -> Tensor:
    """Our tensor ``name`` as GPT-2 stores it, contiguous."""
    if ".qkv." in name:
        tensor = _swap_row_groups(tensor, heads, 3)
    return (tensor.T if _is_linear(name) else tensor).contiguous()


def from_gpt2(name: str, tensor: Tensor, heads: int) -> Tensor:
    """Inverse of `to_gpt2`."""
    tensor = tensor.T if _is_linear(name) else tensor
    if ".qkv." in name:
        tensor = _swap_row_groups(tensor, 3, heads)
    return tensor.contiguous()


def export_gpt2(checkpoint: Checkpoint, folder: Path, advance: Advance) -> None:
    """Write the weights as the GPT-2 folder ``folder``, which must not exist; ``advance(1)`` per tensor.

    Writes safetensors shards with their index, config.json and the tokenizer, which ``AutoModelForCausalLM`` and
    ``AutoTokenizer`` open.
    """
    config = checkpoint.config
    names = {gpt2_name(name): name for name in checkpoint.names}
    specs = {key: _gpt2_spec(checkpoint, name) for key, name in names.items()}

    def tensor(key: str) -> Tensor:
        advance(1)
        return to_gpt2(names[key], checkpoint.tensor(names[key]), config.heads)

    shards = _split_into_shards(specs)
    with new_folder(folder) as partial:
        files = [f"model-{n + 1:05d}-of-{len(shards):05d}.safetensors" for n in range(len(shards))]
        files = files if len(files) > 1 else ["model.safetensors"]
        for file, shard in zip(files, shards, strict=True):
            write_tensor_file(partial / file, {key: specs[key] for key in shard}, tensor)
        if len(files) > 1:
            weight_map = {key: file for file, shard in zip(files, shards, strict=True) for key in shard}
            total = sum(_bytes(spec) for spec in specs.values())
            write_json(partial / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})
        tokenizer = Tokenizer(checkpoint.tokenizer_path)
        dtype = str(specs["transformer.wte.weight"].dtype)
        write_json(partial / "config.json", _config_json(config, dtype, tokenizer.eod))
        write_json(partial / "tokenizer_config.json", _tokenizer_json(config, tokenizer.eod_token))
        shutil.copyfile(checkpoint.tokenizer_path, partial / TOKENIZER)


def import_gpt2(folder: Path, target: Path, advance: Advance) -> None:
    """Write the GPT-2 folder ``folder`` as the checkpoint ``target``, which must not exist; ``advance(1)`` per tensor.

    Raises ``Failure`` if it is not a GPT-2 folder, or computes another function than this decoder.
    """
    config = read_config(folder)
    if not (folder / TOKENIZER).is_file():
        raise Failure(f"{folder}: no {TOKENIZER}; save the tokenizer as a fast one")
    files = _files_by_tensor(folder)
    require_file_size(config, {file.path for file in files.values()})
    if config.tensor_count > 4 * (len(files) + 16):  # no list of names as long as someone claims; one that lacks few is
        raise Failure(f"{folder}: {len(files):,} tensors where config.json claims {config.tensor_count:,}")
    expected = {gpt2_name(name) for name in config.parameter_shapes()}
    for key in files:
        if key not in expected and f"transformer.{key}" not in expected and not key.endswith(IGNORED_SUFFIXES):
            raise Failure(f"{folder}: {key:.100}: GPT-2 has no such tensor")
    with new_checkpoint(target, config, _own_file(folder, TOKENIZER)) as writer:
        for name, shape in config.parameter_shapes().items():
            tensor = from_gpt2(name, _read_tensor(folder, files, name, shape), config.heads)
            writer.add(name, shape, "weight", None, tensor)
            advance(1)


def read_config(folder: Path) -> ModelConfig:
    """The decoder's configuration of a GPT-2 folder. Raises ``Failure`` for what this decoder does not support."""
    path = folder / "config.json"
    try:
        gpt2 = Gpt2Config.model_validate_json(read_small(_own_file(folder, path.name), CONFIG_BYTES))
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}; is it a Hugging Face folder?") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise Failure(
            f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}; only GPT-2 can be imported"
        ) from None
    supported = {
        "model_type": ("gpt2",),
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
        "n_inner": (None, 4 * gpt2.n_embd),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
        "tie_word_embeddings": (True,),
    }
    for field, values in supported.items():
        if getattr(gpt2, field) not in values:
            raise Failure(f"{path}: {field} = {getattr(gpt2, field)!s:.100}: this decoder supports only {values[0]}")
    content = {
        "layers": gpt2.n_layer,
        "hidden": gpt2.n_embd,
        "heads": gpt2.n_head,
        "sequence": gpt2.n_positions,
        "vocabulary": gpt2.vocab_size,
        "dropout": gpt2.resid_pdrop,
        "attention_dropout": gpt2.attn_pdrop,
        "init_std": gpt2.initializer_range,
        "layer_norm_eps": gpt2.layer_norm_epsilon,
    }
    return validate(content, ModelConfig, str(path))


def _swap_row_groups(tensor: Tensor, outer: int, inner: int) -> Tensor:
    """Reorder rows from (outer, inner, rest) to (inner, outer, rest)."""
    rest = tensor.shape[0] // (outer * inner)
    return tensor.reshape(outer, inner, rest, *tensor.shape[1:]).transpose(0, 1).flatten(0, 2)


def _is_linear(name: str) -> bool:
    return name.endswith(".weight") and (".attention." in name or ".mlp." in name)


def _gpt2_spec(checkpoint: Checkpoint, name: str) -> TensorSpec:
    shape = checkpoint.shape(name)
    return TensorSpec(checkpoint.dtype(name), shape[::-1] if _is_linear(name) else shape)


def _bytes(spec: TensorSpec) -> int:
    return math.prod(spec.shape) * spec.dtype.itemsize


def _split_into_shards(specs: dict[str, TensorSpec]) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    size = 0
    for key, spec in specs.items():
        if shards[-1] and size + _bytes(spec) > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(key)
        size += _bytes(spec)
    return shards


def _config_json(config: ModelConfig, dtype: str, eod: int) -> dict[str, object]:
    gpt2 = Gpt2Config(
        model_type="gpt2",
        n_layer=config.layers,
        n_embd=config.hidden,
        n_head=config.heads,
        n_positions=config.sequence,
        vocab_size=config.vocabulary,
        resid_pdrop=config.dropout,
        attn_pdrop=config.attention_dropout,
        initializer_range=config.std,
        layer_norm_epsilon=config.layer_norm_eps,
    )
    return {
        "architectures": ["GPT2LMHeadModel"],
        **gpt2.model_dump(),
        "embd_pdrop": config.dropout,
        "bos_token_id": eod,
        "eos_token_id": eod,
        "torch_dtype": dtype.removeprefix("torch."),
    }


def _tokenizer_json(config: ModelConfig, eod: str) -> dict[str, object]:
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token"), eod)
    return {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": config.sequence, **special}


def _files_by_tensor(folder: Path) -> dict[str, TensorFile]:
    """The safetensors file of each tensor, by GPT-2's name."""
    index = folder / INDEX
    names = ["model.safetensors"]
    if index.exists():
        try:
            weight_map = _Index.model_validate_json(read_small(_own_file(folder, INDEX), INDEX_BYTES)).weight_map
        except ValidationError as error:
            raise Failure(f"{index}: {error.errors(include_url=False)[0]['msg']}") from None
        names = sorted(set(weight_map.values()))
    files: dict[str, TensorFile] = {}
    for name in names:
        if "/" in name or not (folder / name).is_file():
            raise Failure(f"{folder}: {name:.100}: no such weights; only safetensors are read, never a pickled .bin")
        file = TensorFile(_own_file(folder, name))
        files |= dict.fromkeys(file.entries, file)
    return files


def _own_file(folder: Path, name: str) -> Path:
    """A file of the folder; of links, whose target could be a secret, only those of Hugging Face's cache are followed.

    In it snapshots/REVISION/FILE is a link to blobs/DIGEST of the same model. Whoever opens the path follows no other.
    """
    path, place = folder / name, folder.resolve()
    if path.is_symlink() and place.parent.name == "snapshots":
        blob = Path(os.path.normpath(place / path.readlink()))
        if blob.parent == place.parent.parent / "blobs":
            return blob
    return path


def _read_tensor(folder: Path, files: dict[str, TensorFile], name: str, shape: tuple[int, ...]) -> Tensor:
    key = gpt2_name(name)
    if key not in files:  # OpenAI's own files have no prefix
        key = key.removeprefix("transformer.")
    if key not in files:
        raise Failure(f"{folder}: {gpt2_name(name)}: no such tensor")
    stored, expected = files[key].entries[key], shape[::-1] if _is_linear(name) else shape
    if stored.dtype not in DTYPES or stored.shape != expected:
        raise Failure(f"{folder}: {key}: {stored.dtype} {list(stored.shape)} where config.json says {list(expected)}")
    tensor = torch.empty(expected, dtype=DTYPES[stored.dtype])
    files[key].read(key, [(0, tensor.numel())], tensor)
    return tensor
