"""Folders with a slow tokenizer's files alone: transformers makes a tokenizer.json of the same tokens."""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest
import tokenizers
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from transformers import AutoTokenizer

from mtnlg_model.checkpoint.reader import Checkpoint
from mtnlg_model.console import Failure
from mtnlg_model.convert.huggingface import export_huggingface, import_huggingface
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


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"split_digits": True, "allow_whitespace_only_pieces": True},
        {"add_dummy_prefix": False},
        {"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True, "byte_fallback": False},
        {"model_type": "unigram"},
        {"model_type": "unigram", "normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True},
        {"user_defined_symbols": ["<|user|>"], "control_symbols": ["<|end|>"]},
    ],
    ids=str,
)
def test_transformers_converts_sentencepiece_exactly_where_no_class_is_named(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    defaults = {"model_type": "bpe", "vocab_size": 330, "byte_fallback": True, "hard_vocab_limit": False}
    plain = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "minloglevel": 2}
    prefix = str(tmp_path / "tokenizer")
    SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 20), model_prefix=prefix, **{**defaults, **plain, **options}
    )
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    AutoTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path)
    reference: Any = SentencePieceProcessor(model_file=f"{prefix}.model")
    tokenizer = Tokenizer(tmp_path / "tokenizer.json")
    assert [tokenizer.encode(text) for text in TEXTS] == [reference.encode(text) for text in TEXTS]


def test_a_folder_of_slow_files_is_refused_with_the_call_that_converts_it(
    checkpoint_path: Path, tmp_path: Path
) -> None:
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
    assert Tokenizer(Checkpoint.open(tmp_path / "ours").tokenizer_path).ends == {content["eos_token_id"], 5, 7}
