"""Megatron-LM's torch_dist folders, as torch.distributed.checkpoint itself writes them; nothing in them runs."""

import argparse
import pickle
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed.checkpoint.state_dict_saver import save

from mtnlg_model.checkpoint.reader import Checkpoint
from mtnlg_model.config import ModelConfig
from mtnlg_model.console import Failure
from mtnlg_model.convert.torch_dist import INNER, OUTER, import_torch_dist
from mtnlg_model.decoder import Decoder

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")

CONFIG = ModelConfig(layers=3, hidden=16, heads=4, sequence=8, vocabulary=320)


def megatrons(decoder: Decoder, *, stacked: bool) -> dict[str, Any]:
    """The model by Megatron-Core's names, with what else lies in such a folder."""
    ours = decoder.state_dict()
    tensors: dict[str, Any] = {theirs: ours[name] for theirs, name in OUTER.items()}
    for theirs, name in INNER.items():
        for kind in ("weight", "bias"):
            layers = [ours[f"layers.{n}.{name}{kind}"] for n in range(CONFIG.layers)]
            if stacked:
                tensors[f"decoder.layers.{theirs}{kind}"] = torch.stack(layers)
            else:
                tensors |= {f"decoder.layers.{n}.{theirs}{kind}": tensor for n, tensor in enumerate(layers)}
    moments = {f"optimizer.state.exp_avg.{key}": torch.zeros_like(tensor) for key, tensor in tensors.items()}
    moments["chained_0.optimizer.state.step"] = torch.zeros(1)
    return {
        **tensors,
        **moments,
        "rng_state/shard_0_1": b"rng",
        "decoder.layers.mlp.linear_fc1._extra_state/shard_0_3": b"",
    }


def write(folder: Path, tensors: dict[str, Any], **arguments: object) -> Path:
    save(tensors, checkpoint_id=folder)
    torch.save({"args": argparse.Namespace(**arguments), "iteration": 10}, folder / "common.pt")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "iter_0000010", megatrons(Decoder(CONFIG, seed=3), stacked=True), num_attention_heads=4)


@pytest.mark.parametrize("stacked", [True, False], ids=["layers stacked", "layers numbered"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_tensor_arrives(tmp_path: Path, tokenizer_path: Path, stacked: bool, dtype: torch.dtype) -> None:
    decoder = Decoder(CONFIG, seed=3).to(dtype)
    folder = write(
        tmp_path / "iter_0000010", megatrons(decoder, stacked=stacked), num_attention_heads=4, layernorm_epsilon=1e-6
    )
    config = import_torch_dist(folder, tmp_path / "out", tokenizer_path)
    assert config == CONFIG.model_copy(update={"layer_norm_eps": 1e-6})
    checkpoint = Checkpoint.open(tmp_path / "out")
    checkpoint.verify()
    for name, tensor in decoder.state_dict().items():
        assert torch.equal(checkpoint.tensor(name), tensor), name


def test_nothing_in_index_arguments_or_pieces_is_run(
    folder: Path, tmp_path: Path, tokenizer_path: Path, malice: object
) -> None:
    torch.save({"args": malice}, folder / "common.pt")
    with pytest.raises(Failure, match=r"no arguments of the run, .*; give them as --config FILE"):
        import_torch_dist(folder, tmp_path / "out", tokenizer_path)
    (folder / "common.pt").unlink()
    with pytest.raises(Failure, match="no arguments of the run"):
        import_torch_dist(folder, tmp_path / "out", tokenizer_path)
    import_torch_dist(folder, tmp_path / "out", tokenizer_path, arguments={"num_attention_heads": 4})
    torch.save({"args": argparse.Namespace(num_attention_heads=4)}, folder / "common.pt")
    (folder / "__0_0.distcp").write_bytes(pickle.dumps(malice) * 3000)
    with pytest.raises(Failure, match=r"__0_0\.distcp: not a torch\.save file, or damaged"):
        import_torch_dist(folder, tmp_path / "again", tokenizer_path)
    for index in (malice, {"a": malice}, [malice]):
        (folder / ".metadata").write_bytes(pickle.dumps(index))
        with pytest.raises(Failure, match=r"\.metadata: not the index of a torch\.distributed checkpoint"):
            import_torch_dist(folder, tmp_path / "again", tokenizer_path)
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "again").exists()


def changed(decoder: Decoder, name: str, tensor: Tensor | None) -> dict[str, Any]:
    tensors = megatrons(decoder, stacked=True)
    tensors.pop(name, None)
    return tensors if tensor is None else {**tensors, name: tensor}


UP = "decoder.layers.mlp.linear_fc1.weight"


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        (UP, None, "tensors: 37 where config has 40"),
        (UP, torch.zeros(3, 60, 16), r"layers\.0\.mlp\.up\.weight: weight: axis 0: 0:60:1|elements"),
        (UP, torch.zeros(3, 64, 16, dtype=torch.long), "linear_fc1.weight: not a floating-point tensor"),
        ("decoder.layers.mlp.router.weight", torch.zeros(3, 4), "router.weight: not a tensor of this decoder"),
        ("output_layer.weight", torch.zeros(320, 16), "output_layer.weight: not a tensor of this decoder"),
        ("embedding.position_embeddings.weight", None, "not a GPT with learned positions"),
        ("embedding.word_embeddings.weight", torch.zeros(320), "not a GPT with learned positions"),
        ("decoder.layers.self_attention.linear_qkv.bias", torch.zeros(2, 48), "elements are missing|tensors: "),
    ],
)
def test_another_model_is_one_line(
    tmp_path: Path, tokenizer_path: Path, name: str, tensor: Tensor | None, message: str
) -> None:
    folder = write(tmp_path / "iter", changed(Decoder(CONFIG), name, tensor), num_attention_heads=4)
    with pytest.raises(Failure, match=message) as error:
        import_torch_dist(folder, tmp_path / "out", tokenizer_path)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "no arguments of the run"),
        ({"tensor_model_parallel_size": 1}, "num_attention_heads or layernorm_epsilon is not a number"),
        ({"num_attention_heads": 5}, "heads = 5 does not divide hidden = 16"),
        ({"num_attention_heads": "4"}, "num_attention_heads or layernorm_epsilon is not a number"),
        ({"num_attention_heads": 4, "squared_relu": True}, "squared_relu = True: only False is supported"),
        ({"num_attention_heads": 4, "normalization": "RMSNorm"}, "normalization = RMSNorm: "),
        ({"num_attention_heads": 4, "window_size": (4, 0)}, "window_size = a tuple: not supported"),
        ({"num_attention_heads": 4, "softmax_type": "off-by-one"}, "softmax_type = off-by-one: "),
        ({"num_attention_heads": 4, "num_experts": 8}, "num_experts = 8: not supported"),
        ({"num_attention_heads": 4, "num_layers": 6}, "num_layers = 6: only 3 is supported"),
        ({"num_attention_heads": 4, "hidden_size": 32}, "hidden_size = 32: only 16 is supported"),
    ],
)
def test_run_arguments_are_used_in_torch_dist(
    tmp_path: Path, tokenizer_path: Path, arguments: dict[str, Any], message: str
) -> None:
    folder = write(tmp_path / "iter", megatrons(Decoder(CONFIG), stacked=True), **arguments)
    with pytest.raises(Failure, match=message):
        import_torch_dist(folder, tmp_path / "out", tokenizer_path)


def test_heads_and_gelu_follow_the_run_arguments(tmp_path: Path, tokenizer_path: Path) -> None:
    tensors = megatrons(Decoder(CONFIG, seed=3), stacked=True)
    folder = write(tmp_path / "iter", tensors, num_attention_heads=4, bias_gelu_fusion=False)
    assert import_torch_dist(folder, tmp_path / "out", tokenizer_path).mlp == "gelu"


def test_missing_tokenizer_is_reported_before_work(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"tokenizer\.json: No such file"):
        import_torch_dist(folder, tmp_path / "out", tmp_path / "tokenizer.json")
    assert not (tmp_path / "out").exists()


def test_a_name_that_leaves_the_folder_is_refused(folder: Path, tmp_path: Path, tokenizer_path: Path) -> None:
    shutil.copyfile(folder / "__0_0.distcp", tmp_path / "secret_.distcp")
    index = (folder / ".metadata").read_bytes()
    assert index.count(b"__0_0.distcp") == 1
    for name in (b"../sec.distc", b"/tmp/x.distc", b"..\x00\x00distcp.."):
        assert len(name) == len(b"__0_0.distcp")
        (folder / ".metadata").write_bytes(index.replace(b"__0_0.distcp", name))
        with pytest.raises(Failure, match="is not a name in this folder"):
            import_torch_dist(folder, tmp_path / "out", tokenizer_path)


@pytest.mark.usefixtures("no_gigabytes")
@settings(settings.get_profile("mutations"))
@given(data=st.data())
def test_any_change_to_any_file_is_refused_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, tokenizer_path: Path, data: st.DataObject
) -> None:
    """One to three bytes, or a number in them, become others, in index, arguments or pieces."""
    folder = tmp_path_factory.getbasetemp() / "torch_dist"
    if not folder.exists():
        write(folder, megatrons(Decoder(CONFIG, seed=3), stacked=True), num_attention_heads=4)
    path = folder / data.draw(st.sampled_from([".metadata", ".metadata", "common.pt", "__0_0.distcp"]))
    before = path.read_bytes()
    after = bytearray(before)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(after) - 1))
        bytes_in = data.draw(st.sampled_from([b"\xff", b"\0", b"R", b"c", b"\xff\xff\xff\x7f", None]))
        new = data.draw(st.binary(min_size=1, max_size=4)) if bytes_in is None else bytes_in
        after[place : place + len(new)] = new
    path.write_bytes(after)
    out = tmp_path_factory.getbasetemp() / "out"
    try:
        with suppress(Failure):
            import_torch_dist(folder, out, tokenizer_path)
    finally:
        path.write_bytes(before)
        shutil.rmtree(out, ignore_errors=True)
