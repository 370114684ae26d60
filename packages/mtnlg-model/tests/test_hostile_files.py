"""Files made to harm who reads them: links to secrets, bombs of a few hundred bytes, structures without an end."""

from __future__ import annotations

import argparse
import base64
import json
import os
import pickle
import struct
import zipfile
from dataclasses import replace as replace_field
from typing import TYPE_CHECKING, Any

import pytest
import tokenizers
import torch
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

from mtnlg_model.checkpoint.manifest import CheckpointError
from mtnlg_model.checkpoint.reader import Checkpoint
from mtnlg_model.checkpoint.tensor_file import TensorFile
from mtnlg_model.config import ModelConfig
from mtnlg_model.console import Failure
from mtnlg_model.convert import pickle_reader
from mtnlg_model.convert.config_json import read_config
from mtnlg_model.convert.deepspeed import import_deepspeed
from mtnlg_model.convert.huggingface import INDEX, export_huggingface, import_huggingface
from mtnlg_model.convert.output import MAX_LAYERS, require_file_size
from mtnlg_model.convert.pickle_reader import Global, Record
from mtnlg_model.convert.torch_dist import import_torch_dist, read_index
from mtnlg_model.convert.torch_file import TorchFile, View
from mtnlg_model.tokenizer import Tokenizer
from mtnlg_model.tokenizer_file import read_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
END = {"id": 0, "content": "<|endoftext|>", "special": True}
END |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)


@pytest.fixture
def gpt2(checkpoint_path: Path, tmp_path: Path) -> Path:
    """A Hugging Face folder of a small decoder."""
    export_huggingface(Checkpoint.open(checkpoint_path), tmp_path / "gpt2")
    return tmp_path / "gpt2"


@pytest.fixture
def hub_cache(gpt2: Path, tmp_path: Path) -> Path:
    """The same folder as Hugging Face's cache has it: snapshots/REVISION of links into blobs."""
    model = tmp_path / "models--someone--gpt2"
    snapshot, blobs = model / "snapshots" / "f00d", model / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for file in gpt2.iterdir():
        file.rename(blobs / f"blob-of-{file.name}")
        (snapshot / file.name).symlink_to(f"../../blobs/blob-of-{file.name}")
    return snapshot


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "config.json", "generation_config.json", "model.safetensors", INDEX]
)
def test_a_link_in_a_hugging_face_folder_is_not_followed(gpt2: Path, tmp_path: Path, name: str) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes((gpt2 / name).read_bytes() if (gpt2 / name).exists() else b'{"weight_map": {}}')
    (gpt2 / name).unlink(missing_ok=True)
    (gpt2 / name).symlink_to(secret)
    if name == INDEX:
        (gpt2 / "model.safetensors").unlink()
    with pytest.raises(Failure, match=f"{name}: .*link"):
        import_huggingface(gpt2, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["root:x:0:0\n", '{"password": 1}', '["x"]', '{"model": 1}', "\xff"])
def test_invalid_tokenizer_is_not_copied_into_a_checkpoint(gpt2: Path, tmp_path: Path, text: str) -> None:
    (gpt2 / "tokenizer.json").write_text(text, encoding="latin-1")
    with pytest.raises(Failure, match=r"tokenizer\.json: not a tokenizer\.json"):
        import_huggingface(gpt2, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", INDEX])
def test_a_pipe_or_an_endless_device_is_not_read(gpt2: Path, tmp_path: Path, name: str) -> None:
    (gpt2 / name).unlink(missing_ok=True)
    if name == INDEX:
        (gpt2 / "model.safetensors").unlink()
    os.mkfifo(gpt2 / name)
    with pytest.raises(Failure, match=r"not a regular file|no tokenizer|no such"):
        import_huggingface(gpt2, tmp_path / "out")
    (gpt2 / name).unlink()
    (gpt2 / name).symlink_to("/dev/zero")
    with pytest.raises(Failure, match=r"not a regular file|no tokenizer|no such"):
        import_huggingface(gpt2, tmp_path / "out")


def test_hub_cache_is_imported_and_links_outside_are_not(hub_cache: Path, tmp_path: Path) -> None:
    import_huggingface(hub_cache, tmp_path / "out")
    Checkpoint.open(tmp_path / "out").verify()
    (tmp_path / "secret").write_bytes((hub_cache / "tokenizer.json").read_bytes())
    (hub_cache / "../../blobs/again").symlink_to(tmp_path / "secret")
    for target in ("../../../secret", "../../blobs/../../secret", "../../blobs/again"):
        (hub_cache / "tokenizer.json").unlink()
        (hub_cache / "tokenizer.json").symlink_to(target)
        with pytest.raises(Failure, match="not a regular file, or a link"):
            import_huggingface(hub_cache, tmp_path / "again")


def test_a_sparse_file_of_millions_of_layers_names_none_of_them(
    gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = json.loads((gpt2 / "config.json").read_text())
    (gpt2 / "config.json").write_text(json.dumps({**content, "n_layer": 20_000_000, "n_embd": 4, "n_head": 1}))
    header = json.dumps({"x": {"dtype": "F16", "shape": [1 << 42], "data_offsets": [0, 1 << 43]}}).encode()
    (gpt2 / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(gpt2 / "model.safetensors", 8 + len(header) + (1 << 43))
    config = read_config(gpt2)
    monkeypatch.setattr(ModelConfig, "parameter_shapes", pytest.fail)
    with pytest.raises(Failure, match="20,000,000 layers"):
        import_huggingface(gpt2, tmp_path / "out")
    with pytest.raises(Failure, match=f"20,000,000 layers, more than {MAX_LAYERS:,}"):
        require_file_size(config, [gpt2 / "model.safetensors"])


DAG = b"q\x00h\x00\x86" * 64
"""Appended to a pickled value: 64 times t = (t, t), which has 2 ** 64 leaves in 320 bytes."""


def unicode(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text)) + text.encode()


def torch_file(path: Path, pickled: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", b"\x80\x04" + pickled + b".")
    return path


def pickled_tensor(folder: Path) -> bytes:
    """What whole.pt, which this writes, holds of three ones."""
    torch.save(torch.ones(3), folder / "whole.pt")
    with zipfile.ZipFile(folder / "whole.pt") as archive:
        return archive.read("whole/data.pkl").removeprefix(b"\x80\x02").removesuffix(b".")


def megatron_folder(folder: Path) -> Path:
    """A torch.distributed checkpoint of Megatron's embeddings, without the arguments of its run."""
    names = ("embedding.word_embeddings.weight", "embedding.position_embeddings.weight")
    save_distributed({name: torch.ones(8, 4) for name in names}, checkpoint_id=folder / "iter")
    return folder / "iter"


def test_recursive_pickle_class_name_is_refused(tmp_path: Path) -> None:
    storage = b"(" + unicode("storage") + b")" + DAG + unicode("x") + b"\x93" + unicode("0") + b"tQ"
    tensor = unicode("torch._utils") + unicode("_rebuild_tensor_v2") + b"\x93(" + storage + b"K\x00))tR"
    assert len(torch_file(tmp_path / "x.pt", tensor).read_bytes()) < 600
    with pytest.raises(Failure, match="the name of a class is not a string"):
        TorchFile(tmp_path / "x.pt")


def test_thousands_of_nested_parameters_are_unwrapped_one_by_one(tmp_path: Path) -> None:
    raw = pickled_tensor(tmp_path)
    parameter = unicode("torch._utils") + unicode("_rebuild_parameter") + b"\x93"
    wrapped = b"".join(parameter + b"(" for _ in range(3000)) + raw + b"tR" * 3000
    with zipfile.ZipFile(tmp_path / "whole.pt", "a") as archive, zipfile.ZipFile(tmp_path / "x.pt", "w") as nested:
        nested.writestr("x/data.pkl", b"\x80\x02" + wrapped + b".")
        nested.writestr("x/data/0", archive.read("whole/data/0"))
    file = TorchFile(tmp_path / "x.pt")
    assert isinstance(file.content, View)
    assert torch.equal(file.tensor(file.content), torch.ones(3))


@pytest.mark.parametrize("argument", ["num_attention_heads", "layernorm_epsilon"])
def test_recursive_pickle_argument_is_refused(tmp_path: Path, tokenizer_path: Path, argument: str) -> None:
    folder = megatron_folder(tmp_path)
    arguments = b"}(" + unicode("num_attention_heads") + b"K\x04" + unicode(argument) + b")" + DAG + b"u"
    record = unicode("argparse") + unicode("Namespace") + b"\x93)R" + arguments + b"b"
    torch_file(folder / "common.pt", b"}" + unicode("args") + record + b"s")
    with pytest.raises(Failure, match=r"common\.pt: num_attention_heads or layernorm_epsilon is not a number"):
        import_torch_dist(folder, tmp_path / "out", tokenizer_path)


def test_a_message_never_shows_a_structure_without_an_end(tmp_path: Path, tokenizer_path: Path) -> None:
    view = unicode("a") + unicode("b") + b"\x93)R"
    assert repr(pickle_reader.read(b"\x80\x04" + view + DAG[:0] + b")" + DAG + b"b.", tmp_path)).startswith("<")
    torch_file(tmp_path / "layer_00-model_states.pt", b"}" + view + pickled_tensor(tmp_path) + b"s")
    with pytest.raises(Failure, match="the name of a tensor is not a string"):
        import_deepspeed(tmp_path, tmp_path / "out", tokenizer_path)


@pytest.mark.parametrize("many", [b"}", b"]", b"\x85", b"Q", b"(t"])
def test_a_pickle_has_no_more_containers_than_its_length_allows(tmp_path: Path, many: bytes) -> None:
    pickle_reader.read(b"\x80\x04N" + many * 900 + b".", tmp_path)
    with pytest.raises(Failure, match="too many containers for its length"):
        pickle_reader.read(b"\x80\x04N" + many * 10_000 + b".", tmp_path)


def test_keys_whose_hashes_are_all_equal_are_refused(tmp_path: Path) -> None:
    colliding = {n * (2**61 - 1): None for n in range(1, 9)}
    assert len({hash(key) for key in colliding}) == 1
    with pytest.raises(Failure, match="a int as a key"):
        pickle_reader.read(pickle.dumps(colliding), tmp_path)


def test_a_tensor_of_many_axes_is_refused(tmp_path: Path) -> None:
    axes = (1 << 61,) * 100_000
    raw = pickle.dumps(axes, 2).removeprefix(b"\x80\x02").removesuffix(b".")
    storage = b"(" + unicode("storage") + b"ctorch\nFloatStorage\n" + unicode("0") + b"tQ"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00" + raw + raw + b"tR"
    content = TorchFile(torch_file(tmp_path / "x.pt", tensor)).content
    assert isinstance(content, Record), "no view"
    assert content.what == Global("torch._utils", "_rebuild_tensor_v2")
    header = json.dumps({"a": {"dtype": "F32", "shape": axes, "data_offsets": [0, 4]}}).encode()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    with pytest.raises(CheckpointError, match="at most 8"):
        TensorFile(tmp_path / "x.safetensors")


def test_an_index_that_names_the_same_bytes_twice_is_refused(tmp_path: Path) -> None:
    folder = megatron_folder(tmp_path)
    assert len(read_index(folder)) == 2
    index = pickle.loads((folder / ".metadata").read_bytes())  # noqa: S301  (what this test has written)
    index.storage_data = {key: replace_field(info, offset=info.offset // 2) for key, info in index.storage_data.items()}
    (folder / ".metadata").write_bytes(pickle.dumps(index))
    with pytest.raises(Failure, match=r"\.metadata: damaged: chunks overlap at byte"):
        read_index(folder)


@pytest.mark.parametrize("name", [".metadata", "common.pt"])
def test_a_link_in_a_megatron_folder_is_not_followed(tmp_path: Path, tokenizer_path: Path, name: str) -> None:
    folder = megatron_folder(tmp_path)
    torch.save({"args": argparse.Namespace(num_attention_heads=1)}, folder / "common.pt")
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Failure, match="not a regular file, or a link"):
        import_torch_dist(folder, tmp_path / "out", tokenizer_path)
    with pytest.raises(Failure, match="not a regular file, or a link"):
        TorchFile(folder / name)


def tokenizer_of(**parts: Any) -> dict[str, Any]:  # noqa: ANN401  (JSON)
    model = {"type": "BPE", "vocab": {END["content"]: 0, "a": 1}, "merges": []}
    return {"version": "1.0", "added_tokens": [END], "model": model, **parts}


def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def sequence(key: str, *steps: object) -> dict[str, Any]:
    return {"type": "Sequence", key: list(steps)}


def template(copies: int, tokens: int, ids: int = 1) -> dict[str, Any]:
    pieces = [{"Sequence": {"id": "A", "type_id": 0}}] * copies
    pieces += [{"SpecialToken": {"id": END["content"], "type_id": 0}}] * tokens
    special = {END["content"]: {"id": END["content"], "ids": [0] * ids, "tokens": [END["content"]] * ids}}
    return {"type": "TemplateProcessing", "single": pieces, "pair": [], "special_tokens": special}


DOUBLE = replace({"String": "a"}, "aa")
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
PADDING = dict.fromkeys(("pad_id", "pad_type_id"), 0) | {"direction": "Right", "pad_token": "x"}


@pytest.mark.parametrize(
    ("content", "bound"),
    [
        (tokenizer_of(normalizer=sequence("normalizers", *[DOUBLE] * 24)), "16,777,216 times the length"),
        (tokenizer_of(normalizer=sequence("normalizers", *[DOUBLE] * 2000)), "2,001 steps"),
        (
            tokenizer_of(normalizer=sequence("normalizers", *[{k: v for k, v in DOUBLE.items() if k != "type"}] * 24)),
            "16,777,216 times the length",
        ),
        (tokenizer_of(decoder=sequence("decoders", *[DOUBLE] * 24)), "16,777,216 times the length"),
        (tokenizer_of(pre_tokenizer=sequence("pretokenizers", *[BYTES] * 24)), "16,777,216 times the length"),
        (tokenizer_of(normalizer=replace({"Regex": "b*"}, "a" * 1000)), "1,001 times the length"),
        (tokenizer_of(normalizer={"type": "Prepend", "prepend": "a" * 5000}), "5,000 characters are inserted"),
        (
            tokenizer_of(
                normalizer={
                    "type": "Precompiled",
                    "precompiled_charsmap": base64.b64encode(bytes(4) + b"a" * 300 + b"\0").decode(),
                }
            ),
            "300 times the length",
        ),
        (tokenizer_of(model={"type": "Unigram", "vocab": [["a" * 2000, 0.0]]}), "2,000 characters in a token"),
        (
            tokenizer_of(model={"vocab": {"a": 1 << 31}}),
            "2,147,483,648 is a token's number",
        ),
        (tokenizer_of(model={"vocab": [["é" * 1000, 0.0]] * 2200}), "4,400,000 bytes of a Unigram"),
        (tokenizer_of(added_tokens=[{"content": "a" * 1000}] * 1100), "1,100,000 bytes of added tokens"),
        (tokenizer_of(post_processor=template(3, 0)), "3 copies of a text are made"),
        (tokenizer_of(post_processor=sequence("processors", template(1, 64))), "65 tokens are added to a text"),
        (tokenizer_of(post_processor=template(1, 1, 65)), "65 tokens are added to a text"),
    ],
)
def test_expanding_tokenizer_is_refused_before_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: dict[str, Any], bound: str
) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    monkeypatch.setattr(tokenizers.Tokenizer, "from_str", pytest.fail)
    with pytest.raises(Failure, match=rf"tokenizer\.json: {bound}.*, more than"):
        Tokenizer(tmp_path / "tokenizer.json")


@pytest.mark.parametrize(
    "text",
    ["", "[" * 100_000, '{"a": ' * 100_000, json.dumps(tokenizer_of()).replace("{", '{"model": 1, ', 1), "1" * 5000],
)
def test_ambiguous_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(Failure, match=r"tokenizer\.json: not a tokenizer\.json"):
        read_tokenizer(tmp_path / "tokenizer.json")


@pytest.mark.parametrize(
    "padding", [{"strategy": {"Fixed": 1000}}, {"strategy": "BatchLongest", "pad_to_multiple_of": 1000}]
)
def test_a_tokenizer_pads_and_truncates_nothing(tmp_path: Path, padding: dict[str, Any]) -> None:
    truncation = {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}
    content = tokenizer_of(padding={"pad_to_multiple_of": None} | PADDING | padding, truncation=truncation)
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert Tokenizer(tmp_path / "tokenizer.json").encode("aaa") == [1, 1, 1]


def test_a_panic_of_the_library_is_one_failure(tmp_path: Path) -> None:
    backtracks = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_of(pre_tokenizer=backtracks)))
    with pytest.raises(Failure, match=r"tokenizer\.json: a library gave up on it: .*retry-limit"):
        Tokenizer(tmp_path / "tokenizer.json").encode("a" * 40 + "b")


def test_a_model_that_cannot_encode_a_letter_is_one_failure(tmp_path: Path) -> None:
    unigram = {"type": "Unigram", "unk_id": None, "vocab": [[END["content"], 0.0]], "byte_fallback": False}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_of(model=unigram)))
    with pytest.raises(Failure, match=r"tokenizer\.json: not a valid tokenizer\.json: .*unknown token"):
        Tokenizer(tmp_path / "tokenizer.json").encode("a")


def test_the_steps_of_tokenizers_in_use_are_within_the_bounds(tmp_path: Path) -> None:
    nfkc = base64.b64encode(bytes(4) + "صلى الله عليه وسلم".encode() + b"\0").decode()
    t5 = sequence(
        "normalizers", {"type": "Precompiled", "precompiled_charsmap": nfkc}, replace({"Regex": " {2,}"}, "▁")
    )
    llama = sequence("normalizers", {"type": "Prepend", "prepend": "▁"}, replace({"String": " "}, "▁"))
    back = sequence("decoders", replace({"String": "▁"}, " "), {"type": "ByteFallback"}, {"type": "Fuse"})
    albert = [replace({"String": quote}, '"') for quote in ("``", "''")]
    for parts in (
        {"normalizer": t5},
        {"normalizer": llama, "decoder": back},
        {"normalizer": sequence("normalizers", *albert, {"type": "NFKD"}, {"type": "Lowercase"})},
        {"normalizer": None, "pre_tokenizer": BYTES, "decoder": BYTES},
    ):
        (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_of(**parts)))
        read_tokenizer(tmp_path / "tokenizer.json")
