"""Files of models: torch.save's and its pickles, safetensors, manifests, tokenizers, configurations and indices."""

from __future__ import annotations

import zipfile
from contextlib import suppress
from pathlib import Path

import torch
from harness import scratch

from mtnlg_model.checkpoint.manifest import Manifest, check_manifest, parse_json, parse_manifest, to_json
from mtnlg_model.checkpoint.tensor_file import DTYPES, TensorFile
from mtnlg_model.console import Failure
from mtnlg_model.convert.config_json import read_config
from mtnlg_model.convert.deepspeed import import_deepspeed
from mtnlg_model.convert.huggingface import INDEX, import_huggingface
from mtnlg_model.convert.torch_dist import import_torch_dist
from mtnlg_model.convert.torch_file import TorchFile, View
from mtnlg_model.tokenizer import Tokenizer

TEXT = "the fox\tjumps over 12 dogs — naïve 漢字 \U0001f98a"
NOT_THERE = Path("/nowhere/tokenizer.json")
"""Imports end before they write anything: their tokenizer, which is read first, is not there."""


def torch_file(data: bytes) -> None:
    """A file of torch.save; other bytes are the pickle within one, of whatever importer asks for it."""
    path = scratch("layer_00-model_states.pt")
    if not data.startswith(b"PK"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x/data.pkl", data)
            archive.writestr("x/data/0", bytes(64))
    else:
        path.write_bytes(data)
    with suppress(Failure):
        content = TorchFile(path).content
        for value in content.values() if isinstance(content, dict) else [content]:
            if isinstance(value, View):
                file = TorchFile(path)
                assert file.tensor(value).shape == torch.Size(value.shape)
    with suppress(Failure):
        import_deepspeed(path.parent, scratch("out"), NOT_THERE, arguments={"num_attention_heads": 2})


def torch_dist(data: bytes) -> None:
    """The index of a torch.distributed checkpoint, and the arguments beside it."""
    index, _, arguments = data.partition(b"--arguments--")
    folder = scratch("iter")
    folder.mkdir(exist_ok=True)
    (folder / ".metadata").write_bytes(index)
    (folder / "__0_0.distcp").write_bytes(bytes(4096))
    with zipfile.ZipFile(folder / "common.pt", "w") as archive:
        archive.writestr("x/data.pkl", arguments)
    for given in ({"num_attention_heads": 2}, None):
        with suppress(Failure):
            import_torch_dist(folder, scratch("out"), NOT_THERE, arguments=given)


def safetensors(data: bytes) -> None:
    """A safetensors file, of which all is read that its header lists."""
    path = scratch("x.safetensors")
    path.write_bytes(data)
    with suppress(Failure):
        file = TensorFile(path)
        for key, entry in file.entries.items():
            if entry.dtype in DTYPES:
                tensor = torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
                file.read(key, [(0, tensor.numel())], tensor)


def manifest(data: bytes) -> None:
    """A manifest, as it is and as if its checksum were right."""
    folder = scratch("step-1")
    with suppress(Failure):
        parse_manifest(folder, data)
    with suppress(Failure):
        parsed = parse_json(data, Manifest, folder)
        check_manifest(parsed, folder)
        assert parse_manifest(folder, to_json(parsed).encode()).tensors == parsed.tensors


def tokenizer(data: bytes) -> None:
    """A tokenizer.json, by which a text becomes tokens and text again."""
    path = scratch("tokenizer.json")
    path.write_bytes(data)
    with suppress(Failure):
        loaded = Tokenizer(path)
        loaded.decode(loaded.encode(TEXT))


def config(data: bytes) -> None:
    """config.json of a Hugging Face folder, and the index of its weights."""
    folder = scratch("gpt2")
    folder.mkdir(exist_ok=True)
    text, _, index = data.partition(b"--index--")
    (folder / "config.json").write_bytes(text)
    (folder / INDEX).write_bytes(index)
    (folder / "model.safetensors").write_bytes(bytes(64))
    (folder / "tokenizer.json").write_bytes(b"{}")
    with suppress(Failure):
        shapes = read_config(folder).outer_shapes()
        assert all(size > 0 for shape in shapes.values() for size in shape)
    with suppress(Failure):
        import_huggingface(folder, scratch("out"))


TARGETS = {
    "torch_file": torch_file,
    "torch_dist": torch_dist,
    "safetensors": safetensors,
    "manifest": manifest,
    "tokenizer": tokenizer,
    "config": config,
}
