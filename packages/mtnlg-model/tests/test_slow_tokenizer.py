"""Folders with a slow tokenizer's files alone: their tokens, and what is refused."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest
import tokenizers
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from mtnlg_model.checkpoint.manifest import Layout, Progress
from mtnlg_model.checkpoint.reader import Checkpoint, save
from mtnlg_model.config import ModelConfig
from mtnlg_model.console import Failure
from mtnlg_model.convert import slow_tokenizer
from mtnlg_model.convert.huggingface import export_huggingface, import_huggingface
from mtnlg_model.convert.slow_tokenizer import BYTE_LEVEL, SENTENCEPIECE, tokenizer_of
from mtnlg_model.decoder import Decoder
from mtnlg_model.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.skipif(int(version("transformers").split(".")[0]) < 5, reason="as the extra requires")
CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "and the dog over the fox 12345",
    "naïve café, “quoted” 日本語",
]
TEXTS = (*CORPUS, "", " two  spaces", "a line\nand a\ttab ", "not seen: 🙂 ß ½", "it's 2026, cafe\u0301", "x" * 99)


@pytest.fixture
def sentencepiece_folder(tmp_path: Path) -> Callable[..., Path]:
    def train(**options: Any) -> Path:  # noqa: ANN401  (options of the trainer)
        defaults = {"model_type": "bpe", "vocab_size": 330, "byte_fallback": True, "hard_vocab_limit": False}
        plain = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "minloglevel": 2}
        prefix = str(tmp_path / "tokenizer")
        lines = iter(CORPUS * 20)
        SentencePieceTrainer.train(sentence_iterator=lines, model_prefix=prefix, **{**defaults, **plain, **options})
        return tmp_path

    return train


@pytest.fixture
def byte_level_folder(tmp_path: Path) -> Path:
    """The files that GPT-2 was published with; its tokens cross words, so that how text is split matters."""
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=360, initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator(CORPUS * 2, trainer)
    model = json.loads(trained.to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps({**model["vocab"], "<|endoftext|>": len(model["vocab"])}))
    merges = [" ".join(pair) for pair in model["merges"]]
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    return tmp_path


def opened(folder: Path) -> Tokenizer:
    with tokenizer_of(folder) as path:
        return Tokenizer(path)


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
def test_tokens_and_texts_are_those_of_sentencepiece(
    sentencepiece_folder: Callable[..., Path], options: dict[str, Any]
) -> None:
    folder = sentencepiece_folder(**options)
    reference: Any = SentencePieceProcessor(model_file=str(folder / SENTENCEPIECE))
    tokenizer = opened(folder)
    assert (tokenizer.vocabulary, tokenizer.eod_token, tokenizer.bos_token) == (len(reference), "</s>", "<s>")
    assert [tokenizer.encode(text) for text in TEXTS] == [reference.encode(text) for text in TEXTS]
    for text in TEXTS:
        tokens = reference.encode(text)
        assert reference.unk_id() in tokens or tokenizer.decode(tokens) == reference.decode(tokens)


def test_special_tokens_in_a_text_are_one_token_each(sentencepiece_folder: Callable[..., Path]) -> None:
    folder = sentencepiece_folder(user_defined_symbols=["<|user|>"])
    (folder / "added_tokens.json").write_text(json.dumps({"<|image|>": 330}))
    tokenizer = opened(folder)
    reference: Any = SentencePieceProcessor(model_file=str(folder / SENTENCEPIECE))
    tokens = tokenizer.encode("<|user|></s><|image|>")
    assert tokens[-3:] == [reference.piece_to_id("<|user|>"), 2, 330]
    assert tokenizer.vocabulary == 331
    special = {token["content"] for token in tokenizer.definition["added_tokens"] if token["special"]}
    assert {"<s>", "</s>"} <= special


@pytest.mark.parametrize("kind", ["GPT2Tokenizer", "Qwen2Tokenizer", ""])
def test_byte_level_tokens_are_those_of_transformers(byte_level_folder: Path, kind: str) -> None:
    import transformers

    if kind:
        (byte_level_folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
    else:
        (byte_level_folder / "config.json").write_text('{"model_type": "qwen3"}')
    reference = getattr(transformers, kind or "Qwen2Tokenizer").from_pretrained(byte_level_folder)
    tokenizer = opened(byte_level_folder)
    for text in (*TEXTS, "the fox<|endoftext|>the dog"):
        assert tokenizer.encode(text) == reference.encode(text, add_special_tokens=False)
        assert tokenizer.decode(tokenizer.encode(text)) == reference.decode(tokenizer.encode(text))
    assert tokenizer.eod == tokenizer.vocabulary - 1


def test_added_tokens_have_their_numbers(byte_level_folder: Path) -> None:
    """As Qwen's are: beside a vocabulary that has none of them."""
    path, settings = byte_level_folder / "vocab.json", byte_level_folder / "tokenizer_config.json"
    vocabulary = json.loads(path.read_text())
    del vocabulary["<|endoftext|>"]
    path.write_text(json.dumps(vocabulary))
    first = len(vocabulary)
    names = {first: "<|endoftext|>", first + 1: "<|im_start|>", first + 2: "<|im_end|>"}
    added = {str(number): {"content": name, "special": True} for number, name in names.items()}
    settings.write_text(json.dumps({"added_tokens_decoder": added, "eos_token": {"content": "<|im_end|>"}}))
    tokenizer = opened(byte_level_folder)
    assert tokenizer.encode("".join(names.values())) == list(names)
    assert tokenizer.eod == first


def test_a_folder_with_slow_files_is_imported(byte_level_folder: Path, tokenizer_path: Path, tmp_path: Path) -> None:
    decoder = Decoder(ModelConfig(layers=1, hidden=16, heads=2, sequence=8, vocabulary=400))
    progress = Progress(step=1, samples=1, tokens=8, loss=1.0, stream="", layout=Layout())
    saved = Checkpoint.open(save(decoder, tmp_path / "saved", 1, progress, tokenizer_path))
    export_huggingface(saved, tmp_path / "theirs", lambda *_: None)
    before = opened(byte_level_folder)
    (tmp_path / "theirs" / "tokenizer.json").unlink()
    (tmp_path / "theirs" / "tokenizer_config.json").unlink()
    for name in BYTE_LEVEL:
        (byte_level_folder / name).rename(tmp_path / "theirs" / name)
    import_huggingface(tmp_path / "theirs", tmp_path / "ours", lambda *_: None)
    assert Tokenizer(Checkpoint.open(tmp_path / "ours").tokenizer_path).definition == before.definition


@pytest.mark.parametrize("library", ["sentencepiece", "google.protobuf", "transformers"])
def test_a_library_that_is_missing_is_named(
    sentencepiece_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(Failure, match=rf"tokenizer\.model: needs the library {library}; pip install"):
        opened(sentencepiece_folder())


def test_a_conversion_with_other_tokens_is_refused(
    sentencepiece_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = sentencepiece_folder()
    convert = slow_tokenizer._by_transformers

    def without_normalizer(files: dict[str, bytes]) -> tokenizers.Tokenizer:
        tokenizer = convert(files)
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.CharDelimiterSplit("o")
        return tokenizer

    monkeypatch.setattr(slow_tokenizer, "_by_transformers", without_normalizer)
    with pytest.raises(Failure, match=r"of \d+ texts have other tokens than sentencepiece's once converted; put a tok"):
        opened(folder)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.json", "[]", "vocab.json: not a slow tokenizer's: "),
        ("vocab.json", '{"a": "b"}', "vocab.json: not a slow tokenizer's: "),
        ("vocab.json", '{"a": -1}', "vocab.json: not a slow tokenizer's: "),
        ("merges.txt", "t h e", "vocab.json: not a slow tokenizer's: "),
        ("merges.txt", "no such", "vocab.json: not a slow tokenizer's: "),
        ("added_tokens.json", '{"x": []}', "vocab.json: not a slow tokenizer's: "),
        ("tokenizer_config.json", '{"added_tokens_decoder": [1]}', "vocab.json: not a slow tokenizer's: "),
        ("tokenizer_config.json", "[" * 100_000, "vocab.json: "),
        ("tokenizer.model", "no protobuf", "tokenizer.model: not a slow tokenizer's: "),
        ("tokenizer.model", "", "tokenizer.model: not a slow tokenizer's: "),
    ],
)
def test_damaged_files_are_refused_in_one_line(byte_level_folder: Path, name: str, content: str, message: str) -> None:
    (byte_level_folder / name).write_text(content)
    with pytest.raises(Failure, match=message) as failure:
        opened(byte_level_folder)
    assert "\n" not in str(failure.value)


def test_no_link_out_of_the_folder_is_followed(byte_level_folder: Path, tmp_path: Path) -> None:
    (byte_level_folder / "merges.txt").rename(tmp_path / "elsewhere")
    (byte_level_folder / "merges.txt").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Failure, match=r"merges\.txt: not a regular file, or a link"):
        opened(byte_level_folder)


def test_a_model_of_words_is_refused(sentencepiece_folder: Callable[..., Path]) -> None:
    with pytest.raises(Failure, match=r"put a tokenizer\.json beside it"):
        opened(sentencepiece_folder(model_type="word", byte_fallback=False))


@pytest.mark.parametrize(("declared", "begins"), [(None, True), (True, True), (False, False)])
def test_add_bos_token_is_for_slow_files_alone(
    sentencepiece_folder: Callable[..., Path], *, declared: bool | None, begins: bool
) -> None:
    """A tokenizer.json says it itself; transformers ignores the field there (huggingface/transformers#30947)."""
    folder = sentencepiece_folder()
    settings = {} if declared is None else {"add_bos_token": declared}
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "bos_token": "<s>"}))
    slow = opened(folder)
    assert slow.before("the fox") == slow.encode_prompt("")[:begins] == [slow.bos][:begins]
    with tokenizer_of(folder) as path:
        path.rename(folder / "tokenizer.json")
    (folder / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": not begins, "bos_token": "<s>"}))
    with tokenizer_of(folder) as path:
        assert path.read_text() == (folder / "tokenizer.json").read_text()
