"""Encoders: texts to token ids, by ``tokenizers`` or by gigatoken, with the same ids from both.

A text that spells a special token is encoded as text. gigatoken, an extra, is many times as fast, and supports only the
usual tokenizers. Its first ids in every unit are compared with those of ``tokenizers``. It is taken where it is there,
supports the tokenizer and gives these ids, unless the settings say otherwise.

Word boundaries depend on which characters are letters, so on the version of Unicode: of 1.1 M code points the two
libraries (0.10.0, 0.23.3) classify 4,657 differently, all newer than Unicode 14. So ``tokenizers`` encodes all texts
with characters newer than Unicode 3.2, whose tables Python ships, that may be letters, digits or spaces. They are few.

Either library takes memory for every character of the text that it encodes, whatever that is: 150 bytes of English,
500 of Thai. So a text of more than ``MAX_BATCH_CHARACTERS`` is encoded in pieces. They end where the tokenizer parts
words, so the ids are those of the whole text; only a word without end, as a genome in one line, is cut within.
"""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from functools import cache, lru_cache
from importlib.util import find_spec
from itertools import chain
from typing import TYPE_CHECKING, Protocol

import numpy as np
from tokenizers import Tokenizer

from mtnlg_data.console import Failure
from mtnlg_data.files import read_small, regular
from mtnlg_data.text.characters import code_points

from .merge import take_documents

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.steps.tokenize import Library

MAX_BATCH_TEXTS = 4096
MAX_BATCH_CHARACTERS = 500_000
#: Where a piece of a long text may end: the last places in so many characters, each tried by encoding the characters
#: around it as one text and as two.
WORD_END = re.compile(r"(?<=\S)(?=\s)|(?<=\w)(?=\W)")
SEARCHED, PLACES_TRIED, CONTEXT = 10_000, 64, 100
COMPARED_TEXTS = 32  # at the start of every unit, encoded by both libraries


class Encoder(Protocol):
    """Encodes a batch of texts."""

    def __call__(self, texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """The ids of all texts, concatenated, and the number of ids of each text."""


def require_library(library: Library) -> None:
    """Raise ``Failure`` where this library is not installed."""
    if library != "auto" and find_spec(library) is None:
        raise Failure(
            f'library = "{library}": not installed; pip install "mtnlg-data[{library}]", or take "tokenizers"'
        )


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a tokenizer.json, once a worker, for encoding texts in which special tokens are plain text."""
    return _load_tokenizer(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=1)
def _load_tokenizer(path: Path, changed: int) -> Tokenizer:
    del changed
    tokenizer = Tokenizer.from_file(str(regular(path)))
    tokenizer.encode_special_tokens = True
    return tokenizer


def open_encoder(tokenizer: Path, library: Library) -> Encoder:
    """An encoder for this tokenizer.json. Raises ``Failure`` where the library is missing or does not support it."""
    if library == "gigatoken":
        return _Pieces(_Gigatoken(tokenizer))
    return _Pieces(_Tokenizers(tokenizer) if library == "tokenizers" else _Fastest(tokenizer))


def batch_slices(texts: Sequence[str]) -> Iterator[slice]:
    """Slices that cover ``texts`` in order, each a batch within ``MAX_BATCH_*`` or a single long text."""
    begin = characters = 0
    for end, text in enumerate(texts):
        if end - begin == MAX_BATCH_TEXTS or (characters and characters + len(text) > MAX_BATCH_CHARACTERS):
            yield slice(begin, end)
            begin, characters = end, 0
        characters += len(text)
    if begin < len(texts):
        yield slice(begin, len(texts))


class _Pieces:
    """Encodes long texts piece by piece."""

    def __init__(self, encode: Encoder) -> None:
        self.encode = encode

    def __call__(self, texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        if all(len(text) <= MAX_BATCH_CHARACTERS for text in texts):
            return self.encode(texts)
        ids, sizes = [], np.zeros(len(texts), np.int64)
        for number, text in enumerate(texts):
            begin = 0
            while begin < len(text):
                end = self._end(text, begin)
                ids.append(self.encode([text[begin:end]])[0])
                sizes[number] += len(ids[-1])
                begin = end
        return np.concatenate(ids), sizes

    def _end(self, text: str, begin: int) -> int:
        """Where the piece from ``begin`` ends: of the last places that may part words the last that does."""
        limit = begin + MAX_BATCH_CHARACTERS
        if len(text) <= limit:
            return len(text)
        places = [match.start() for match in WORD_END.finditer(text, max(begin + 1, limit - SEARCHED), limit + 1)]
        for place in reversed(places[-PLACES_TRIED:]):
            before, after = text[max(0, place - CONTEXT) : place], text[place : place + CONTEXT]
            ids, sizes = self.encode([before + after, before, after])
            if sizes[0] == sizes[1] + sizes[2] and (ids[: sizes[0]] == ids[sizes[0] :]).all():
                return place
        return max(places, default=limit)


class _Tokenizers:
    def __init__(self, path: Path) -> None:
        self._tokenizer = load_tokenizer(path)

    def __call__(self, texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        # encode_batch_fast is slower: a quarter fewer of GPT-2's ids a second (tokenizers 0.23.3).
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        lists = [encoding.ids for encoding in encodings]
        sizes = np.fromiter(map(len, lists), np.int64, len(lists))
        return np.fromiter(chain.from_iterable(lists), np.uint32, int(sizes.sum())), sizes


class _Gigatoken:
    """Opened anew for every unit: its cache of words grows with the texts."""

    def __init__(self, path: Path) -> None:
        require_library("gigatoken")
        import gigatoken  # noqa: PLC0415  (an extra)

        try:
            self._tokenizer = gigatoken.Tokenizer.from_json(_without_special_tokens(path, path.stat().st_mtime_ns))
        except Exception as error:  # noqa: BLE001  (whatever it raises, the way out is the other library)
            reason = str(error).partition("\n")[0]
            raise Failure(
                f'{path}: gigatoken does not support this tokenizer: {reason}; take library = "tokenizers"'
            ) from None
        self._path = path
        self._reference = _Tokenizers(path)
        self._compared = False

    def __call__(self, texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        is_new = _have_new_characters(texts)
        old_texts = [text for text, new in zip(texts, is_new, strict=True) if not new]
        ids, sizes = self._encode(old_texts)
        if not self._compared and len(sizes):
            self._compare(old_texts[:COMPARED_TEXTS], ids, sizes)
        if not is_new.any():
            return ids, sizes
        new_ids, new_sizes = self._reference([text for text, new in zip(texts, is_new, strict=True) if new])
        order = np.argsort(np.concatenate([np.flatnonzero(~is_new), np.flatnonzero(is_new)]))
        all_ids, sizes = take_documents(np.concatenate([ids, new_ids]), np.concatenate([sizes, new_sizes]), order)
        return all_ids.astype(np.uint32, copy=False), sizes

    def _compare(self, texts: Sequence[str], ids: NDArray[np.uint32], sizes: NDArray[np.int64]) -> None:
        """Raise ``Failure`` where ``tokenizers`` gives other ids for these texts, the first of those encoded."""
        expected, expected_sizes = self._reference(texts)
        same_sizes = sizes[: len(texts)].tolist() == expected_sizes.tolist()
        if not same_sizes or (ids[: len(expected)] != expected).any():
            raise Failure(f'{self._path}: gigatoken gives other ids than tokenizers; take library = "tokenizers"')
        self._compared = True

    def _encode(self, texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        lists = self._tokenizer.encode_batch(list(texts), parallel=False).layout
        offsets = np.asarray(lists.offsets.data, np.int64)
        return np.asarray(lists.content.data, np.uint32)[offsets[0] : offsets[-1]], np.diff(offsets)


class _Fastest:
    """gigatoken, or ``tokenizers`` from where it cannot be used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._encode: Encoder = _Gigatoken(path)
        except Failure:
            self._encode = _Tokenizers(path)

    def __call__(self, texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        try:
            return self._encode(texts)
        except Failure:  # other ids, and so none of its ids has left yet
            self._encode = _Tokenizers(self._path)
            return self._encode(texts)


@lru_cache(maxsize=1)
def _without_special_tokens(path: Path, changed: int) -> str:
    """The tokenizer.json without its special tokens, read once a worker."""
    del changed
    content = json.loads(read_small(path, follow=True))
    content["added_tokens"] = [token for token in content.get("added_tokens", []) if not token["special"]]
    return json.dumps(content)


def _have_new_characters(texts: Sequence[str]) -> NDArray[np.bool_]:
    """For each text, whether it has characters that may be letters, digits or spaces and are newer than Unicode 3.2."""
    joined = "".join(texts)
    if joined.isascii():
        return np.zeros(len(texts), np.bool_)
    places = np.flatnonzero(_new_characters()[code_points(joined)])
    ends = np.cumsum([len(text) for text in texts])
    return np.bincount(np.searchsorted(ends, places, "right"), minlength=len(texts)).astype(np.bool_)


@cache
def _new_characters() -> NDArray[np.bool_]:
    old, new = unicodedata.ucd_3_2_0.category, unicodedata.category
    characters = map(chr, range(sys.maxunicode + 1))
    return np.array([old(c) == "Cn" and new(c)[0] in "LNZC" for c in characters], np.bool_)
