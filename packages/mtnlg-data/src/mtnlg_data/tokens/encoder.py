"""Texts → ids, without special tokens: by ``tokenizers``, or by gigatoken, whose ids are checked to be the same.

A text that spells a special token is text. gigatoken, an extra, is many times as fast; it knows the usual tokenizers.
Where words end depends on what is a letter, and that on the version of Unicode: of 1.1 M code points the two libraries
(0.10.0, 0.23.3) differ in 4,657, all of them newer than Unicode 14. So texts with letters, digits or spaces that are
newer than Unicode 3.2, which Python carries for good, are left to ``tokenizers``: few, and then every id is its.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from functools import cache, lru_cache
from importlib.util import find_spec
from itertools import chain
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from tokenizers import Tokenizer

from mtnlg_data.console import Failure
from mtnlg_data.words import code_points

from .merge import picked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

Library = Literal["tokenizers", "gigatoken"]
TEXTS_AT_ONCE = 4096
CHARACTERS_AT_ONCE = 4_000_000  # ``tokenizers`` takes up to a hundred bytes for every token it returns
CHECKED = 32  # texts at the start of every unit that both libraries encode


class Encoder(Protocol):
    """Encodes texts."""

    def __call__(self, texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """The ids of all texts one after another, and how many each has."""


def require(library: Library) -> None:
    """Raise ``Failure`` where this library is not installed."""
    if find_spec(library) is None:
        raise Failure(
            f'library = "{library}": not installed; pip install "mtnlg-data[{library}]", or take "tokenizers"'
        )


def opened(path: Path) -> Tokenizer:
    """The tokenizer of this file, read once a worker, to which what looks like a special token is text."""
    return _opened(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=1)
def _opened(path: Path, changed: int) -> Tokenizer:
    del changed
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.encode_special_tokens = True
    return tokenizer


def encoder(tokenizer: Path, library: Library) -> Encoder:
    """An encoder by this tokenizer.json. Raises ``Failure`` where the library is not there or does not know it."""
    return _Tokenizers(tokenizer) if library == "tokenizers" else _Gigatoken(tokenizer)


def some_at_once(texts: Sequence[str]) -> Iterator[slice]:
    """Stretches of ``texts`` that are short enough to encode together."""
    begin = characters = 0
    for end, text in enumerate(texts):
        if end - begin == TEXTS_AT_ONCE or (characters and characters + len(text) > CHARACTERS_AT_ONCE):
            yield slice(begin, end)
            begin, characters = end, 0
        characters += len(text)
    if begin < len(texts):
        yield slice(begin, len(texts))


class _Tokenizers:
    def __init__(self, path: Path) -> None:
        self._tokenizer = opened(path)

    def __call__(self, texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        # Not encode_batch_fast, which of GPT-2's ids made a quarter fewer a second (tokenizers 0.23.3).
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        every = [encoding.ids for encoding in encodings]
        sizes = np.fromiter(map(len, every), np.int64, len(every))
        return np.fromiter(chain.from_iterable(every), np.uint32, int(sizes.sum())), sizes


class _Gigatoken:
    """Made anew for every unit: what it remembers of words grows with the texts."""

    def __init__(self, path: Path) -> None:
        require("gigatoken")
        import gigatoken  # noqa: PLC0415  (an extra)

        try:
            self._tokenizer = gigatoken.Tokenizer.from_json(_without_special(path, path.stat().st_mtime_ns))
        except Exception as error:  # noqa: BLE001  (whatever it raises, the way out is the other library)
            what = str(error).partition("\n")[0]
            raise Failure(f'{path}: gigatoken does not know it: {what}; take library = "tokenizers"') from None
        self._path = path
        self._oracle = _Tokenizers(path)
        self._checked = False

    def __call__(self, texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        newer = _with_newer(texts)
        ids, sizes = self._encode([text for text, left in zip(texts, newer, strict=True) if not left])
        if not self._checked and len(sizes):
            self._check([text for text, left in zip(texts, newer, strict=True) if not left][:CHECKED], ids, sizes)
        if not newer.any():
            return ids, sizes
        others, each = self._oracle([text for text, left in zip(texts, newer, strict=True) if left])
        places = np.argsort(np.concatenate([np.flatnonzero(~newer), np.flatnonzero(newer)]))
        every, sizes = picked(np.concatenate([ids, others]), np.concatenate([sizes, each]), places)
        return every.astype(np.uint32, copy=False), sizes

    def _check(self, texts: Sequence[str], ids: NDArray[np.uint32], sizes: NDArray[np.int64]) -> None:
        expected, each = self._oracle(texts)
        if sizes[: len(each)].tolist() != each.tolist() or (ids[: len(expected)] != expected).any():
            raise Failure(f'{self._path}: gigatoken gives other ids than tokenizers; take library = "tokenizers"')
        self._checked = True

    def _encode(self, texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        lists = self._tokenizer.encode_batch(list(texts), parallel=False).layout
        offsets = np.asarray(lists.offsets.data, np.int64)
        return np.asarray(lists.content.data, np.uint32)[offsets[0] : offsets[-1]], np.diff(offsets)


@lru_cache(maxsize=1)
def _without_special(path: Path, changed: int) -> str:
    """The tokenizer.json, made once a worker, in which nothing is a special token."""
    del changed
    content = json.loads(path.read_text(encoding="utf-8"))
    content["added_tokens"] = [token for token in content.get("added_tokens", []) if not token["special"]]
    return json.dumps(content)


def _with_newer(texts: Sequence[str]) -> NDArray[np.bool_]:
    """Which of the texts hold what may be a letter, a digit or a space since some version of Unicode after 3.2."""
    joined = "".join(texts)
    if joined.isascii():
        return np.zeros(len(texts), np.bool_)
    places = np.flatnonzero(_newer()[code_points(joined)])
    ends = np.cumsum([len(text) for text in texts])
    return np.bincount(np.searchsorted(ends, places, "right"), minlength=len(texts)).astype(np.bool_)


@cache
def _newer() -> NDArray[np.bool_]:
    then, now = unicodedata.ucd_3_2_0.category, unicodedata.category
    every = map(chr, range(sys.maxunicode + 1))
    return np.array([then(one) == "Cn" and now(one)[0] in "LNZC" for one in every], np.bool_)
