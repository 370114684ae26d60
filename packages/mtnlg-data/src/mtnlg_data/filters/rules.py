"""Rules of the stage filter, in families: each is declared once, beside the function that measures it.

``measure`` makes a function a family. The function takes a `TextBatch` and the settings, and returns one array per
rule, with one number per text::

    @measure("shouting", rules=[Rule("shouted_letters", at_most=setting(0.3, "Most capital letters.", unit="share"))])
    def shouting(batch: TextBatch, settings: Settings) -> list[Float64s]:
        return [np.array([sum(map(str.isupper, text)) / max(1, len(text)) for text in batch.column.to_pylist()])]

A document is dropped by the first rule that it breaks, and counted there, with the number as its score. A function that
``edit`` makes a family also returns the edited texts. A source of the recipe names rules, families of them, or a
reference to a family (``package.module:name``, ``path/file.py:name``) in its key ``filters``; a package declares its
families as entry points of the group ``mtnlg_data.rules``. The published rules are from

    Gopher    Rae et al. 2021 (arXiv 2112.11446), appendix A.1.1; fractions of table A1
    C4        Raffel et al. 2020 (JMLR 21/140), section 2.2, and the code that made it (tensorflow/datasets, c4_utils)
    FineWeb   Penedo et al. 2024 (arXiv 2406.17557), section 3.6, and the script that made it (datatrove, fineweb.py)
    RefinedWeb  Penedo et al. 2023 (arXiv 2306.01116), appendix G.1
    Dolma     Soldaini et al. 2024 (arXiv 2402.00159), section 3.1
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from mtnlg_data.console import UsageFailure
from mtnlg_data.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

    from mtnlg_data.array_types import Bools

EMPTY = "empty"  # the reason of a document that has no word, or to which a rule left no text
#: The families of this package, in the order in which they apply.
OWN = {
    "url": "mtnlg_data.filters.urls:Url",
    "gopher_repetition": "mtnlg_data.filters.repetition:gopher_repetition",
    "gopher_quality": "mtnlg_data.filters.gopher:gopher_quality",
    "c4": "mtnlg_data.filters.c4:C4",
    "fineweb": "mtnlg_data.filters.fineweb:fineweb",
    "pii": "mtnlg_data.filters.personal:Personal",
}
REGISTRY = Registry("mtnlg_data.rules", OWN)


class Effect(Enum):
    """What a rule does to a document that breaks it."""

    DROP = "documents dropped"
    CUT = "lines removed"
    REPLACE = "matches replaced"


@dataclass(frozen=True)
class Rule:
    """A rule; ``source`` is the publication that it is taken from, if that is not its family's.

    A document breaks a rule if its number is over ``at_most`` or under ``at_least``, or over 0 if the rule has neither.
    Both are made by `setting`, and so is ``limit``, a threshold that the function itself applies; the setting has the
    rule's name. ``settings`` has the rule's other settings: name → (type, setting). A rule that cuts or replaces drops
    nothing: its numbers count its edits.
    """

    name: str
    effect: Effect = Effect.DROP
    at_least: Any = None
    at_most: Any = None
    limit: Any = None
    settings: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    source: str = ""

    def fields(self) -> dict[str, tuple[Any, Any]]:
        """The settings: name → (type, setting)."""
        bound = next((value for value in (self.at_least, self.at_most, self.limit) if value is not None), None)
        kind: Any = (
            tuple[str, ...] if bound is not None and isinstance(bound.default, tuple) else type(bound and bound.default)
        )
        return {**self.settings, **({} if bound is None else {self.name: (kind, bound)})}

    def broken(self, numbers: NDArray[Any], settings: object) -> Bools:
        """Which documents with these numbers are dropped."""
        limit = getattr(settings, self.name) if self.has_score else 0
        broken: Bools = numbers < limit if self.at_least is not None else numbers > limit
        return broken

    @property
    def has_score(self) -> bool:
        """Whether the number is reported as the score of a dropped document."""
        return self.at_least is not None or self.at_most is not None


@dataclass(frozen=True)
class Family:
    """Rules that are measured together.

    ``target`` is a function of a batch and the settings, or a class whose instances are called with a batch; it is
    constructed with the settings and the names of the rules that are asked for, so that it opens lists once.
    """

    name: str
    rules: tuple[Rule, ...]
    target: Callable[..., Any]
    source: str = ""
    edits: bool = False
    words: bool = False

    def code(self) -> str | None:
        """Digest of the code of rules from outside this package; None for its own."""
        from mtnlg_data.user_code import code_digest  # noqa: PLC0415  (which the step filter imports)

        return None if self in own_families() else code_digest(self.target)

    def open(self, settings: object, asked: frozenset[str]) -> Callable[..., Any]:
        """The function to call with each batch."""
        if not isinstance(self.target, type):
            return lambda batch: self.target(batch, settings)
        look: Callable[..., Any] = self.target(settings, asked)
        return look


def measure(
    name: str, *, rules: Iterable[Rule], source: str = "", words: bool = False
) -> Callable[[Callable[..., Any]], Family]:
    """Make a function the family of this name; the function returns one array of numbers per rule.

    ``source`` is the publication that the rules are taken from. With ``words``, a document without any words is dropped
    as ``EMPTY``, whatever the numbers.
    """
    return lambda target: Family(name, tuple(rules), target, source, words=words)


def edit(name: str, *, rules: Iterable[Rule], source: str = "") -> Callable[[Callable[..., Any]], Family]:
    """Make a function the family of this name; the function returns the column of texts, and one array per rule.

    If a rule of the family cuts, a document that has no text left is dropped as ``EMPTY``.
    """
    return lambda target: Family(name, tuple(rules), target, source, edits=True)


@cache
def load_family(name: str) -> Family:
    """The family with this name or reference. Raises ``UsageFailure`` if there is none."""
    family = REGISTRY.load(name)
    if not isinstance(family, Family):
        raise UsageFailure(f"{name}: not a family of rules; make one with mtnlg_data.measure")
    return family


@cache
def own_families() -> tuple[Family, ...]:
    """The families of this package, in their order."""
    return tuple(map(load_family, OWN))


class Chosen(NamedTuple):
    """A family, and those of its rules that are asked for."""

    family: Family
    asked: frozenset[str]


def choose(names: Iterable[str]) -> list[Chosen]:
    """The families that these names select: ours in their order, then others in the order of the names.

    A name is that of one of our rules, of a family, or a reference to a family. Raises ``ValueError`` for any other
    name, and if two rules have the same name.
    """
    asked = set(names)
    ours = {family.name: frozenset(rule.name for rule in family.rules) for family in own_families()}
    chosen = [Chosen(f, ours[f.name] if f.name in asked else ours[f.name] & asked) for f in own_families()]
    for name in dict.fromkeys(names):
        if name not in ours and not any(name in rules for rules in ours.values()):
            try:
                family = load_family(name)
            except UsageFailure as error:
                raise ValueError(str(error)) from None
            chosen.append(Chosen(family, frozenset(rule.name for rule in family.rules)))
    uses = Counter(rule.name for family, _ in chosen for rule in family.rules)
    if twice := [name for name, count in uses.items() if count > 1]:
        raise ValueError(f"{twice[0]}: two rules have this name; rename one of them")
    return [one for one in chosen if one.asked]
