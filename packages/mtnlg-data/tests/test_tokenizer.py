"""Tokenizers: trained on a sample of the documents, or read from files, with an end token of their own."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shards import write_shard
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from two_sources import plain, texts, tokenize

from mtnlg_data import Document, TokenStore
from mtnlg_data.console import Failure
from mtnlg_data.document import number_shards, text_bytes
from mtnlg_data.steps.tokenize import TokenizeSettings
from mtnlg_data.tokens import gpt2
from mtnlg_data.tokens.blend import read_blend
from mtnlg_data.tokens.tokenizer import (
    EOD,
    check_tokenizer,
    draw_sample,
    sample_limits,
    tokenizer_files,
    train_tokenizer,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def test_training_ignores_threads_and_hash_seeds() -> None:
    program = (
        "import sys, hashlib; from mtnlg_data.tokens.tokenizer import train_tokenizer;"
        "texts = [f'word{n % 97} and{n % 31} more {n}' for n in range(3000)];"
        "print(hashlib.sha256(train_tokenizer(iter(texts), 600).to_str().encode()).hexdigest())"
    )
    answers = set()
    for threads, seed in (("1", "0"), ("4", "1"), ("2", "random")):
        environment = {**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": seed}
        answers.add(
            subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True).stdout
        )
    assert len(answers) == 1


# --- tokenizers ------------------------------------------------------------------------------------------------------


@given(text=st.text())
def test_a_trained_tokenizer_gives_every_text_back(text: str) -> None:
    tokenizer = byte_level()
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def byte_level(made: list[Tokenizer] = []) -> Tokenizer:  # noqa: B006  (trained once)
    if not made:
        made.append(train_tokenizer(iter(texts), 300))
    return made[0]


def test_vocabulary_has_the_requested_size_or_the_maximum(tmp_path: Path) -> None:
    assert train_tokenizer(iter(["ab"]), 300).get_vocab_size() == 257
    byte_level().save(str(tmp_path / "tokenizer.json"))
    account = tokenize(tmp_path, tmp_path / "out", TokenizeSettings(tokenizer=str(tmp_path)))  # the folder of one
    assert (account["vocabulary"], read_blend(tmp_path / "out").eod) == (300, 299)


def test_gpt2_by_name_is_downloaded_once_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = tmp_path / "served"
    served.mkdir()
    files = {name: f"{{{name}}}".encode() for name in gpt2.FILES}
    monkeypatch.setattr(gpt2, "FILES", {name: hashlib.sha256(content).hexdigest() for name, content in files.items()})

    monkeypatch.setattr(gpt2.fetch_gpt2, "__defaults__", (f"file://{served}",))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, content in files.items():
        (served / name).write_bytes(content if name == "encoder.json" else b"another file")
    with pytest.raises(Failure, match=r"vocab\.bpe: not GPT-2's file; give a folder with encoder\.json and vocab\.bpe"):
        check_tokenizer(TokenizeSettings(tokenizer="gpt2"))
    (served / "vocab.bpe").write_bytes(files["vocab.bpe"])
    (served / "encoder.json").unlink()  # it is here
    found = tokenizer_files(TokenizeSettings(tokenizer="gpt2"))
    assert [path.read_bytes() for path in found] == list(files.values())
    assert tokenizer_files(TokenizeSettings(tokenizer="gpt2")) == found
    found[0].write_bytes(b"damaged")
    (served / "encoder.json").write_bytes(files["encoder.json"])
    assert tokenizer_files(TokenizeSettings(tokenizer="gpt2"))[0].read_bytes() == files["encoder.json"]


def words(path: Path, *names: str, special: Sequence[str] = ()) -> Tokenizer:
    """A tokenizer.json of these words and "[UNK]"."""
    tokenizer = Tokenizer(WordLevel({name: n for n, name in enumerate((*names, "[UNK]"))}, unk_token="[UNK]"))  # noqa: S106
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.add_special_tokens(list(special))
    tokenizer.save(str(path))
    return tokenizer


def test_tokenizer_post_processing_is_ignored(tmp_path: Path) -> None:
    own = words(tmp_path / "words.json", "quick", "[CLS]")
    own.post_processor = TemplateProcessing("[CLS] $A", special_tokens=[("[CLS]", 1)])
    own.enable_truncation(2)
    own.save(str(tmp_path / "words.json"))
    tokenize(tmp_path, tmp_path / "out", TokenizeSettings(tokenizer=str(tmp_path / "words.json")))
    store = TokenStore(tmp_path / "out" / "code")
    assert min(len(store[n]) for n in range(len(store))) > 10
    assert set(store.read(0, store.tokens).tolist()) == {0, 2, 3}
    assert Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json")).encode("quick").ids == [0]


@pytest.mark.parametrize(
    ("names", "special", "asked", "expected"),
    [
        (["quick"], [], None, (3, 2)),  # a new one
        (["quick"], ["</s>"], None, (3, 2)),  # its own
        (["quick"], ["</s>", "[PAD]", EOD], None, (5, 4)),  # the usual name before the others
        (["quick"], ["</s>", "[END]"], "[END]", (4, 3)),
        (["quick"], ["[PAD]"], "[END]", (4, 3)),  # new
        (["</s>"], [], None, (3, 2)),  # a word that looks like one is a word
        ([EOD, "quick"], [], None, (3, 0)),  # wherever it stands
    ],
)
def test_documents_end_with_the_own_or_requested_token(
    tmp_path: Path, names: list[str], special: list[str], asked: str | None, expected: tuple[int, int]
) -> None:
    words(tmp_path / "words.json", *names, special=special)
    account = tokenize(tmp_path, tmp_path / "out", TokenizeSettings(tokenizer=str(tmp_path / "words.json"), eod=asked))
    assert (account["vocabulary"], eod := read_blend(tmp_path / "out").eod) == expected
    store = TokenStore(tmp_path / "out" / "code")
    assert all(store[n].tolist().index(eod) == len(store[n]) - 1 for n in range(len(store)))


@pytest.mark.parametrize(
    ("special", "bos", "expected"),
    [
        (["<s>", "</s>"], True, [2]),
        (["<bos>", "[BOS]", "</s>"], True, [2]),
        (["[START]", "</s>"], "[START]", [2]),
        (["</s>"], "quick", [0]),  # any token that is there
        (["</s>"], "</s>", [2]),
        (["<s>", "</s>"], None, []),
    ],
)
def test_texts_begin_with_the_requested_token(
    tmp_path: Path, special: list[str], bos: str | Literal[True] | None, expected: list[int]
) -> None:
    words(tmp_path / "words.json", "quick", special=special)
    settings = TokenizeSettings(tokenizer=str(tmp_path / "words.json"), bos=bos)
    tokenize(tmp_path, tmp_path / "out", settings)
    eod, store = read_blend(tmp_path / "out").eod, TokenStore(tmp_path / "out" / "web")
    documents = [store[n].tolist() for n in range(len(store))]
    plain_ids = [plain(tmp_path / "out" / "tokenizer.json", text) for text in ("", "brown quick")]
    assert [*expected, eod] in documents  # the empty one
    assert all(ids[: len(expected)] == expected and ids[-1] == eod for ids in documents)
    assert all({*expected, eod}.isdisjoint(ids[len(expected) : -1]) for ids in documents)
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert [tokenizer.encode(text).ids for text in ("", "brown quick")] == [[*expected, *ids] for ids in plain_ids]


@pytest.mark.parametrize("bos", [True, "[NONE]"])
def test_a_beginning_token_that_the_tokenizer_lacks_is_refused(tmp_path: Path, bos: str | Literal[True]) -> None:
    words(tmp_path / "words.json", "quick", "<s>", special=["</s>"])  # a word that looks like one is a word
    with pytest.raises(Failure, match=r"tokenize\.bos: the tokenizer has no token "):
        check_tokenizer(TokenizeSettings(tokenizer=str(tmp_path / "words.json"), bos=bos))
    with pytest.raises(ValueError, match="bos needs a tokenizer to read"):
        TokenizeSettings(vocabulary=300, bos=bos)


@pytest.mark.parametrize("token", ["[DONE]", {"content": "[DONE]", "lstrip": False}])
def test_end_token_of_the_configuration_is_used(tmp_path: Path, token: object) -> None:
    own = words(tmp_path / "tokenizer.json", "quick", special=["[DONE]"])
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": token}))
    with pytest.raises(Failure, match=r"tokenizer_config\.json .* ends texts with '\[DONE\]'; set tokenize\.eod"):
        check_tokenizer(TokenizeSettings(tokenizer=str(tmp_path)))
    check_tokenizer(TokenizeSettings(tokenizer=str(tmp_path), eod="[DONE]"))
    own.add_special_tokens(["</s>"])  # a known name that it has is taken as before
    own.save(str(tmp_path / "tokenizer.json"))
    check_tokenizer(TokenizeSettings(tokenizer=str(tmp_path)))


@pytest.mark.parametrize(
    "config", [None, "{}", "[]", "1", "[" * 9999, '{"eos_token": null}', '{"eos_token": "[NONE]"}']
)
def test_an_end_token_that_is_added_is_announced(
    tmp_path: Path, config: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    words(tmp_path / "tokenizer.json", "quick")
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(config)
    check_tokenizer(TokenizeSettings(tokenizer=str(tmp_path)))
    assert f"has no token {EOD}; it is added as number 2; tokenize.eod sets another" in capsys.readouterr().err
    check_tokenizer(TokenizeSettings(tokenizer=str(tmp_path), eod="quick"))
    assert not capsys.readouterr().err


@pytest.mark.parametrize(("bos", "said"), [(None, "<s> before a text, but documents begin without it"), (True, "")])
def test_a_beginning_token_that_is_left_out_is_announced(
    tmp_path: Path, bos: Literal[True] | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own = words(tmp_path / "tokenizer.json", "quick", special=["<s>", "</s>"])
    own.post_processor = TemplateProcessing("<s> $A", special_tokens=[("<s>", own.token_to_id("<s>"))])
    own.save(str(tmp_path / "tokenizer.json"))
    check_tokenizer(TokenizeSettings(tokenizer=str(tmp_path), bos=bos))
    err = capsys.readouterr().err
    assert (said in err, err.count("\n")) == (True, bool(said))


# --- the sample ------------------------------------------------------------------------------------------------------


def test_bounded_sample_is_proportional_to_weights(tmp_path: Path) -> None:
    paths = {}
    for source in ("a", "b", "few"):
        rows = [Document(f"{source}/{n}", source, f"{source}{n} " * 30) for n in range(20 if source == "few" else 4000)]
        path = tmp_path / f"{source}-00000.parquet"
        write_shard(path, rows)
        paths[source] = number_shards([path])

    def counts(seed: int, sample_bytes: int) -> Counter[str]:
        weights = {"a": 0.6, "b": 0.3, "few": 0.1}
        settings = TokenizeSettings(vocabulary=300, seed=seed, sample_bytes=sample_bytes)
        sizes = {shard.path: sum(text_bytes(shard.path)) for own in paths.values() for shard in own}
        limits = sample_limits(paths, sizes, weights, settings)
        for number, limit in enumerate(limits):
            draw_sample(limit, tmp_path / f"{number}.sample", seed)
        samples = [pq.read_table(tmp_path / f"{number}.sample")["text"] for number in range(len(limits))]
        return Counter(text[:1] for sample in samples for text in sample.to_pylist())

    everything = counts(1, 10**9)
    assert everything == {"a": 4000, "b": 4000, "f": 20}
    sampled = counts(1, sum_of_text(paths) // 10)  # 0.6 and 0.3 of a tenth of two equal halves
    assert sampled["a"] / 4000 == pytest.approx(0.12, abs=0.02)
    assert sampled["b"] / 4000 == pytest.approx(0.06, abs=0.015)
    assert sampled["f"] == 20
    assert sampled == counts(1, sum_of_text(paths) // 10) != counts(2, sum_of_text(paths) // 10)


def sum_of_text(shards: Mapping[str, Sequence[Any]]) -> int:
    return sum(sum(text_bytes(shard.path)) for own in shards.values() for shard in own)
