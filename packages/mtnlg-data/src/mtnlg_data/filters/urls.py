"""URL filter (Penedo et al. 2023, G.1): lists of domains, addresses, words and character sequences, given as files.

url_domain      the host, or a domain that it is below, is in the list
url_address     the exact URL is in the list
url_word        one of the URL's words, which are runs of ASCII letters and digits, is in the list
url_soft_words  at least this many different words of the URL are in the list
url_substring   the URL, reduced to ASCII letters and digits, contains a sequence of the list
"""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from mtnlg_data.console import Failure
from mtnlg_data.quantities import words
from mtnlg_data.settings import setting
from mtnlg_data.text.hashing import hash_strings
from mtnlg_data.transfer.urls import FilePath

from .lists import NO_LETTERS_OR_DIGITS, ListFile, entry_words, hashed_entries, is_in
from .rules import Rule, measure

if TYPE_CHECKING:
    from collections.abc import Collection

    from mtnlg_data.array_types import Bools
    from mtnlg_data.text.batch import TextBatch

    from .settings import FilterSettings

HOST = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?(?://)?(?:[^/?#@]*@)?([^/?#:]*)")
LISTS = {
    "url_domain": (
        "domain_files",
        "For url_domain: files of blocked domains, one per line (plain or .gz), with subdomains.",
    ),
    "url_address": ("address_files", "For url_address: files of blocked URLs, one per line (plain or .gz)."),
    "url_word": ("word_files", "For url_word: files of words; a URL with any of them is blocked."),
    "url_soft_words": (
        "soft_word_files",
        "For url_soft_words: files of words; a URL with url_soft_words of them is blocked.",
    ),
    "url_substring": (
        "substring_files",
        "For url_substring: files of character sequences; a URL that contains one is blocked.",
    ),
}
SOFT = words(2, "Soft words that block a URL (RefinedWeb: 2).", ge=1)


@measure(
    "url",
    source="RefinedWeb",
    rules=[
        Rule(
            rule,
            limit=SOFT if rule == "url_soft_words" else None,
            settings={field: (tuple[FilePath, ...], setting((), text))},
        )
        for rule, (field, text) in LISTS.items()
    ],
)
class Url:
    """The lists of the rules that are asked for."""

    def __init__(self, settings: FilterSettings, asked: Collection[str]) -> None:
        domains, addresses, words, soft_words, substrings = (
            tuple(map(ListFile.of, getattr(settings, field) if rule in asked else ()))
            for rule, (field, _) in LISTS.items()
        )
        self._domains = hashed_entries(domains, domains=True)
        self._addresses = hashed_entries(addresses, domains=False)
        self._words, self._soft_words = entry_words(words), entry_words(soft_words)
        self._fewest_soft_words = settings.url_soft_words
        self._substring = re.compile("|".join(sorted(entry_words(substrings))) or r"(?!)")

    @staticmethod
    def check(settings: FilterSettings, asked: Collection[str]) -> None:
        """Raise ``Failure`` if none of the rules has a list."""
        fields = {rule: field for rule, (field, _) in LISTS.items() if rule in asked}
        if not any(getattr(settings, field) for field in fields.values()):
            known = ", ".join(f"{name} reads filter.{field}" for name, field in fields.items())
            raise Failure(f"filter: url rules without a list; give one: {known}")

    def __call__(self, batch: TextBatch) -> list[Bools]:
        """Which URLs break each rule; a document without a URL breaks none."""
        urls = [url or "" for url in batch.urls]
        folded = [url.lower() for url in urls]
        names = [_host_and_domains(url) for url in folded]
        blocked = is_in(hash_strings(pa.array(chain.from_iterable(names), pa.string())), self._domains)
        rows = np.repeat(np.arange(len(names)), [len(own) for own in names])
        words = [set(NO_LETTERS_OR_DIGITS.split(url)) for url in folded]
        return [
            np.bincount(rows[blocked], minlength=len(urls)) > 0,
            is_in(hash_strings(pa.array(urls, pa.string())), self._addresses),
            np.array([not own.isdisjoint(self._words) for own in words]),
            np.array([len(own & self._soft_words) >= self._fewest_soft_words for own in words]),
            np.array([self._substring.search(NO_LETTERS_OR_DIGITS.sub("", url)) is not None for url in folded]),
        ]


def _host_and_domains(url: str) -> list[str]:
    """The host of a URL in lower case, and every domain that it is below."""
    match = HOST.match(url)
    labels = (match[1] if match else "").rstrip(".").split(".")
    return [".".join(labels[first:]) for first in range(len(labels))]
