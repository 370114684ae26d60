"""The rules: name, family and source of each, in the order in which they apply.

A source of the recipe names rules, or families of them, in its key ``filters``. Where a rule has a threshold, the field
of ``FilterSettings`` has the rule's name. A document is dropped by the first rule that it breaks, and counted there.

    Gopher    Rae et al. 2021 (arXiv 2112.11446), appendix A.1.1; fractions of table A1
    C4        Raffel et al. 2020 (JMLR 21/140), section 2.2, and the code that made it (tensorflow/datasets, c4_utils)
    FineWeb   Penedo et al. 2024 (arXiv 2406.17557), section 3.6, and the script that made it (datatrove, fineweb.py)
    RefinedWeb  Penedo et al. 2023 (arXiv 2306.01116), appendix G.1
    Dolma     Soldaini et al. 2024 (arXiv 2402.00159), section 3.1
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

EMPTY = "empty"  # the reason of a document that has no text, or to which a rule left none


class Effect(Enum):
    """What a rule does to a document that breaks it."""

    DROP = "documents dropped"
    CUT = "lines removed"
    REPLACE = "matches replaced"


class Rule(NamedTuple):
    """A rule of a family; ``source`` is the publication that it is taken from.

    A document breaks a rule whose measure is over the threshold, or under it where ``at_least``.
    """

    name: str
    family: str
    source: str
    effect: Effect = Effect.DROP
    at_least: bool = False


DUPLICATE_NGRAMS = range(5, 11)  # table A1 of Gopher
TOP_NGRAMS = range(2, 5)
RULES = (
    Rule("url_domain", "url", "RefinedWeb"),
    Rule("url_address", "url", "RefinedWeb"),
    Rule("url_word", "url", "RefinedWeb"),
    Rule("url_soft_words", "url", "RefinedWeb"),
    Rule("url_substring", "url", "RefinedWeb"),
    Rule("gopher_duplicate_paragraphs", "gopher_repetition", "Gopher"),
    Rule("gopher_duplicate_paragraph_characters", "gopher_repetition", "Gopher"),
    Rule("gopher_duplicate_lines", "gopher_repetition", "Gopher"),
    Rule("gopher_duplicate_line_characters", "gopher_repetition", "Gopher"),
    *(Rule(f"gopher_top_{n}_gram", "gopher_repetition", "Gopher") for n in TOP_NGRAMS),
    *(Rule(f"gopher_duplicate_{n}_grams", "gopher_repetition", "Gopher") for n in DUPLICATE_NGRAMS),
    Rule("gopher_fewest_words", "gopher_quality", "Gopher", at_least=True),
    Rule("gopher_most_words", "gopher_quality", "Gopher"),
    Rule("gopher_shortest_mean_word", "gopher_quality", "Gopher", at_least=True),
    Rule("gopher_longest_mean_word", "gopher_quality", "Gopher"),
    Rule("gopher_hashes", "gopher_quality", "Gopher"),
    Rule("gopher_ellipses", "gopher_quality", "Gopher"),
    Rule("gopher_bullet_lines", "gopher_quality", "Gopher"),
    Rule("gopher_ellipsis_lines", "gopher_quality", "Gopher"),
    Rule("gopher_alphabetic_words", "gopher_quality", "Gopher", at_least=True),
    Rule("gopher_stop_words", "gopher_quality", "Gopher", at_least=True),
    Rule("c4_bad_words", "c4", "C4"),
    Rule("c4_longest_word", "c4", "C4", Effect.CUT),
    Rule("c4_citations", "c4", "C4", Effect.REPLACE),
    Rule("c4_terminal_punctuation", "c4", "C4", Effect.CUT),
    Rule("c4_fewest_words", "c4", "C4", Effect.CUT),
    Rule("c4_lorem_ipsum", "c4", "C4"),
    Rule("c4_javascript", "c4", "C4", Effect.CUT),
    Rule("c4_curly_bracket", "c4", "C4"),
    Rule("c4_policy", "c4", "C4", Effect.CUT),
    Rule("c4_fewest_sentences", "c4", "C4", at_least=True),
    Rule("fineweb_line_punctuation", "fineweb", "FineWeb", at_least=True),
    Rule("fineweb_short_lines", "fineweb", "FineWeb"),
    Rule("fineweb_duplicate_line_characters", "fineweb", "FineWeb"),
    Rule("fineweb_newlines", "fineweb", "FineWeb"),
    Rule("pii_email", "pii", "FineWeb", Effect.REPLACE),
    Rule("pii_ip", "pii", "FineWeb", Effect.REPLACE),
    Rule("pii_phone", "pii", "Dolma", Effect.REPLACE),
)
FAMILIES = tuple(dict.fromkeys(rule.family for rule in RULES))


NUMBERS = {rule.name: number for number, rule in enumerate(RULES)}


def family_rules(family: str) -> list[Rule]:
    """The rules of a family, in their order."""
    return [rule for rule in RULES if rule.family == family]


def expand_rules(names: Iterable[str]) -> tuple[str, ...]:
    """The rules that these names, of rules or of families, stand for, in their order.

    Raises ``ValueError`` for a name of neither.
    """
    asked = set(names)
    if unknown := sorted(asked - {rule.name for rule in RULES} - set(FAMILIES)):
        raise ValueError(
            f"{unknown[0]!r} is no filter; those are {', '.join(FAMILIES)} or one of their rules: {', '.join(NUMBERS)}"
        )
    return tuple(rule.name for rule in RULES if asked & {rule.name, rule.family})
