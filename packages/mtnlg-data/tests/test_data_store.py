"""Stores are in Megatron's format byte for byte, and damage is named with its file."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtnlg_data.console import Failure
from mtnlg_data.tokens import store as store_module
from mtnlg_data.tokens.store import TokenStore, bin_path, idx_path, writing_store

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType


@pytest.fixture(scope="module")
def indexed() -> ModuleType:
    return pytest.importorskip("megatron.core.datasets.indexed_dataset", reason="megatron-core is not installed")  # type: ignore[no-any-return]


def write(prefix: Path, documents: list[list[int]], vocabulary: int) -> TokenStore:
    with writing_store(prefix, vocabulary) as writer:
        for document in documents:
            writer.add(np.array(document, dtype=np.int64))
    return TokenStore(prefix)


documents_of_tokens = st.lists(st.lists(st.integers(0, 49_999), min_size=1, max_size=20), min_size=1, max_size=30)


# megatron-core's builder copies a tensor into NumPy 2 in the way of NumPy 1.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
@settings(max_examples=25)
@given(documents=documents_of_tokens, vocabulary=st.sampled_from([50_000, 250_000]), sentences=st.integers(1, 4))
def test_we_read_and_write_the_bytes_of_megatron_core(
    documents: list[list[int]],
    vocabulary: int,
    sentences: int,
    indexed: ModuleType,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    torch = pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("store")
    builder = indexed.IndexedDatasetBuilder(str(folder / "theirs.bin"), dtype=indexed.DType.optimal_dtype(vocabulary))
    for document in documents:
        parts = [part.tolist() for part in np.array_split(document, sentences)]
        builder.add_document(torch.tensor(document), [len(part) for part in parts])
    builder.finalize(str(folder / "theirs.idx"))
    theirs = TokenStore(folder / "theirs")
    assert [list(theirs[i]) for i in range(len(theirs))] == documents
    assert list(theirs.read(0, theirs.tokens)) == list(itertools.chain(*documents))
    assert [theirs.offset(i) for i in range(len(theirs) + 1)] == list(
        itertools.accumulate(map(len, documents), initial=0)
    )
    if sentences == 1:
        write(folder / "ours", documents, vocabulary)
        assert (folder / "ours.bin").read_bytes() == (folder / "theirs.bin").read_bytes()
        assert (folder / "ours.idx").read_bytes() == (folder / "theirs.idx").read_bytes()


def test_the_index_is_the_same_when_sizes_do_not_fit_one_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [[i] * (i % 7) for i in range(50)]
    write(tmp_path / "one", documents, 100)
    monkeypatch.setattr(store_module, "SIZES_PER_BATCH", 8)
    many = write(tmp_path / "many", documents, 100)
    assert (tmp_path / "one.idx").read_bytes() == (tmp_path / "many.idx").read_bytes()
    assert [len(many[i]) for i in range(50)] == [i % 7 for i in range(50)]


def test_an_empty_store_can_be_written_and_read(tmp_path: Path) -> None:
    store = write(tmp_path / "empty", [], 10)
    assert (store.documents, store.tokens, store.offset(0)) == (0, 0, 0)


@pytest.mark.parametrize("wrong", [[-1], [10], [0, 70_000]])
def test_id_outside_the_vocabulary_changes_nothing(tmp_path: Path, wrong: list[int]) -> None:
    for before in ([], ["x.bin", "x.idx"]):
        with pytest.raises(ValueError, match="outside the vocabulary of 10"):
            write(tmp_path / "x", [[1], wrong], 10)
        assert sorted(path.name for path in tmp_path.iterdir()) == before
        write(tmp_path / "x", [[1, 2]], 10)
    assert TokenStore(tmp_path / "x")[0].tolist() == [1, 2]


def test_truncated_store_is_an_error_before_and_after_opening(tmp_path: Path) -> None:
    store = write(tmp_path / "x", [[1, 2], [3]], 10)
    with bin_path(tmp_path / "x").open("r+b") as file:
        file.truncate(4)
    with pytest.raises(Failure, match=r"x\.bin: ends before byte 6; it was cut short after it was opened"):
        store[1]
    with pytest.raises(Failure, match=r"x\.bin: holds 4 bytes where its index says 6"):
        TokenStore(tmp_path / "x")
    with idx_path(tmp_path / "x").open("r+b") as file:
        file.truncate(60)
    with pytest.raises(Failure, match=r"x\.idx: ends before byte"):
        store[1]
    with pytest.raises(Failure, match=r"x\.idx: holds 60 bytes where 2 sequences need 82"):
        TokenStore(tmp_path / "x")


def test_rewrite_killed_before_its_index_leaves_no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "x", [[1, 2]], 10)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store_module, "_write_index", killed)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "x", [[3], [4]], 10)
    with pytest.raises(Failure, match=r"x\.idx: No such file"):
        TokenStore(tmp_path / "x")
    idx_path(tmp_path / "x").touch()
    bin_path(tmp_path / "x").unlink()
    with pytest.raises(Failure, match=r"x\.bin: No such file"):
        TokenStore(tmp_path / "x")


@settings(max_examples=60)
@given(byte=st.integers(0, 34 + 4 * 3 + 8 * 3 + 8 * 4 - 1), flip=st.integers(1, 255))
def test_damaged_index_is_an_error_or_reads_its_tokens(
    byte: int, flip: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    prefix = tmp_path_factory.mktemp("store") / "x"
    write(prefix, [[1, 2], [3], [4, 5]], 10)
    _flip(idx_path(prefix), byte, flip)
    with pytest.raises(Failure, match=r"x\.(idx|bin): ") if byte < 34 else contextlib.suppress(Failure):  # its header
        store = TokenStore(prefix)
        assert {token for document in range(3) for token in store[document].tolist()} <= {1, 2, 3, 4, 5}


def _flip(path: Path, byte: int, flip: int) -> None:
    content = bytearray(path.read_bytes())
    content[byte] ^= flip
    path.write_bytes(bytes(content))


def test_bounds_that_do_not_cover_the_sequences_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "x", [[1], [2]], 10)
    _flip(idx_path(tmp_path / "x"), 34 + 12 * 2 + 8 * 2, 1)
    with pytest.raises(Failure, match="document bounds do not cover its 2 sequences"):
        TokenStore(tmp_path / "x")


def test_out_of_range_tokens_and_documents_are_refused(tmp_path: Path) -> None:
    store = write(tmp_path / "x", [[1, 2], [3]], 10)
    for start, stop in ((-1, 1), (2, 1), (0, 4)):
        with pytest.raises(Failure, match=f"no tokens {start} to {stop} of 3"):
            store.read(start, stop)
    for document in (-1, 2):
        with pytest.raises(IndexError, match=f"document {document} of 2"):
            store[document]
