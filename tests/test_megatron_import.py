"""A checkpoint written by Megatron-Core at tp 2 is imported byte for byte."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models

from megatron_ranks import HEADS, HIDDEN, LAYERS, SEQUENCE, VOCABULARY
from mtnlg_model.checkpoint.reader import Checkpoint
from mtnlg_model.config import ModelConfig
from mtnlg_model.convert.torch_dist import import_torch_dist

CONFIG = ModelConfig(layers=LAYERS, hidden=HIDDEN, heads=HEADS, sequence=SEQUENCE, vocabulary=VOCABULARY)
OURS = {
    "embedding.word_embeddings": "embedding.token",
    "embedding.position_embeddings": "embedding.position",
    "decoder.final_layernorm": "final_norm",
    "decoder.layers": "layers",
    "input_layernorm": "attention_norm",
    "self_attention.linear_qkv": "attention.qkv",
    "self_attention.linear_proj": "attention.out",
    "pre_mlp_layernorm": "mlp_norm",
    "mlp.linear_fc1": "mlp.up",
    "mlp.linear_fc2": "mlp.down",
}
ROWS, COLUMNS = ("token.weight", "qkv.weight", "qkv.bias", "up.weight", "up.bias"), ("out.weight", "down.weight")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("megatron")
    script = str(Path(__file__).with_name("megatron_ranks.py"))
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", script, str(folder), str(rank), "2"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(outputs)
    return folder


def test_every_tensor_of_two_tensor_parallel_ranks_is_imported(run: Path, tmp_path: Path) -> None:
    tokenizer = tmp_path / "tokenizer.json"
    Tokenizer(models.BPE()).save(str(tokenizer))
    assert import_torch_dist(run / "iter_0000010", tmp_path / "ours", tokenizer, None, lambda *_: None) == CONFIG
    checkpoint = Checkpoint.open(tmp_path / "ours")
    checkpoint.verify()
    first, second = (load_file(run / f"rank-{rank}.safetensors") for rank in range(2))
    names = {key: our_name(key) for key in first}
    assert set(names.values()) == set(checkpoint.names)
    for key, ours in names.items():
        axis = 0 if ours.endswith(ROWS) else 1 if ours.endswith(COLUMNS) else None
        expected = first[key] if axis is None else torch.cat([first[key], second[key]], dim=axis)
        assert torch.equal(checkpoint.tensor(ours), expected), ours


def our_name(theirs: str) -> str:
    for part, ours in OURS.items():
        theirs = theirs.replace(part, ours)
    return theirs
