"""Stores hold the ids of ``tokenizers`` shuffled by key, and are the same for any engine, shards and batch sizes."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from two_sources import TRAIN, WEIGHTS, corpus, plain, texts, tokenize, tokenize_shards

from mtnlg_data import Local, document, exchange, write_documents
from mtnlg_data.console import Failure, UsageFailure
from mtnlg_data.steps.tokenize import TokenizeSettings
from mtnlg_data.text.hashing import salted_hashes
from mtnlg_data.tokens import encoding
from mtnlg_data.tokens import store as store_module
from mtnlg_data.tokens.blend import read_blend
from mtnlg_data.tokens.store import TokenStore, writing_store
from mtnlg_data.tokens.tokenizer import EOD

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType


def contents(out: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(out.glob("*")) if p.is_file() and p.name != "stage.json"}


# --- what is written -------------------------------------------------------------------------------------------------


def test_store_has_ids_in_key_order_with_end_tokens(tmp_path: Path) -> None:
    account = tokenize(tmp_path, tmp_path / "out")
    blend = read_blend(tmp_path / "out")
    documents = {"web": [*texts, "", " ", f"a{EOD}b", "\x00\x7f\u0301", "\U0001f600" * 20], "code": texts[:21]}
    for source in blend.sources:
        own = documents[source.name]
        order = np.argsort(salted_hashes([f"{source.name}/{n}" for n in range(len(own))], str(TRAIN.seed))).tolist()
        assert order != sorted(order)
        store = TokenStore(tmp_path / "out" / source.prefix)
        expected = [[*plain(tmp_path / "out" / "tokenizer.json", own[n]), blend.eod] for n in order]
        assert [store[n].tolist() for n in range(len(store))] == expected
        assert (store.read(0, store.tokens) == blend.eod).sum() == len(store)  # no text can spell it
        with writing_store(tmp_path / source.name, blend.vocabulary) as writer:
            for ids in expected:
                writer.add(np.array(ids))
        for suffix in ("bin", "idx"):
            one_by_one = (tmp_path / f"{source.name}.{suffix}").read_bytes()
            assert (tmp_path / "out" / f"{source.name}.{suffix}").read_bytes() == one_by_one
        assert (source.documents, source.tokens, source.sha256) == (len(own), store.tokens, store.checksum())
        assert account["tokens"][source.name] == {
            "documents": len(own),
            "tokens": store.tokens,
            "weight": WEIGHTS[source.name],
        }
    assert account["documents_in"] == account["documents_out"] == 86
    assert Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json")).token_to_id(EOD) == blend.eod
    assert blend.vocabulary == account["vocabulary"] == blend.eod + 1
    keys = ["seed", "vocabulary", "eod", "validation", "sources"]
    assert list(json.loads((tmp_path / "out" / "blend.json").read_text())) == keys
    assert sorted(path.name for path in (tmp_path / "out").rglob("*.bin")) == ["code.bin", "web.bin"]  # and no copy


def test_unusual_end_token_is_named_beside_the_tokenizer(tmp_path: Path) -> None:
    out, unusual = tmp_path / "out", TRAIN.model_copy(update={"eod": "<|document|>"})
    for settings, named in ((unusual, True), (TRAIN, False), (unusual, True)):
        tokenize(tmp_path, out, settings)
        name = out / "generation_config.json"
        assert name.exists() == named
        if named:
            assert json.loads(name.read_text()) == {"eos_token_id": read_blend(out).eod}


def test_entropy_is_of_the_weighted_training_blend(tmp_path: Path) -> None:
    account = tokenize(tmp_path, tmp_path / "out")
    mixture: Counter[int] = Counter()
    for source, weight in WEIGHTS.items():
        store = TokenStore(tmp_path / "out" / source)
        held_out = int(0.1 * len(store) + 0.5)
        seen = list(itertools.chain(*(store[n].tolist() for n in range(len(store) - held_out))))
        for token in seen:
            mixture[token] += weight / len(seen)  # type: ignore[assignment]
    expected = -sum(share * math.log(share) for share in mixture.values())
    assert account["unigram_entropy_nats"] == pytest.approx(expected, rel=1e-9)


# --- what changes no byte -------------------------------------------------------------------------------------------


def test_store_bytes_ignore_workers_and_shards(tmp_path: Path) -> None:
    for folder in "abc":
        (tmp_path / folder).mkdir()
    tokenize(tmp_path / "a", tmp_path / "a" / "out")
    with contextlib.closing(Local(2)) as two:
        backwards = {source: paths[::-1] for source, paths in corpus(tmp_path / "b").items()}
        tokenize_shards(dict(reversed(backwards.items())), tmp_path / "b" / "out", TRAIN, WEIGHTS, two)
    given_settings = TokenizeSettings(tokenizer=str(tmp_path / "a" / "out" / "tokenizer.json"), validation=0.1)
    tokenize(tmp_path / "c", tmp_path / "c" / "out", given_settings, shards=1)
    a, b, c = (contents(tmp_path / folder / "out") for folder in "abc")
    for name in ("web.bin", "web.idx", "code.bin", "code.idx", "tokenizer.json"):
        assert a[name] == b[name] == c[name], name


def in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything small: row groups, units, batches, and the number of files that a unit may open."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(document, "ROWS_PER_GROUP", 7)
    monkeypatch.setattr(encoding, "TEXT_BYTES_PER_UNIT", 1000)
    monkeypatch.setattr(exchange, "RUN_BYTES", 200)
    monkeypatch.setattr(exchange, "FAN_OUT", 2)


STORE_FILES = ("web.bin", "web.idx", "code.bin", "code.idx", "tokenizer.json", "blend.json")


def test_row_groups_and_merges_change_no_byte_of_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tokenize(tmp_path, tmp_path / "whole")
    in_pieces(monkeypatch)
    (tmp_path / "pieces").mkdir()
    merged = note(monkeypatch, exchange, "merge")
    account = tokenize(tmp_path / "pieces", tmp_path / "pieces" / "out")
    assert len({output.name[0] for _, output in merged}) >= 2
    assert max(len(work.files) for work, _ in merged) == 2
    for name in STORE_FILES:
        assert contents(tmp_path / "whole")[name] == contents(tmp_path / "pieces" / "out")[name], name
    assert account["unigram_entropy_nats"] == whole["unigram_entropy_nats"]


def note(monkeypatch: pytest.MonkeyPatch, module: ModuleType, function: str) -> list[tuple[Any, Path]]:
    """Note what a function of tasks is called with."""
    original, calls = getattr(module, function), []

    def noted(work: Any, output: Path) -> object:  # noqa: ANN401
        calls.append((work, output))
        return original(work, output)

    monkeypatch.setattr(module, function, noted)
    return calls


def test_the_checksum_of_a_store_of_several_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "SPAN_BYTES", 4096)
    bytewise = TokenizeSettings(vocabulary=260, validation=0.1)
    account = tokenize(tmp_path, tmp_path / "out", bytewise)
    assert (tmp_path / "out" / "web.bin").stat().st_size > 4096
    for source in read_blend(tmp_path / "out").sources:
        store = TokenStore(tmp_path / "out" / source.name)
        assert source.sha256 == store.checksum() == store_module.span_digest(store.files, threads=3)
    assert tokenize(tmp_path, tmp_path / "out", bytewise) == account  # the manifest's digests are those of the files


# --- refusals --------------------------------------------------------------------------------------------------------


def test_a_source_without_weight_or_documents_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageFailure, match=r"sources\.code: weight"):
        tokenize(tmp_path, tmp_path / "out", weights={"web": 1.0})
    path = tmp_path / "none-00000.parquet"
    write_documents(path, [])
    with pytest.raises(Failure, match="source none has no document left to tokenize"):
        tokenize_shards({"none": [path]}, tmp_path / "out", TRAIN, {"none": 1.0}, Local(1))
