"""Personal data (Penedo et al. 2024, 3.7; Soldaini et al. 2024, 3.1): e-mail addresses, public IPs, phone numbers.

    pii_email   a dot-atom, "@" and a domain of two labels or more, or an IPv4 address in brackets (RFC 5322)
    pii_ip      IPv4 addresses that are public by IANA's registries; those of private networks and examples stay
    pii_phone   North American numbers with separators, and numbers that begin with + and a country code

Replacements are used in turn, starting over in every document, so that no document depends on another.
"""

from __future__ import annotations

import ipaddress
import re
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mtnlg_data.settings import setting

from .rules import Effect, Rule, edit

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from mtnlg_data.array_types import Int64s
    from mtnlg_data.text.batch import TextBatch

    from .settings import FilterSettings

ATOM_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+/=?^_`{|}~-")
LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
OCTET = "(?:25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)"
IP = re.compile(rf"(?:{OCTET}\.){{3}}{OCTET}")
AFTER_AT = re.compile(rf"(?:{LABEL}\.)+{LABEL}|\[{IP.pattern}\]")
WORD_EDGE = re.compile(r"\b(?!\.)")
PHONE = re.compile(
    r"(?<![\w+.-])(?:(?:\+?1[ .-]?)?(?:\([2-9]\d\d\) ?|[2-9]\d\d[ .-])[2-9]\d\d[ .-]\d{4}"
    r"|\+[1-9]\d{0,2}(?:[ .-]?\(?\d{1,4}\)?){2,5})(?![\w-])"
)
PHONE_DIGITS = range(8, 16)  # of a number with a country code (E.164)
#: A text without a match has nothing to replace; Arrow tests a whole batch at once.
MAY_HOLD = {
    "pii_email": "@",
    "pii_ip": r"\d\.\d{1,3}\.\d{1,3}\.\d",
    "pii_phone": r"\d[ .)-]+\d\d\d[ .-]\d\d\d\d|\+\d[\d ().-]{6}",
}


def _replace(text: str, find: Callable[[str], Iterator[tuple[int, int]]], values: Sequence[str]) -> tuple[str, int]:
    parts, done = [], 0
    for (begin, end), value in zip(find(text), cycle(values), strict=False):
        parts += [text[done:begin], value]
        done = end
    return "".join([*parts, text[done:]]), len(parts) // 2


def _emails(text: str) -> Iterator[tuple[int, int]]:
    """Bounds of the e-mail addresses; each "@" is visited once, so the time grows only with the text."""
    done = 0
    at = text.find("@")
    while at >= 0:
        domain = AFTER_AT.match(text, at + 1)
        begin = at
        while domain and begin > done and _continues(text, begin - 1, at):
            begin -= 1
        edge = WORD_EDGE.search(text, begin, at) if domain else None
        if domain and edge and edge.start() < at:
            done = domain.end()
            yield edge.start(), done
        at = text.find("@", max(at + 1, done))


def _continues(text: str, place: int, at: int) -> bool:
    """Whether the local part may contain this character: an atom character, or a full stop between two of them."""
    if text[place] == ".":
        return place + 1 < at and text[place + 1] != "." and place > 0 and text[place - 1] in ATOM_CHARACTERS
    return text[place] in ATOM_CHARACTERS


def _ips(text: str) -> Iterator[tuple[int, int]]:
    for match in IP.finditer(text):
        if _is_public(match[0]):
            yield match.span()


def _is_public(address: str) -> bool:
    try:
        return ipaddress.IPv4Address(address).is_global
    except ValueError:  # such as a zero before another digit
        return False


def _phones(text: str) -> Iterator[tuple[int, int]]:
    for match in PHONE.finditer(text):
        if sum(map(str.isdecimal, match[0])) in PHONE_DIGITS:
            yield match.span()


FINDERS: dict[str, Callable[[str], Iterator[tuple[int, int]]]] = {
    "pii_email": _emails,
    "pii_ip": _ips,
    "pii_phone": _phones,
}


def replaced_by(rule: str, values: tuple[str, ...], text: str, source: str = "") -> Rule:
    """A rule whose matches these values replace."""
    return Rule(rule, source=source, effect=Effect.REPLACE, limit=setting(values, text, min_length=1))


#: The addresses answered no ping when FineWeb's authors drew them.
IPS = ("22.214.171.124", "126.96.36.199", "188.8.131.52", "184.108.40.206", "220.127.116.11", "18.104.22.168")


@edit(
    "pii",
    source="FineWeb",
    rules=[
        replaced_by(
            "pii_email",
            ("email@example.com", "firstname.lastname@example.org"),
            "Replacements of e-mail addresses, in turn within a document (FineWeb's two).",
        ),
        replaced_by(
            "pii_ip",
            IPS,
            "Replacements of public IP addresses, in turn (FineWeb's six, which answered no ping).",
        ),
        replaced_by("pii_phone", ("|||PHONE_NUMBER|||",), "Replacements of phone numbers, in turn (Dolma's).", "Dolma"),
    ],
)
class Personal:
    """Replaces the personal data of the rules that are asked for."""

    def __init__(self, settings: FilterSettings, asked: Collection[str]) -> None:
        self._values = {rule: getattr(settings, rule) for rule in FINDERS if rule in asked}

    def __call__(self, batch: TextBatch) -> tuple[pa.LargeStringArray, Int64s]:
        """The texts, and the number of matches replaced in each by each rule."""
        column, counts = batch.column, np.zeros((len(FINDERS), len(batch)), np.int64)
        for rule, rule_counts in zip(FINDERS, counts, strict=True):
            if rule not in self._values:
                continue
            changed = []
            for row in np.flatnonzero(pc.match_substring_regex(column, MAY_HOLD[rule])).tolist():
                text, rule_counts[row] = _replace(column[row].as_py(), FINDERS[rule], self._values[rule])
                if rule_counts[row]:
                    changed.append(text)
            column = pc.replace_with_mask(column, pa.array(rule_counts > 0), pa.array(changed, column.type))
        return column, counts
