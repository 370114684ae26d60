"""Merged stores hold every document once, those of each store spread evenly over the output."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from command_line import command
from hypothesis import given, settings
from hypothesis import strategies as st

from mtnlg_data.console import Failure
from mtnlg_data.tokens import merge as merge_module
from mtnlg_data.tokens.merge import merge
from mtnlg_data.tokens.store import TokenStore, writing_store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def write(prefix: Path, documents: Sequence[Sequence[int]], vocabulary: int = 1000) -> Path:
    with writing_store(prefix, vocabulary) as writer:
        for document in documents:
            writer.add(np.array(document, np.int64))
    return prefix


def contents(store: TokenStore) -> list[list[int]]:
    return [store[number].tolist() for number in range(len(store))]


stores_of_documents = st.lists(st.lists(st.lists(st.integers(0, 999), max_size=4), max_size=30), min_size=1, max_size=5)


@settings(max_examples=15)
@given(stores=stores_of_documents, batch=st.integers(1, 40))
def test_merge_interleaves_by_relative_position(
    stores: list[list[list[int]]], batch: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("merge")
    prefixes = [write(folder / f"{number}", documents) for number, documents in enumerate(stores)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge_module, "DOCUMENTS_PER_BATCH", batch)
        merged = merge(prefixes, folder / "merged")
    placed = [((j + 0.5) / len(own), document) for own in stores for j, document in enumerate(own)]
    assert contents(merged) == [document for _, document in sorted(placed, key=lambda pair: pair[0])]


def test_merge_refuses_other_tokenizers_and_its_own_output(tmp_path: Path) -> None:
    small, large = write(tmp_path / "a" / "x", [[1]]), write(tmp_path / "b" / "y", [[1]], 70_000)
    with pytest.raises(Failure, match=r"y: tokens of int32, where .*x has uint16; give stores of one tokenizer"):
        merge([small, large], tmp_path / "out")
    with pytest.raises(Failure, match="x: given twice"):
        merge([small, tmp_path / "b" / ".." / "a" / "x"], tmp_path / "out")
    with pytest.raises(Failure, match=r"x: is one of the stores to merge; give another --out"):
        merge([small], small)
    other = write(tmp_path / "b" / "z", [[2]])
    for folder in "ab":
        (tmp_path / folder / "tokenizer.json").write_text(folder)
    with pytest.raises(Failure, match=r"tokenizer\.json: another tokenizer than .*tokenizer\.json; tokenize one"):
        merge([small, other], tmp_path / "out")
    (tmp_path / "b" / "tokenizer.json").write_text("a")
    assert contents(merge([small, other], tmp_path / "out")) == [[1], [2]]


def test_the_command_merges_stores_by_prefix_or_file(tmp_path: Path) -> None:
    for name, documents in (("a", [[1], [2]]), ("b.c", [[3]])):
        write(tmp_path / name, documents)
    words = ["merge", tmp_path / "a", tmp_path / "b.c.idx", "--out", tmp_path / "all", "--json"]
    printed = json.loads(command(*words).stdout)
    merged = TokenStore(tmp_path / "all")
    assert contents(merged) == [[1], [3], [2]]
    assert printed == {
        "prefix": str(tmp_path / "all"),
        "documents": 3,
        "tokens": 3,
        "sha256": merged.checksum(),
    }
