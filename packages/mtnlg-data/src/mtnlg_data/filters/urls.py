"""URL filter (Penedo et al. 2023, G.1): lists of domains, addresses, words and character sequences, given as files.

url_domain      the host, or a domain that it is below, is in the list
url_address     the URL, as it stands, is in the list
url_word        one of its words, which are runs of ASCII letters and digits, is in the list
url_soft_words  so many different words of it are in the list
url_substring   without all other characters it has one of the listed sequences in it
"""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from .lists import NO_LETTERS_OR_DIGITS, entry_words, hashed_entries, is_in
from .texts import hash_strings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from .lists import ListFiles

HOST = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?(?://)?(?:[^/?#@]*@)?([^/?#:]*)")
KEPT = -1
DOMAIN, ADDRESS, WORD, SOFT_WORDS, SUBSTRING = range(5)


class UrlFilter:
    """The lists of the rules that are asked for, by their numbers."""

    def __init__(self, lists: ListFiles, asked: NDArray[np.bool_], soft_words: int) -> None:
        self._domains = hashed_entries(lists.domains if asked[DOMAIN] else (), domains=True)
        self._addresses = hashed_entries(lists.addresses if asked[ADDRESS] else (), domains=False)
        self._words = entry_words(lists.words if asked[WORD] else ())
        self._soft_words = entry_words(lists.soft_words if asked[SOFT_WORDS] else ())
        self._fewest_soft_words = soft_words
        substrings = entry_words(lists.substrings if asked[SUBSTRING] else ())
        self._substring = re.compile("|".join(sorted(substrings))) if substrings else None

    def broken(self, urls: Sequence[str | None]) -> NDArray[np.int64]:
        """The first rule that each URL breaks, ``KEPT`` for none; what has no URL breaks none."""
        known = [url or "" for url in urls]
        folded = [url.lower() for url in known]
        broken = np.full(len(known), KEPT)
        for row, url in enumerate(folded):
            broken[row] = self._by_words(url)
        broken[is_in(hash_strings(pa.array(known, pa.string())), self._addresses)] = ADDRESS
        names = [_host_and_domains(url) for url in folded]
        blocked = is_in(hash_strings(pa.array(chain.from_iterable(names), pa.string())), self._domains)
        rows = np.repeat(np.arange(len(names)), [len(own) for own in names])
        broken[rows[blocked]] = DOMAIN
        return broken

    def _by_words(self, url: str) -> int:
        words = set(NO_LETTERS_OR_DIGITS.split(url))
        if words & self._words:
            return WORD
        if len(words & self._soft_words) >= self._fewest_soft_words:
            return SOFT_WORDS
        if self._substring is not None and self._substring.search(NO_LETTERS_OR_DIGITS.sub("", url)):
            return SUBSTRING
        return KEPT


def _host_and_domains(url: str) -> list[str]:
    """The host of a URL in lower case, and every domain that it is below."""
    match = HOST.match(url)
    labels = (match[1] if match else "").rstrip(".").split(".")
    return [".".join(labels[first:]) for first in range(len(labels))]
