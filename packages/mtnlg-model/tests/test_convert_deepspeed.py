"""Layers as Megatron-DeepSpeed's pipeline engine writes them, opened without running anything that is in them."""

import shutil
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from mtnlg_model.checkpoint.reader import Checkpoint
from mtnlg_model.config import ModelConfig
from mtnlg_model.console import Failure
from mtnlg_model.convert.deepspeed import import_deepspeed
from mtnlg_model.decoder import Decoder

ARGUMENTS = {"num_attention_heads": 4}
CONFIG = ModelConfig(layers=2, hidden=16, heads=4, sequence=8, vocabulary=320)
NORM, QKV, DENSE = "input_layernorm", "self_attention.query_key_value", "self_attention.dense"
AFTER, UP, DOWN = "post_attention_layernorm", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"
OURS = ("attention_norm", "attention.qkv", "attention.out", "mlp_norm", "mlp.up", "mlp.down")


def write(folder: Path, decoder: Decoder, tp: int) -> None:
    """Embedding at 1, layers from 3 and final norm two after the last, as GPTModelPipe numbers them."""
    state = decoder.state_dict()
    for rank in range(tp):
        files: dict[int, dict[str, torch.Tensor]] = {
            1: {
                "word_embeddings.weight": state["embedding.token.weight"].chunk(tp)[rank],
                "position_embeddings.weight": state["embedding.position.weight"],
            },
            3 + CONFIG.layers + 1: {"weight": state["final_norm.weight"], "bias": state["final_norm.bias"]},
        }
        for n in range(CONFIG.layers):
            tensors = files[3 + n] = {}
            for theirs, ours in zip((NORM, QKV, DENSE, AFTER, UP, DOWN), OURS, strict=True):
                for kind in ("weight", "bias"):
                    tensor = state[f"layers.{n}.{ours}.{kind}"]
                    if theirs in {QKV, UP}:
                        tensor = tensor.chunk(tp)[rank]
                    elif theirs in {DENSE, DOWN} and kind == "weight":
                        tensor = tensor.chunk(tp, dim=1)[rank]
                    tensors[f"{theirs}.{kind}"] = tensor
        for number, tensors in files.items():
            copies = {key: tensor.clone() for key, tensor in tensors.items()}
            torch.save(copies, folder / f"layer_{number:02d}-model_{rank:02d}-model_states.pt")


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    folder = tmp_path / "global_step10"
    folder.mkdir()
    write(folder, Decoder(CONFIG), tp=2)
    return folder


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_every_tensor_arrives(tmp_path: Path, tokenizer_path: Path, tp: int) -> None:
    decoder = Decoder(CONFIG, seed=tp).to(torch.bfloat16)
    write(tmp_path, decoder, tp)
    assert import_deepspeed(tmp_path, tmp_path / "out", tokenizer_path, arguments=ARGUMENTS) == CONFIG
    checkpoint = Checkpoint.open(tmp_path / "out")
    checkpoint.verify()
    for name, tensor in decoder.state_dict().items():
        assert torch.equal(checkpoint.tensor(name), tensor), name


def test_nothing_in_a_file_is_run(layers: Path, tmp_path: Path, tokenizer_path: Path, malice: object) -> None:
    path = layers / "layer_03-model_01-model_states.pt"
    torch.save({"a": malice}, path)
    with pytest.raises(Failure, match=r"layer_03-model_01-model_states\.pt: not a dictionary of tensors"):
        import_deepspeed(layers, tmp_path / "out", tokenizer_path, arguments=ARGUMENTS)
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "out").exists()


def test_run_arguments_are_used(layers: Path, tmp_path: Path, tokenizer_path: Path) -> None:
    path = layers / "mp_rank_00_model_states.pt"
    torch.save({"args": Namespace(num_attention_heads=4, layernorm_epsilon=1e-6)}, path)
    assert import_deepspeed(layers, tmp_path / "out", tokenizer_path).layer_norm_eps == 1e-6


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1], "not a dictionary of tensors"),
        ({"a": 1}, "not a dictionary of tensors"),
        ({"a": torch.ones(1)}, r"not an embedding, layer or final norm: its tensors are \['a'\]"),
        (
            {f"{QKV}.weight": torch.ones(5, 16)},
            r"query_key_value.weight: shape \[5, 16\], no slice of \[48, 16\] on 2 ranks",
        ),
        ({f"{QKV}.weight": torch.ones(24, 16), "rotary": torch.ones(1)}, "rotary: not a tensor of this decoder"),
        ({f"{QKV}.weight": torch.ones(24, 16)}, "elements are missing|tensors: "),
    ],
)
def test_prompt_beyond_the_context_fails_in_one_line(
    layers: Path, tmp_path: Path, tokenizer_path: Path, content: object, message: str
) -> None:
    torch.save(content, layers / "layer_03-model_00-model_states.pt")
    with pytest.raises(Failure, match=message):
        import_deepspeed(layers, tmp_path / "out", tokenizer_path, arguments=ARGUMENTS)


def test_a_missing_rank_or_a_damaged_file_is_named(layers: Path, tmp_path: Path, tokenizer_path: Path) -> None:
    path = layers / "layer_04-model_01-model_states.pt"
    for content in (b"", path.read_bytes()[:500], b"PK\3\4" + bytes(100)):
        path.write_bytes(content)
        with pytest.raises(Failure, match=r"layer_04-model_01.* not a torch\.save file, or damaged"):
            import_deepspeed(layers, tmp_path / "out", tokenizer_path, arguments=ARGUMENTS)
    shutil.copyfile(layers / "layer_01-model_00-model_states.pt", path)
    with pytest.raises(
        Failure, match=r"layer_04-model_01-model_states\.pt: word_embeddings\.weight: not a tensor of this decoder"
    ):
        import_deepspeed(layers, tmp_path / "out", tokenizer_path, arguments=ARGUMENTS)
    path.unlink()
    with pytest.raises(Failure, match=r"layer_04 has ranks \[0\] where others have 2"):
        import_deepspeed(layers, tmp_path / "out", tokenizer_path, arguments=ARGUMENTS)
