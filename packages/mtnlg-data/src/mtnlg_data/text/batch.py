"""A batch of texts, whose bytes, words and word counts are computed once."""

from __future__ import annotations

from functools import cached_property
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from .arrays import Texts, texts_of
from .words import Split, Words, find_words, word_classes, word_spans

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from mtnlg_data.array_types import Bools, Int64s


class TextBatch:
    """Texts of documents, an Arrow column without nulls, with the documents' URLs and languages if known.

    ``split`` says what a word is (`text.words`).
    """

    def __init__(
        self,
        column: pa.LargeStringArray,
        urls: Sequence[str | None] = (),
        split: Split = "unicode",
        languages: Sequence[str | None] = (),
    ) -> None:
        self.column = column
        self.urls = urls
        self.split = split
        self.languages = languages or [None] * len(column)

    def __len__(self) -> int:
        """Number of texts."""
        return len(self.column)

    @cached_property
    def texts(self) -> Texts:
        """Their bytes, not copied."""
        return texts_of(self.column)

    @cached_property
    def words(self) -> Words:
        """Their words, with sums from which any n-gram's hash follows."""
        return find_words(self.texts, self.split)

    def with_texts(self, column: pa.LargeStringArray) -> Self:
        """A batch of other texts of the same documents."""
        return type(self)(column, self.urls, self.split, self.languages)

    def filter(self, kept: Bools) -> Self:
        """A batch of the documents that are kept."""
        urls, languages = ([*compress(own, kept)] for own in (self.urls, self.languages))
        return type(self)(self.column.filter(pa.array(kept)), urls, self.split, languages)

    @property
    def has_words(self) -> bool:
        """Whether the words have been computed."""
        return "words" in self.__dict__

    @cached_property
    def word_counts(self) -> Int64s:
        """Number of words of each text."""
        return np.diff(self.words.bounds if self.has_words else word_spans(*self.texts, word_classes(self.split))[2])
