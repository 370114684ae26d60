"""Prompts and answers begin and end as in transformers; a slow tokenizer's files have the call that converts them."""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest
import tokenizers
from test_tokenizers import BEGINS

from mtnlg_model.checkpoint.reader import Checkpoint
from mtnlg_model.console import Failure
from mtnlg_model.convert.huggingface import export_huggingface, import_huggingface, open_weights
from mtnlg_model.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(int(version("transformers").split(".")[0]) < 5, reason="4 goes by the model's class")
CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "and the dog over the fox 12345",
    "naïve café, “quoted” 日本語",
]
PLAIN = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
TEXTS = (*CORPUS, "", " two  spaces", "a line\nand a\ttab ", "not seen: 🙂 ß ½", "it's 2026, cafe\u0301", "x" * 99)


def test_slow_tokenizer_folder_names_the_conversion_call(checkpoint_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    export_huggingface(Checkpoint.open(checkpoint_path), folder)
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    expected = Tokenizer(folder / "tokenizer.json")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    (folder / "vocab.json").write_text(json.dumps({**model["vocab"], "<|endoftext|>": len(model["vocab"])}))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *(" ".join(pair) for pair in model["merges"]), ""]))
    with pytest.raises(Failure, match=r"no tokenizer\.json; make one: python -c .*") as failure:
        import_huggingface(folder, tmp_path / "ours")
    exec(str(failure.value).split('python -c "')[1].removesuffix('"'))  # noqa: S102  (the call that it names)
    import_huggingface(folder, tmp_path / "ours")
    tokenizer = Tokenizer(Checkpoint.open(tmp_path / "ours").tokenizer_path)
    assert [tokenizer.encode(text) for text in TEXTS] == [expected.encode(text) for text in TEXTS]
    assert tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size() == tokenizer.vocabulary


@pytest.mark.parametrize("generation", [None, 7, [5, 7]])
@pytest.mark.parametrize("given", [5, [7, 5]])
def test_texts_end_as_in_transformers(given: object, generation: object, checkpoint_path: Path, tmp_path: Path) -> None:
    """At each end token that generation_config.json lists, else config.json, and at the tokenizer's own."""
    from transformers import AutoModelForCausalLM

    export_huggingface(Checkpoint.open(checkpoint_path), tmp_path / "theirs")
    path = tmp_path / "theirs" / "config.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "eos_token_id": given}))
    if generation:
        path.with_name("generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs").generation_config.eos_token_id
    import_huggingface(tmp_path / "theirs", tmp_path / "ours")
    for weights in map(open_weights, (tmp_path / "theirs", tmp_path / "ours")):
        ends = Tokenizer(weights.tokenizer_path).ends
        assert ends == {content["eos_token_id"], *(theirs if isinstance(theirs, list) else [theirs])}


@pytest.mark.parametrize("name", ["GPT2TokenizerFast", "LlamaTokenizerFast", "Qwen2Tokenizer", "TokenizersBackend"])
@pytest.mark.parametrize("post_processor", [None, PLAIN, BEGINS], ids=["none", "plain", "template"])
@pytest.mark.parametrize("settings", [{}, {"add_bos_token": False}, {"add_bos_token": True}], ids=str)
def test_prompts_begin_as_in_transformers(
    name: str, post_processor: object, settings: dict[str, bool], tokenizer_path: Path, tmp_path: Path
) -> None:
    """Its 5 goes by tokenizer.json, whose post-processor its 4 wrote, and not by add_bos_token."""
    from transformers import AutoTokenizer

    content = json.loads(tokenizer_path.read_text()) | {"post_processor": post_processor}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokens = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name, **tokens, **settings}))
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path), Tokenizer(tmp_path / "tokenizer.json")
    for text in (CORPUS[0], "<|endoftext|> the fox"):
        expected = theirs(text).input_ids
        assert ours.encode_prompt(text) == expected[text.startswith("<") and post_processor is BEGINS :]
