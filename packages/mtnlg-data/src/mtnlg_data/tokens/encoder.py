"""Encoders: texts to token ids, by ``tokenizers`` or by gigatoken, with the same ids from both.

A text that spells a special token is encoded as text: special tokens are renamed to random names before the library
reads the tokenizer, since a model may have them in its vocabulary (Unigram finds "</s>" there like any other piece).

gigatoken, an extra, is many times as fast, and supports only the usual tokenizers. It is used if it is installed,
supports the tokenizer and gives the ids of ``tokenizers`` for the first texts of a task, unless the settings say
otherwise.

Word boundaries depend on which characters are letters, so on the version of Unicode: of 1.1 M code points the two
libraries (0.10.0, 0.23.3) classify 4,657 differently, all newer than Unicode 14. So ``tokenizers`` encodes all texts
with characters newer than Unicode 3.2, whose tables Python ships, that may be letters, digits or spaces. They are few.

Either library takes memory for every character of the text that it encodes: 150 bytes for English, 500 for Thai. So a
text of more than ``MAX_BATCH_CHARACTERS`` is encoded in windows, each of which overlaps the next by ``OVERLAP``. The
overlap is also encoded by itself. Ids at the beginning and the end of a window may differ from those of the whole text:
a tokenizer may put a mark before every text (Llama 2), strip its spaces, or join what the window splits. If the ids of
the overlap by itself differ from those of the window before in at most the first quarter, and from those of the window
after in at most the last quarter, no such effect reaches the middle, and the windows are joined there. If they differ
in more, as in a run of one character, the window is made twice as long, up to the whole text. A Unigram model for which
the text is one word gets it whole at once, since rounding of its sum of scores decides between tokens of equal score.
"""

from __future__ import annotations

import sys
import unicodedata
from contextlib import suppress
from functools import cache, lru_cache
from itertools import chain
from secrets import token_hex
from typing import TYPE_CHECKING, Protocol

import numpy as np
import orjson
from tokenizers import Tokenizer
from tokenizers.models import Unigram

from mtnlg_data.files import read_small
from mtnlg_data.text.characters import code_points

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from mtnlg_data.array_types import Bools, Int64s, UInt32s
    from mtnlg_data.steps.tokenize import Library

MAX_BATCH_TEXTS = 4096
MAX_BATCH_CHARACTERS = 500_000
OVERLAP = 8191  # characters; prime, so that a run of one pattern meets the windows in different phases
COMPARED_TEXTS = 32  # texts at the start of every task, encoded by both libraries


class Encoder(Protocol):
    """Encodes a batch of texts."""

    def __call__(self, texts: Sequence[str]) -> tuple[UInt32s, Int64s]:
        """The ids of all texts, concatenated, and the number of ids of each text."""


@lru_cache(maxsize=1)
def _load_tokenizer(path: Path, changed: int) -> Tokenizer:
    return Tokenizer.from_str(_with_unspelled_names(path, changed))


def open_encoder(tokenizer: Path, library: Library) -> Encoder:
    """An encoder for this tokenizer.json, by the library of the settings."""
    encode: Encoder = _Tokenizers(tokenizer)
    if library == "auto":
        with suppress(Exception):  # whatever it raises, the other library encodes
            encode = _Gigatoken(tokenizer, encode)
    return _Windows(encode, tokenizer)


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


class _Windows:
    """Encodes long texts window by window, with the ids of the whole."""

    def __init__(self, encode: Encoder, path: Path) -> None:
        self.encode = encode
        tokenizer = _load_tokenizer(path, path.stat().st_mtime_ns)
        splits = tokenizer.pre_tokenizer and len(tokenizer.pre_tokenizer.pre_tokenize_str("a a")) > 1
        self._window = MAX_BATCH_CHARACTERS if splits or not isinstance(tokenizer.model, Unigram) else sys.maxsize

    def __call__(self, texts: Sequence[str]) -> tuple[UInt32s, Int64s]:
        if all(len(text) <= self._window for text in texts):
            return self.encode(texts)
        ids = [self._ids(text) for text in texts]
        return np.concatenate(ids), np.array([*map(len, ids)], np.int64)

    def _ids(self, text: str) -> UInt32s:
        begin, end, first = 0, self._window, 0
        ids, joined = self.encode([text[:end]])[0], []
        while end < len(text):
            start = end - OVERLAP
            both, sizes = self.encode([text[start:end], text[start : start + self._window]])
            shared, following = np.split(both, sizes[:1])
            quarter, middle = len(shared) // 4, len(shared) // 2
            same = len(shared) - quarter
            if np.array_equal(ids[len(ids) - same :], shared[quarter:]) and np.array_equal(
                following[:same], shared[:same]
            ):
                joined.append(ids[first : len(ids) - len(shared) + middle])
                begin, end, first, ids = start, start + self._window, middle, following
            else:
                end += end - begin
                ids = self.encode([text[begin:end]])[0]
        return np.concatenate([*joined, ids[first:]])


class _Tokenizers:
    def __init__(self, path: Path) -> None:
        self._tokenizer = _load_tokenizer(path, path.stat().st_mtime_ns)

    def __call__(self, texts: Sequence[str]) -> tuple[UInt32s, Int64s]:
        # encode_batch_fast is slower: a quarter fewer of GPT-2's ids per second (tokenizers 0.23.3).
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        lists = [encoding.ids for encoding in encodings]
        sizes = np.fromiter(map(len, lists), np.int64, len(lists))
        return np.fromiter(chain.from_iterable(lists), np.uint32, int(sizes.sum())), sizes


class _Gigatoken:
    """gigatoken, opened anew for every task, since its cache of words grows with the texts.

    If its first ids are not those of ``reference``, the reference encodes all texts.
    """

    def __init__(self, path: Path, reference: Encoder) -> None:
        import gigatoken  # noqa: PLC0415  (an extra)

        self._tokenizer = gigatoken.Tokenizer.from_json(_with_unspelled_names(path, path.stat().st_mtime_ns))
        self._reference = reference
        self._is_compared = False

    def __call__(self, texts: Sequence[str]) -> tuple[UInt32s, Int64s]:
        if self._tokenizer is None:
            return self._reference(texts)
        is_new = _have_new_characters(texts)
        old_texts = [text for text, new in zip(texts, is_new, strict=True) if not new]
        ids, sizes = self._encode(old_texts)
        if not self._is_compared and len(sizes):
            expected, expected_sizes = self._reference(old_texts[:COMPARED_TEXTS])
            if not np.array_equal(sizes[:COMPARED_TEXTS], expected_sizes) or (ids[: len(expected)] != expected).any():
                self._tokenizer = None
                return self._reference(texts)
            self._is_compared = True
        if not is_new.any():
            return ids, sizes
        new_ids, new_sizes = self._reference([text for text, new in zip(texts, is_new, strict=True) if new])
        all_sizes = np.empty(len(texts), np.int64)
        all_sizes[~is_new], all_sizes[is_new] = sizes, new_sizes
        from_new = np.repeat(is_new, all_sizes)
        all_ids = np.empty(len(from_new), np.uint32)
        all_ids[~from_new], all_ids[from_new] = ids, new_ids
        return all_ids, all_sizes

    def _encode(self, texts: Sequence[str]) -> tuple[UInt32s, Int64s]:
        lists = self._tokenizer.encode_batch(list(texts), parallel=False).layout
        offsets = np.asarray(lists.offsets.data, np.int64)
        return np.asarray(lists.content.data, np.uint32)[offsets[0] : offsets[-1]], np.diff(offsets)


@lru_cache(maxsize=1)
def _with_unspelled_names(path: Path, changed: int) -> str:
    """The tokenizer.json with special tokens under random names, and without dropout; read once per worker."""
    del changed
    content = orjson.loads(read_small(path, follow=True))
    model, added = content["model"], content["added_tokens"]
    names = {token["content"]: token_hex(16) for token in added if token["special"]}
    for token in added:
        token["content"] = names.get(token["content"], token["content"])
    model["unk_token"] = names.get(unknown := model.get("unk_token"), unknown)
    vocabulary = model["vocab"]
    tokens = vocabulary.items() if isinstance(vocabulary, dict) else vocabulary
    model["vocab"] = type(vocabulary)((names.get(token, token), value) for token, value in tokens)
    if "merges" in model:
        prefix = model["continuing_subword_prefix"] or ""
        is_free = names.keys().isdisjoint
        model["merges"] = [(a, b) for a, b in model["merges"] if is_free((a, b, a + b.removeprefix(prefix)))]
        model["dropout"] = None
    return orjson.dumps(content).decode()


def _have_new_characters(texts: Sequence[str]) -> Bools:
    """For each text, whether it has characters that may be letters, digits or spaces and are newer than Unicode 3.2."""
    joined = "".join(texts)
    if joined.isascii():
        return np.zeros(len(texts), np.bool_)
    places = np.flatnonzero(_new_characters()[code_points(joined)])
    ends = np.cumsum([len(text) for text in texts])
    return np.bincount(np.searchsorted(ends, places, "right"), minlength=len(texts)).astype(np.bool_)


@cache
def _new_characters() -> Bools:
    old, new = unicodedata.ucd_3_2_0.category, unicodedata.category
    characters = map(chr, range(sys.maxunicode + 1))
    return np.array([old(c) == "Cn" and new(c)[0] in "LNZC" for c in characters], np.bool_)
