"""GPT-2 folders: what we export transformers opens with the same logits, and what it saves we import byte for byte."""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from samples import PROGRESS
from transformers import AutoModelForCausalLM, AutoTokenizer

from mtnlg_model.checkpoint.reader import Checkpoint, save
from mtnlg_model.config import ModelConfig
from mtnlg_model.console import Failure
from mtnlg_model.convert import huggingface
from mtnlg_model.convert.huggingface import export_huggingface, import_huggingface
from mtnlg_model.decoder import Decoder
from mtnlg_model.tokenizer import Tokenizer

Build = Callable[[ModelConfig], Decoder]
CONFIG = ModelConfig(layers=3, hidden=48, heads=3, sequence=32, vocabulary=307, init_std=0.1)


@pytest.fixture
def checkpoint(biased: Build, tmp_path: Path, tokenizer_path: Path) -> Checkpoint:
    decoder = biased(CONFIG)
    return Checkpoint.open(save(decoder, tmp_path / "runs", 1, PROGRESS, tokenizer_path))


def test_tokenizer_is_imported(checkpoint: Checkpoint, tmp_path: Path) -> None:
    export_huggingface(checkpoint, tmp_path / "ours")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert tokenizer("the fox").input_ids == Tokenizer(checkpoint.tokenizer_path).encode("the fox")
    assert tokenizer.eos_token == Tokenizer(checkpoint.tokenizer_path).eod_token
    assert tokenizer.model_max_length == CONFIG.sequence


def test_beginning_token_is_imported(biased: Build, tokenizer_path: Path, tmp_path: Path) -> None:
    """As in Llama's and Mistral's, whose tokenizers put <s> before every text."""
    tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_path))
    tokenizer.add_special_tokens(["<s>"])
    begin = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", begin)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    path = save(biased(CONFIG), tmp_path / "runs", 1, PROGRESS, tmp_path / "tokenizer.json")
    export_huggingface(Checkpoint.open(path), tmp_path / "ours")
    opened = AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert (opened.bos_token, opened.eos_token) == ("<s>", "<|endoftext|>")
    assert opened("the fox").input_ids == [begin, *Tokenizer(path / "tokenizer.json").encode("the fox")]
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"]) == (begin, opened.eos_token_id)


def test_bfloat16_stays_bfloat16(biased: Build, tmp_path: Path, tokenizer_path: Path) -> None:
    decoder = biased(CONFIG).to(torch.bfloat16)
    checkpoint = Checkpoint.open(save(decoder, tmp_path / "runs", 1, PROGRESS, tokenizer_path))
    export_huggingface(checkpoint, tmp_path / "ours")
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype="auto").dtype == torch.bfloat16
    import_huggingface(tmp_path / "ours", tmp_path / "back")
    for name in checkpoint.names:
        assert torch.equal(Checkpoint.open(tmp_path / "back").tensor(name), checkpoint.tensor(name))


def test_names_without_prefix_and_mask_buffers_are_understood(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """As in OpenAI's own files on the hub."""
    export_huggingface(checkpoint, tmp_path / "hub")
    file = tmp_path / "hub" / "model.safetensors"
    tensors = {key.removeprefix("transformer."): tensor for key, tensor in load_file(file).items()}
    masks = {"h.0.attn.bias": torch.ones(1, 1, 32, 32, dtype=torch.bool), "x.0.attention.bias": torch.ones(3)}
    save_file({**tensors, **masks, "x.rotary_emb.inv_freq": torch.ones(3)}, file)
    import_huggingface(tmp_path / "hub", tmp_path / "back")
    for name in checkpoint.names:
        assert torch.equal(Checkpoint.open(tmp_path / "back").tensor(name), checkpoint.tensor(name))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("n_inner", 100, r"transformer.h.0.mlp.c_fc.weight: F32 \[48, 192\] where config.json says \[48, 100\]"),
        ("tie_word_embeddings", False, "lm_head.weight: no such tensor"),
        ("n_embd", 96, "bytes of weights for 2\\d{5} parameters"),
        ("n_layer", 10**11, "bytes of weights for 2\\d{15} parameters"),
        ("n_positions", 33, r"transformer.wpe.weight: F32 \[32, 48\] where config.json says \[33, 48\]"),
        ("n_layer", 4, "transformer.h.3.ln_1.weight: no such tensor"),
    ],
)
def test_config_that_is_not_of_the_weights_is_refused(
    checkpoint: Checkpoint, tmp_path: Path, field: str, value: object, message: str
) -> None:
    export_huggingface(checkpoint, tmp_path / "ours")
    path = tmp_path / "ours" / "config.json"
    content: dict[str, Any] = json.loads(path.read_text())
    path.write_text(json.dumps({**content, field: value}))
    with pytest.raises(Failure, match=message):
        import_huggingface(tmp_path / "ours", tmp_path / "back")
    assert not (tmp_path / "back").exists()
    assert not list(tmp_path.glob(".back*"))


def test_folders_that_cannot_be_imported_are_named(checkpoint: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"config\.json: No such file"):
        import_huggingface(tmp_path, tmp_path / "back")
    export_huggingface(checkpoint, tmp_path / "ours")
    with pytest.raises(Failure, match="ours: exists already"):
        export_huggingface(checkpoint, tmp_path / "ours")
    (tmp_path / "ours" / "model.safetensors").rename(tmp_path / "ours" / "pytorch_model.bin")
    with pytest.raises(Failure, match=r"only safetensors are read, never a pickled \.bin"):
        import_huggingface(tmp_path / "ours", tmp_path / "back")
    index = {"weight_map": {"transformer.wte.weight": "../../etc/passwd"}}
    (tmp_path / "ours" / huggingface.INDEX).write_text(json.dumps(index))
    with pytest.raises(Failure, match="passwd: no such weights"):
        import_huggingface(tmp_path / "ours", tmp_path / "back")
    (tmp_path / "ours" / huggingface.INDEX).unlink()
    (tmp_path / "ours" / "pytorch_model.bin").rename(tmp_path / "ours" / "model.safetensors")
    (tmp_path / "ours" / "tokenizer.json").unlink()
    with pytest.raises(Failure, match=r"no tokenizer\.json; make one: python -c "):
        import_huggingface(tmp_path / "ours", tmp_path / "back")
    assert not (tmp_path / "back").exists()


@pytest.mark.usefixtures("no_gigabytes")
@settings(settings.get_profile("mutations"))
@given(data=st.data())
def test_any_change_to_a_folder_is_refused_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, tokenizer_path: Path, data: st.DataObject
) -> None:
    """A field of config.json or bytes of the weights, their header above all, become others."""
    folder, out = (tmp_path_factory.getbasetemp() / name for name in ("hub", "imported"))
    if not folder.exists():
        scratch = tmp_path_factory.mktemp("scratch")
        export_huggingface(Checkpoint.open(save(Decoder(CONFIG), scratch, 1, PROGRESS, tokenizer_path)), folder)
    path = folder / data.draw(st.sampled_from(["config.json", "model.safetensors"]))
    before = path.read_bytes()
    if path.suffix == ".json":
        content = json.loads(before)
        values: st.SearchStrategy[Any] = st.sampled_from([None, -1, 0, 2, 10**11, 2**63, "gpt2", 0.5, [], True])
        content[data.draw(st.sampled_from(sorted(content)))] = data.draw(values)
        path.write_text(json.dumps(content))
    else:
        after = bytearray(before)
        place = data.draw(st.integers(0, 200) | st.integers(0, len(before) - 1))
        after[place : place + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
        path.write_bytes(after)
    try:
        with suppress(Failure):
            import_huggingface(folder, out)
    finally:
        path.write_bytes(before)
        shutil.rmtree(out, ignore_errors=True)
