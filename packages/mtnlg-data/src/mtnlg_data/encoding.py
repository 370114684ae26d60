"""Texts → ids, without special tokens: by ``tokenizers``, or by gigatoken, whose ids are checked to be the same.

A text that spells a special token is text. gigatoken, an extra, is many times as fast; it knows the usual tokenizers.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from itertools import chain
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from tokenizers import Tokenizer

from .console import Failure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

Library = Literal["tokenizers", "gigatoken"]
TEXTS_AT_ONCE = 256
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
        self._tokenizer = Tokenizer.from_file(str(path))
        self._tokenizer.encode_special_tokens = True  # that is: encode what looks like a special token as text

    def __call__(self, texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        every = [encoding.ids for encoding in encodings]
        sizes = np.fromiter(map(len, every), np.int64, len(every))
        return np.fromiter(chain.from_iterable(every), np.uint32, int(sizes.sum())), sizes


class _Gigatoken:
    """Made anew for every unit: what it remembers of words grows with the texts."""

    def __init__(self, path: Path) -> None:
        require("gigatoken")
        import gigatoken  # noqa: PLC0415  (an extra)

        content = json.loads(path.read_text(encoding="utf-8"))
        content["added_tokens"] = [token for token in content.get("added_tokens", []) if not token["special"]]
        try:
            self._tokenizer = gigatoken.Tokenizer.from_json(json.dumps(content))
        except Exception as error:  # noqa: BLE001  (whatever it raises, the way out is the other library)
            what = str(error).partition("\n")[0]
            raise Failure(f'{path}: gigatoken does not know it: {what}; take library = "tokenizers"') from None
        self._path = path
        self._oracle: _Tokenizers | None = _Tokenizers(path)

    def __call__(self, texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        ids, sizes = self._encode(texts)
        if self._oracle is not None:
            expected, each = self._oracle(texts[:CHECKED])
            if sizes[:CHECKED].tolist() != each.tolist() or (ids[: len(expected)] != expected).any():
                raise Failure(f'{self._path}: gigatoken gives other ids than tokenizers; take library = "tokenizers"')
            self._oracle = None
        return ids, sizes

    def _encode(self, texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        lists = self._tokenizer.encode_batch(list(texts), parallel=False).layout
        offsets = np.asarray(lists.offsets.data, np.int64)
        return np.asarray(lists.content.data, np.uint32)[offsets[0] : offsets[-1]], np.diff(offsets)
