"""The account of a stage: documents and characters in and out, and what was dropped for which reason, by source.

A unit keeps a ``Tally`` and returns its ``summary``; ``stage`` adds those of all units up to the object that
``summary.json`` holds for the stage.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .engine import Summary

COUNTS = ("documents_in", "documents_out", "characters_in", "characters_out")
ERRORS_SHOWN = 20


class Tally:
    """What became of the documents of one source in one unit."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.counts = dict.fromkeys(COUNTS, 0)
        self.reasons: Counter[str] = Counter()
        self.errors: list[dict[str, str]] = []

    def keep(self, characters: int, left: int | None = None) -> None:
        """Count a document of so many characters as kept; ``left`` of them, where the stage changed its length."""
        self.counts["documents_in"] += 1
        self.counts["documents_out"] += 1
        self.counts["characters_in"] += characters
        self.counts["characters_out"] += characters if left is None else left

    def drop(self, characters: int, reason: str) -> None:
        """Count a document as dropped for this reason."""
        self.counts["documents_in"] += 1
        self.counts["characters_in"] += characters
        self.reasons[reason] += 1

    def fail(self, reason: str, where: str, what: str) -> None:
        """Count a document that could not be read, and name it."""
        self.drop(0, reason)
        if len(self.errors) < ERRORS_SHOWN:
            self.errors.append({"where": where, "what": what})

    def summary(self) -> Summary:
        """The tally as JSON, for a unit's manifest."""
        return {"sources": {self.source: {**self.counts, "dropped": _sorted(self.reasons)}}, "errors": self.errors}


def stage(name: str, summaries: Iterable[Summary], order: Sequence[str]) -> Summary:
    """Add up the tallies of a stage's units, sources in this order; who runs the stage sets ``seconds``."""
    sources: dict[str, Any] = {source: {**dict.fromkeys(COUNTS, 0), "dropped": Counter()} for source in order}
    errors: list[dict[str, str]] = []
    for summary in summaries:
        errors += summary.get("errors", [])
        for source, tally in summary["sources"].items():
            for count in COUNTS:
                sources[source][count] += tally[count]
            sources[source]["dropped"].update(tally["dropped"])
    for total in sources.values():
        total["dropped"] = _sorted(total["dropped"])
    totals: dict[str, Any] = {count: sum(total[count] for total in sources.values()) for count in COUNTS}
    return {"name": name, "seconds": 0.0, **totals, "sources": sources, "errors": errors[:ERRORS_SHOWN]}


def passed(source: str, account: Summary) -> Summary:
    """The summary of a source that a stage does not concern, given its account by the stage before."""
    counts = {count: account[count.replace("_in", "_out")] for count in COUNTS}
    return {"sources": {source: {**counts, "dropped": {}}}}


def line(account: Summary) -> str:
    """One line for a person: what a stage kept, what it dropped and why."""
    kept, all_ = account["documents_out"], account["documents_in"]
    # Decontamination may leave more documents than came: a cut makes two of one.
    documents = f"kept {kept:,} of {all_:,} documents" if kept <= all_ else f"made {kept:,} of {all_:,} documents"
    share = f" ({kept / all_:.1%})" if 0 < kept <= all_ else ""
    reasons: Counter[str] = Counter()
    for total in account["sources"].values():
        reasons.update(total["dropped"])
    why = ", ".join(f"{reason} {count:,}" for reason, count in reasons.most_common())
    millions = f"{account['characters_in'] / 1e6:.1f} → {account['characters_out'] / 1e6:.1f} M characters"
    dropped = f"; dropped: {why}" if why else ""
    return f"{account['name']}: {documents}{share}, {millions}{dropped}"


def _sorted(reasons: Counter[str]) -> dict[str, int]:
    return dict(sorted(reasons.items()))
