"""Keep one copy of what [bold]--kinds[/bold] names: equal documents, equal lines, passages that occur twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from mtnlg_data.quantities import alarm_share
from mtnlg_data.settings import Settings, setting
from mtnlg_data.step import Cost, Role, Step

if TYPE_CHECKING:
    from mtnlg_data.document import Shard
    from mtnlg_data.job import Done, Job
    from mtnlg_data.planning.corpus_size import CorpusSize
    from mtnlg_data.step import Decide

#: documents   texts that are equal but for white space (Dolma: Soldaini et al. 2024, arXiv 2402.00159)
#: lines       lines that are equal but for case and surrounding white space (C4: Raffel et al. 2020, JMLR 21/140, by
#:             the code that made it: tensorflow/datasets, c4_utils.remove_duplicate_text)
#: substrings  passages of 50 words and marks or more that occur twice (Lee et al. 2022, arXiv 2107.06499)
Kind = Literal["documents", "lines", "substrings"]


class ExactSettings(Settings):
    """Which repeats are removed; the copy in the best source stays, on ties the one whose key has the lowest hash."""

    kinds: tuple[Kind, ...] = setting(
        (), "What is kept once: documents (equal except white space), lines (except case), substrings."
    )
    shortest_line: int = setting(
        30, "Shorter lines may repeat (C4 has none of under five words at that point).", unit="characters", ge=1
    )
    substring_length: int = setting(
        50, "A passage of this many words and marks or more may not repeat (Lee et al.: 50 tokens).", ge=2
    )
    shortest: int = setting(
        200, "Documents that have lost lines or substrings, and are shorter now, are dropped.", unit="characters", ge=1
    )
    alarm_share: float = alarm_share(0.5, "Warn where a source loses a larger share of its documents.")


class Exact(Step[ExactSettings, Settings]):
    """Exact deduplication across all sources."""

    number, version = 4, 3
    nothing = "give --kinds, some of documents,lines,substrings"

    def role(self, source: str) -> Role:
        """All sources pass by if no kinds are given."""
        del source
        return "through" if self.settings.kinds else "past"

    def cost(self, corpus: CorpusSize) -> Cost:
        """Each kind has its core-seconds per million characters and things per character, of 36 bytes on disk each."""
        things = {"documents": 1 / max(1, corpus.characters), "lines": 1 / 200, "substrings": 0.08}
        seconds = {"documents": 0.0022, "lines": 0.0030, "substrings": 0.0504}
        kinds = self.settings.kinds
        most = max((things[kind] for kind in kinds), default=0.0)
        memory = round(
            max(72 * most * min(corpus.text, corpus.shard_characters), 120 * min(most * corpus.text, 1 << 22))
        )
        state = round(36 * sum(things[kind] for kind in kinds) * corpus.text)
        core_seconds = (0.0074 + sum(seconds[kind] for kind in kinds)) * corpus.text / 1e6
        return Cost(core_seconds, 390_000_000 + corpus.group + memory, corpus.disk + state)

    def open(self, shard: Shard, item: Any = None, **shared: Any) -> Decide:  # noqa: ANN401
        """Cut the repeats of the shard, which ``item`` has by kind."""
        from mtnlg_data.exact.stage import cut_repeats  # noqa: PLC0415  (numba)

        del shared
        return cut_repeats(shard, item, self.settings.shortest)

    def run(self, job: Job) -> list[Done]:
        """Find what recurs, and cut it."""
        from mtnlg_data.exact.stage import effects, find_repeats  # noqa: PLC0415  (numba)

        found = find_repeats(job, self.settings)
        done = job.write(found, name="cut")
        job.details["exact"] = effects([one.summary for one in done], self.settings)
        return done
