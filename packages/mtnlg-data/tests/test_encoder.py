"""Ids are those of ``tokenizers`` for every kind of tokenizer, and texts that spell special tokens are text."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizer_kinds import KINDS, SPECIAL, differences, odd_text, train_kind
from tokenizers import ByteLevelBPETokenizer, Tokenizer

from mtnlg_data.console import Failure
from mtnlg_data.fingerprint import fingerprint
from mtnlg_data.job import Done
from mtnlg_data.steps.tokenize import TokenizeSettings
from mtnlg_data.tokens import encoder as encoder_module
from mtnlg_data.tokens.encoder import MAX_BATCH_CHARACTERS, OVERLAP, open_encoder
from mtnlg_data.tokens.encoding import Encoding
from mtnlg_data.tokens.tokenizer import EOD, read_tokenizer, train_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mtnlg_data.steps.tokenize import Library
    from mtnlg_data.tokens.encoder import Encoder

LIBRARIES: tuple[Library, ...] = ("tokenizers", "auto")
TEXTS = [f"The {n} quick brown foxes — naïve café {n * n} 日本\n\tdef f{n}(x): return x" for n in range(60)]
NEW_LETTERS = ["\U0003275f's", "a\U00032d59't b", "\u10d0\u1c90's", "\u088f\u088f x"]
AWKWARD = ["", " ", f"a{EOD}b", "\x00\x7f\u0301", "\U0001f600" * 20, "it's 'S  don'T\r\n\n  x", "\u00a0\u2003 a\u2028b"]


def gpt2_files(gpt2: Path) -> list[Path]:
    return [gpt2 / "encoder.json", gpt2 / "vocab.bpe"]


@pytest.fixture(scope="module", params=["trained", "gpt2"])
def path(request: pytest.FixtureRequest, gpt2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    trained = request.param == "trained"
    tokenizer = train_tokenizer(iter(TEXTS), 400) if trained else read_tokenizer(gpt2_files(gpt2))
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture(scope="module", params=LIBRARIES)
def encode(request: pytest.FixtureRequest, path: Path) -> Encoder:
    return open_encoder(path, cast("Library", request.param))


@pytest.fixture(scope="module")
def oracle(path: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.encode_special_tokens = True
    return tokenizer


@given(texts=st.lists(st.one_of(st.text(), st.sampled_from(TEXTS + AWKWARD + NEW_LETTERS)), max_size=8))
def test_ids_match_tokenizers_one_text_at_a_time(texts: list[str], encode: Encoder, oracle: Tokenizer) -> None:
    ids, sizes = encode(texts)
    assert (ids.dtype.name, sizes.dtype.name) == ("uint32", "int64")
    expected = [oracle.encode(text, add_special_tokens=False).ids for text in texts]
    assert sizes.tolist() == [len(each) for each in expected]
    assert ids.tolist() == [one for each in expected for one in each]


def test_gpt2_ids_match_tokenizers_gpt2_class(gpt2: Path, tmp_path: Path) -> None:
    theirs = ByteLevelBPETokenizer(*map(str, gpt2_files(gpt2)))
    read_tokenizer(gpt2_files(gpt2)).save(str(tmp_path / "tokenizer.json"))
    texts = [*TEXTS, *AWKWARD, *NEW_LETTERS, Path(__file__).read_text(encoding="utf-8")]
    ids, _ = open_encoder(tmp_path / "tokenizer.json", "auto")(texts)
    assert ids.tolist() == [one for text in texts for one in theirs.encode(text).ids]


# --- long texts ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> tuple[str, Tokenizer]:
    return request.param, train_kind(request.param)


@pytest.mark.parametrize(("window", "overlap"), [(MAX_BATCH_CHARACTERS, OVERLAP), (1000, 251)])
def test_ids_match_the_library_at_any_length(
    kind: tuple[str, Tokenizer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int, overlap: int
) -> None:
    monkeypatch.setattr(encoder_module, "MAX_BATCH_CHARACTERS", window)
    monkeypatch.setattr(encoder_module, "OVERLAP", overlap)
    random = Random(window)
    lengths = [random.randrange(300) for _ in range(30)] + [8 * window + 77] * (3 if window == 1000 else 0)
    assert not differences(kind[1], tmp_path, [odd_text(random, length) for length in lengths] + AWKWARD)


def record_lengths(encode: Encoder, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many characters the library is given at once from now on."""
    lengths: list[int] = []
    library = encode.encode  # type: ignore[attr-defined]

    def record(texts: Sequence[str]) -> object:
        lengths.extend(map(len, texts))
        return library(texts)

    monkeypatch.setattr(encode, "encode", record)
    return lengths


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("text", "longest"),
    [
        ("don't 12 日本語。\n\n" * 300, 1000),
        ("".join(Random(2).choices("ACGT", k=4321)), 1000),  # a word without end
        ("a" + "=" * 5000, 5001),  # a window's ids depend on where it begins
        ("a " * 200 + "=" * 999 + " b" * 900, 2000),
    ],
    ids=["prose", "genome", "run", "run-within"],
)
def test_long_text_is_encoded_in_growing_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, longest: int, library: Library
) -> None:
    monkeypatch.setattr(encoder_module, "MAX_BATCH_CHARACTERS", 1000)
    monkeypatch.setattr(encoder_module, "OVERLAP", 251)
    tokenizer = train_kind("gpt2")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    encode = open_encoder(tmp_path / "tokenizer.json", library)
    lengths = record_lengths(encode, monkeypatch)
    ids, sizes = encode(["before", text, ""])
    expected = [tokenizer.encode(each).ids for each in ("before", text)]
    assert (ids.tolist(), sizes.tolist()) == ([*expected[0], *expected[1]], [*map(len, expected), 0])
    assert max(lengths) == longest
    assert sum(lengths) < 6 * len(text)


@pytest.mark.parametrize(
    ("name", "text"),
    [("gpt2", "a" + "=" * 600_000), ("t5", "a" + "=" * 600_000), ("albert", "the quick " * 60_000)],
    ids=["from its beginning", "from its end", "by a sum over all of it"],
)
def test_text_near_the_window_limit_is_encoded_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    tokenizer = train_kind(name)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    encode = open_encoder(tmp_path / "tokenizer.json", "tokenizers")
    lengths = record_lengths(encode, monkeypatch)
    assert encode([text])[0].tolist() == tokenizer.encode(text, add_special_tokens=False).ids
    assert max(lengths) == len(text)


# --- special tokens --------------------------------------------------------------------------------------------------


def test_spelled_special_tokens_are_text(kind: tuple[str, Tokenizer], tmp_path: Path) -> None:
    """Trained on texts with them, so that merges and pieces spell them."""
    name, _ = kind
    tokenizer = train_kind(name, keep_special=True)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    encode = open_encoder(tmp_path / "tokenizer.json", "tokenizers")
    for text in ("</s>", "a </s> b", "the</s>", "<s><s> </s></s>", " <s> ", "x" * 99 + "</s>"):
        ids, _ = encode([text])
        assert len(ids)
        assert {tokenizer.token_to_id(special) for special in SPECIAL[1:]}.isdisjoint(ids.tolist())
        if type(tokenizer.model).__name__ == "BPE" and name != "clip":  # which marks ends of words
            tokens = "".join(tokenizer.id_to_token(number) or "" for number in ids.tolist())
            assert tokens.replace("\u2581", " ").replace("Ġ", " ").strip() == text.strip()


def test_bpe_dropout_is_ignored(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(iter(TEXTS), 400)
    expected = [tokenizer.encode(text).ids for text in TEXTS]
    tokenizer.model.dropout = 0.5
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ids, _ = open_encoder(tmp_path / "tokenizer.json", "tokenizers")(TEXTS)
    assert ids.tolist() == [one for each in expected for one in each]


# --- gigatoken -------------------------------------------------------------------------------------------------------


def test_gigatoken_is_used_where_it_is_installed(path: Path) -> None:
    pytest.importorskip("gigatoken", reason="gigatoken is not installed")
    kinds = [type(open_encoder(path, library).encode).__name__ for library in LIBRARIES]  # type: ignore[attr-defined]
    assert kinds == ["_Tokenizers", "_Gigatoken"]


@pytest.mark.parametrize("fault", ["other ids", "unsupported", "missing"])
def test_tokenizers_encodes_where_gigatoken_cannot(path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    def from_json(_: str) -> object:
        if fault == "unsupported":
            raise ValueError("unsupported model")
        return SimpleNamespace(encode_batch=encode_each_as_one)

    def encode_each_as_one(texts: Sequence[str], *, parallel: bool) -> object:
        offsets = SimpleNamespace(data=np.arange(len(texts) + 1))
        return SimpleNamespace(
            layout=SimpleNamespace(offsets=offsets, content=SimpleNamespace(data=np.ones(len(texts)) + parallel))
        )

    gigatoken = SimpleNamespace(Tokenizer=SimpleNamespace(from_json=from_json))
    monkeypatch.setitem(sys.modules, "gigatoken", None if fault == "missing" else gigatoken)
    encode, expected = open_encoder(path, "auto"), open_encoder(path, "tokenizers")(TEXTS)[0].tolist()
    for _ in range(2):
        assert encode(TEXTS)[0].tolist() == expected


def test_encoder_library_is_in_no_key() -> None:
    settings = [TokenizeSettings(vocabulary=400, library=each) for each in LIBRARIES]
    tokenizer = Done(Path("tokenizer.json"), "key")
    assert len({fingerprint(each) for each in settings}) == 1
    assert len({fingerprint(Encoding(tokenizer, 2, [1], 3, each)) for each in LIBRARIES}) == 1


def tokenizer_json(**parts: Any) -> str:  # noqa: ANN401  (JSON)
    end = {"id": 0, "content": EOD, "special": True}
    end |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    model = {"type": "BPE", "vocab": {EOD: 0, "a": 1}, "merges": []}
    return json.dumps({"version": "1.0", "added_tokens": [end], "model": model, **parts})


def test_expanding_tokenizer_is_refused_before_it_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the rules of mtnlg_model's copy of tokenizer_file.py, which its tests go through."""
    double = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    (tmp_path / "tokenizer.json").write_text(
        tokenizer_json(normalizer={"type": "Sequence", "normalizers": [double] * 24})
    )
    for reads in ("from_file", "from_str", "from_buffer"):
        monkeypatch.setattr(tokenizers.Tokenizer, reads, pytest.fail)
    with pytest.raises(Failure, match=r"tokenizer\.json: 16,777,216 times the length"):
        read_tokenizer([tmp_path / "tokenizer.json"])


def test_tokenizer_may_be_a_link_but_not_a_pipe(tmp_path: Path) -> None:
    """In a cache of downloads every file is a link."""
    (tmp_path / "blob").write_text(tokenizer_json())
    (tmp_path / "tokenizer.json").symlink_to("blob")
    assert read_tokenizer([tmp_path / "tokenizer.json"]).encode("aa").ids == [1, 1]
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Failure, match="not a regular file"):
        read_tokenizer([tmp_path / "pipe"])
