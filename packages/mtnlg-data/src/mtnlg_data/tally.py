"""The account of a stage: documents and characters in and out, and what was dropped for which reason, by source.

A unit keeps a ``Tally`` and returns its ``summary``; ``stage`` adds those of all units up to the object that
``summary.json`` holds for the stage. Beside the counts it has the lengths of the documents that the stage leaves, in
octaves, and a few documents of each fate for a person to judge: those whose names have the lowest checksums, so that
neither the order of the documents nor the cut into shards decides which.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from typing import TYPE_CHECKING, Any
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .engine import Summary

COUNTS = ("documents_in", "documents_out", "characters_in", "characters_out")
ERRORS_SHOWN = 20
SHOWN = 2  # documents of each fate, by source
EXCERPT = 400  # characters of each
KEPT = "kept"
#: What an account has beside its funnel: told once in ``summary.json``, not by stage.
EXTRAS = ("quality", "languages", "duplicates", "decontamination", "tokens", "vocabulary", "unigram_entropy_nats")
NOT_TOLD = ("shards",)


class Tally:
    """What became of the documents of one source in one unit."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.counts = dict.fromkeys(COUNTS, 0)
        self.reasons: Counter[str] = Counter()
        self.lengths: Counter[int] = Counter()
        self.errors: list[dict[str, str]] = []
        self._shown: dict[str, list[tuple[int, str, dict[str, Any]]]] = {}

    def keep(self, characters: int, left: int | None = None) -> None:
        """Count a document of so many characters as kept; ``left`` of them, where the stage changed its length."""
        self.counts["documents_in"] += 1
        self.counts["documents_out"] += 1
        self.counts["characters_in"] += characters
        self.counts["characters_out"] += characters if left is None else left
        self.lengths[(characters if left is None else left).bit_length()] += 1

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

    def show(self, fate: str, name: str, text: str, score: float | None = None) -> None:
        """Remember the beginning of a document that was ``KEPT`` or dropped for a reason, if it is one to be shown."""
        rank = crc32(name.encode())
        shown = self._shown.setdefault(fate, [])
        if len(shown) < SHOWN or (rank, name) < shown[-1][:2]:
            told: dict[str, Any] = {"source": self.source, "fate": fate, "id": name, "text": text[:EXCERPT]}
            insort(shown, (rank, name, told if score is None else {**told, "score": round(score, 4)}), key=_rank)
            del shown[SHOWN:]

    def summary(self) -> Summary:
        """The tally as JSON, for a unit's manifest; the key of a length is the shortest of its octave."""
        lengths = {str(1 << bits >> 1): self.lengths[bits] for bits in sorted(self.lengths)}
        told = {**self.counts, "dropped": _sorted(self.reasons), "lengths": lengths}
        shown = [document for fate in sorted(self._shown) for *_, document in self._shown[fate]]
        return {"sources": {self.source: told}, "errors": self.errors, "shown": shown}


def stage(name: str, summaries: Iterable[Summary], order: Sequence[str]) -> Summary:
    """Add up the tallies of a stage's units, sources in this order; who runs the stage sets ``seconds``."""
    sources: dict[str, Any] = {
        source: {**dict.fromkeys(COUNTS, 0), "dropped": Counter(), "lengths": Counter()} for source in order
    }
    errors: list[dict[str, str]] = []
    shown: list[dict[str, Any]] = []
    for summary in summaries:
        errors += summary.get("errors", [])
        shown += summary.get("shown", [])
        for source, tally in summary["sources"].items():
            for count in COUNTS:
                sources[source][count] += tally[count]
            sources[source]["dropped"].update(tally["dropped"])
            sources[source]["lengths"].update(tally["lengths"])
    for total in sources.values():
        total["dropped"] = _sorted(total["dropped"])
        total["lengths"] = dict(sorted(total["lengths"].items(), key=lambda item: int(item[0])))
    totals: dict[str, Any] = {count: sum(total[count] for total in sources.values()) for count in COUNTS}
    told = {"name": name, "seconds": 0.0, **totals, "sources": sources}
    return {**told, "errors": errors[:ERRORS_SHOWN], "shown": _fewest(shown, order)}


def _fewest(shown: list[dict[str, Any]], order: Sequence[str]) -> list[dict[str, Any]]:
    """Of the documents that all units would show, those to be shown: sources in this order, then fates by name."""
    places = {source: place for place, source in enumerate(order)}
    taken: Counter[tuple[str, str]] = Counter()
    kept = []
    for document in sorted(shown, key=lambda told: (crc32(told["id"].encode()), told["id"])):
        group = (document["source"], document["fate"])
        taken[group] += 1
        if taken[group] <= SHOWN:
            kept.append(document)
    return sorted(kept, key=lambda told: (places[told["source"]], told["fate"]))


def passed(source: str, account: Summary) -> Summary:
    """The summary of a source that a stage does not concern, given its account by the stage before."""
    counts = {count: account[count.replace("_in", "_out")] for count in COUNTS}
    return {"sources": {source: {**counts, "dropped": {}, "lengths": account.get("lengths", {})}}}


def together(accounts: Sequence[Summary]) -> Summary:
    """The accounts of stages, in their order, as the one object that ``summary.json`` holds."""
    seconds = round(sum(account["seconds"] for account in accounts), 3)
    apart = {*EXTRAS, *NOT_TOLD}
    stages = [{name: value for name, value in account.items() if name not in apart} for account in accounts]
    extras = {name: account[name] for account in accounts for name in EXTRAS if name in account}
    return {"version": 1, "seconds": seconds, "stages": stages, **extras}


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


def _rank(entry: tuple[int, str, dict[str, Any]]) -> tuple[int, str]:
    return entry[:2]


def _sorted(reasons: Counter[str]) -> dict[str, int]:
    return dict(sorted(reasons.items()))
