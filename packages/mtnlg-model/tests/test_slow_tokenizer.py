"""Folders with a slow tokenizer's files alone are refused with the call of transformers that makes a tokenizer.json."""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest
import tokenizers

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


def test_end_tokens_of_config_json_are_kept(checkpoint_path: Path, tmp_path: Path) -> None:
    """Of several, as transformers stops at each, where there is no generation_config.json."""
    export_huggingface(Checkpoint.open(checkpoint_path), tmp_path / "theirs")
    path = tmp_path / "theirs" / "config.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "eos_token_id": [content["eos_token_id"], 5, 7]}))
    import_huggingface(tmp_path / "theirs", tmp_path / "ours")
    for weights in map(open_weights, (tmp_path / "theirs", tmp_path / "ours")):
        assert Tokenizer(weights.tokenizer_path).ends == {content["eos_token_id"], 5, 7}
