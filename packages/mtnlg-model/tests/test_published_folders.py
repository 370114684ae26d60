"""Folders as people have them: fields of their own in config.json, weights stored twice, two commands at once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from samples import PROGRESS
from test_families import LLAMA3, SHARED
from tokenizers import Tokenizer

from mtnlg_model.checkpoint.reader import Checkpoint, save
from mtnlg_model.console import Failure
from mtnlg_model.convert import huggingface
from mtnlg_model.convert.config_json import from_config_json, read_config
from mtnlg_model.convert.huggingface import INDEX, export_huggingface, import_huggingface
from mtnlg_model.convert.output import new_folder
from mtnlg_model.decoder import Decoder
from mtnlg_model.families import PRESETS

if TYPE_CHECKING:
    from torch import Tensor

HEAD, TABLE = "lm_head.weight", "model.embed_tokens.weight"


def test_parameters_of_published_models() -> None:
    """As transformers counts them."""
    published = json.loads((Path(__file__).parent / "hub_sizes.json").read_text())
    for name, (parameters, content) in published.items():
        assert from_config_json(content, name)[1].parameters == parameters, name


def test_fields_that_transformers_does_not_read_change_nothing() -> None:
    """As Qwen2.5, SmolLM, Falcon3, Llama 1, Unsloth's and others have them."""
    fields = {"use_mrope": False, "is_llama_config": True, "activation": "swiglu", "max_sequence_length": 2048}
    fields |= {"transformers.js_config": {"dtype": "fp16"}, "unsloth_fixed": True, "sliding_window": 8, "no such": [1]}
    plain = {"model_type": "llama", **SHARED}
    assert from_config_json({**plain, **fields}, "") == from_config_json(plain, "")


@pytest.mark.parametrize(
    ("model_type", "twice", "once"),
    [
        (
            "llama",
            {"rope_theta": 5e3, "rope_scaling": LLAMA3, "rope_parameters": {**LLAMA3, "rope_theta": 5000}},
            {"rope_theta": 5e3, "rope_scaling": LLAMA3},
        ),
        ("llama", {"rope_theta": 5000, "rope_parameters": {"rope_theta": 5e3}}, {"rope_theta": 5e3}),
        ("llama", {"rope_scaling": {}, "rope_parameters": {"rope_theta": 5e3}}, {"rope_theta": 5e3}),
        ("llama", {"partial_rotary_factor": 1.0, "rope_parameters": {"partial_rotary_factor": 1}}, {}),
        (
            "gpt_neox",  # both names, as transformers 4 wrote them
            {"rotary_emb_base": 500, "rope_theta": 500, "rotary_pct": 0.5, "partial_rotary_factor": 0.5},
            {"rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 0.5}},
        ),
        ("gpt_neox", {"rope_theta": 10000, "partial_rotary_factor": 0.25}, {}),
        (
            "gpt_neox",  # as transformers 4 wrote them
            {"rotary_pct": 0.5, "rotary_emb_base": 500},
            {"rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 0.5}},
        ),
        (
            "llama",
            {"rope_theta": 500, "rope_scaling": LLAMA3, "torch_dtype": "bfloat16"},
            {"rope_parameters": {**LLAMA3, "rope_theta": 500.0}, "dtype": "bfloat16"},
        ),
    ],
)
def test_rotary_positions_may_be_given_otherwise_or_twice_alike(
    model_type: str, twice: dict[str, Any], once: dict[str, Any]
) -> None:
    plain = {"model_type": model_type, **SHARED}
    assert from_config_json({**plain, **twice}, "") == from_config_json({**plain, **once}, "")


@pytest.mark.parametrize(
    ("model_type", "fields", "message"),
    [
        (
            "llama",
            {"rope_theta": 7777.0, "rope_scaling": LLAMA3, "rope_parameters": {"rope_theta": 5e3}},
            "rope_theta = 7777.0 and 5000.0",
        ),
        (
            "llama",
            {"rope_theta": 7777.0, "rope_scaling": {"rope_type": "default"}, "rope_parameters": LLAMA3},
            "scaling = None and {",
        ),
        (
            "llama",  # taken whole, the first table has the default
            {"rope_scaling": {"rope_type": "default"}, "rope_parameters": {"rope_theta": 5e3}},
            "rope_theta = 10000.0 and 5000.0",
        ),
        ("qwen3", {"rope_theta": 7777.0, "rope_parameters": {"rope_theta": 5e3}}, "rope_theta = 7777.0 and 5000.0"),
        ("gpt_neox", {"rope_theta": 500}, "rope_theta = 10000.0 and 500"),
        ("gpt_neox", {"rotary_pct": 0.5, "rope_theta": 500, "rotary_emb_base": 99}, "rope_theta = 99.0 and 500"),
        ("gpt_neox", {"partial_rotary_factor": 0.5}, "factor = 0.25 and 0.5"),
        (
            "gpt_neox",
            {"rotary_pct": 1.0, "rope_parameters": {"partial_rotary_factor": 0.25}},
            "partial_rotary_factor = 1.0 and 0.25",
        ),
    ],
)
def test_rotary_positions_given_twice_in_other_words_are_refused(
    model_type: str, fields: dict[str, Any], message: str
) -> None:
    plain = {"model_type": model_type, **SHARED}
    with pytest.raises(Failure, match=f"config.json: .*{message}") as failure:
        from_config_json({**plain, **fields}, "config.json")
    assert len(str(failure.value)) < 250


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_weights_of_an_unsupported_dtype_are_refused_by_its_name(
    llama: Path, tmp_path: Path, dtype: torch.dtype
) -> None:
    folder = tmp_path / "quantized"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(llama / name, folder)
    masks = {"model.layers.0.self_attn.bias.inv_freq": torch.ones(3, dtype=torch.bool)}
    save_file(stored(llama) | masks, folder / "model.safetensors")
    import_huggingface(folder, tmp_path / "masks")
    layer = {key: tensor.to(dtype) if "_proj" in key else tensor for key, tensor in stored(llama).items()}
    save_file(layer, folder / "model.safetensors")
    name = {torch.int8: "I8", torch.float8_e4m3fn: "F8_E4M3"}[dtype]
    with pytest.raises(Failure, match=rf"_proj\.weight: {name}: only F64, F32, F16, BF16 are supported"):
        import_huggingface(folder, tmp_path / "out")


@pytest.fixture
def llama(tokenizer_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small tied Llama in Hugging Face's format, in shards."""
    sizes = {"layers": 2, "hidden": 48, "heads": 6, "kv_heads": 2, "ffn": 96, "sequence": 64, "vocabulary": 307}
    config = PRESETS["llama-2-7b"].model_copy(update={**sizes, "head_size": 8, "tied": True})
    checkpoint = save(Decoder(config, seed=3), tmp_path / "runs", 1, PROGRESS, tokenizer_path)
    with monkeypatch.context() as patch:
        patch.setattr(huggingface, "SHARD_BYTES", 60_000)
        export_huggingface(Checkpoint.open(checkpoint), tmp_path / "llama")
    return tmp_path / "llama"


def change_index(folder: Path, **changed: str) -> None:
    content = json.loads((folder / INDEX).read_text())
    content["weight_map"] |= changed
    (folder / INDEX).write_text(json.dumps(content))


def stored(folder: Path) -> dict[str, Tensor]:
    return {key: tensor for file in folder.glob("*.safetensors") for key, tensor in load_file(file).items()}


def test_a_tensor_in_two_files_is_refused(llama: Path, tmp_path: Path) -> None:
    first, second, *_ = sorted(llama.glob("*.safetensors"))
    key, tensor = next(iter(load_file(first).items()))
    save_file({**load_file(second), key: tensor + 1}, second)
    with pytest.raises(Failure, match=f"{key}: in {second.name} and in another file; keep one"):
        import_huggingface(llama, tmp_path / "out")


def test_an_index_that_names_no_file_is_refused(llama: Path, tmp_path: Path) -> None:
    (llama / INDEX).write_text('{"weight_map": {}}')
    with pytest.raises(Failure, match=f"{INDEX}: weight_map = {{}}: Dictionary should have at least 1 item"):
        import_huggingface(llama, tmp_path / "out")


def test_one_file_comes_before_shards_as_in_transformers(llama: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    doubled = {key: 2 * tensor for key, tensor in stored(llama).items()}
    save_file(doubled, llama / "model.safetensors", metadata={"format": "pt"})
    import_huggingface(llama, tmp_path / "out")
    read = Checkpoint.open(tmp_path / "out").tensor("embedding.token.weight")
    assert torch.equal(read, doubled[TABLE])
    assert torch.equal(read, AutoModelForCausalLM.from_pretrained(llama).get_input_embeddings().weight)


def test_a_tied_head_that_is_stored_must_be_the_embedding(llama: Path, tmp_path: Path) -> None:
    table = stored(llama)[TABLE]
    save_file({HEAD: table}, llama / "model-head.safetensors")
    change_index(llama, **{HEAD: "model-head.safetensors"})
    import_huggingface(llama, tmp_path / "equal")
    save_file({HEAD: table + 1}, llama / "model-head.safetensors")
    with pytest.raises(Failure, match=rf"{HEAD}: differs from {TABLE}, which config\.json says it is tied to; "):
        import_huggingface(llama, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    config = json.loads((llama / "config.json").read_text())
    (llama / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    import_huggingface(llama, tmp_path / "out")
    assert torch.equal(Checkpoint.open(tmp_path / "out").tensor("head.weight"), table + 1)


def test_a_tokenizer_of_more_tokens_than_the_model_is_refused(llama: Path, tmp_path: Path) -> None:
    path = llama / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["vocab"]["last"] = 306
    path.write_text(json.dumps(content))
    import_huggingface(llama, tmp_path / "fits")
    content["model"]["vocab"]["last"] = 307
    path.write_text(json.dumps(content))
    message = "out: the tokenizer's highest id is 307, the model's 306: they do not belong together"
    for multiple in (1, 128):
        with pytest.raises(Failure, match=message):
            import_huggingface(llama, tmp_path / "out", vocabulary_multiple=multiple)
    step = save(Decoder(read_config(llama)), tmp_path, 1, PROGRESS, path)
    with pytest.raises(Failure, match=message):
        export_huggingface(Checkpoint.open(step), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_added_token_without_a_row_is_accepted(llama: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(llama / "tokenizer.json"))
    tokenizer.add_special_tokens([f"<{number}>" for number in range(tokenizer.get_vocab_size(), 308)])
    tokenizer.save(str(llama / "tokenizer.json"))
    import_huggingface(llama, tmp_path / "padding")
    (llama / "generation_config.json").write_text(json.dumps({"eos_token_id": 307}))
    with pytest.raises(Failure, match="id is 307, the model's 306"):
        import_huggingface(llama, tmp_path / "out")


def test_folder_being_written_by_another_command_is_untouched(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with new_folder(target) as first:
        (first / "weights").write_text("of the first")
        with pytest.raises(Failure, match="out: another command is writing it"), new_folder(target):
            pass
        assert (first / "weights").read_text() == "of the first"
    assert [path.name for path in target.iterdir()] == ["weights"]
    with pytest.raises(Failure, match="out: exists already"), new_folder(target):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_leftovers_of_a_killed_command_are_removed(tmp_path: Path) -> None:
    with new_folder(tmp_path / "out") as partial:
        (partial / "weights").write_text("half")
        (partial / "step-0.tmp").mkdir()
        shutil.copytree(partial, tmp_path / "left")
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "left").rename(partial)
    with new_folder(tmp_path / "out") as again:
        (again / "whole").touch()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["whole"]
