"""Keep one copy of what [bold]--kinds[/bold] names: equal documents, equal lines, passages that occur twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mtnlg_data.exact.settings import ExactSettings
from mtnlg_data.settings import Settings
from mtnlg_data.step import Cost, Role, Step

if TYPE_CHECKING:
    from mtnlg_data.job import Job
    from mtnlg_data.planning.corpus_size import CorpusSize
    from mtnlg_data.tally import Summary


class Exact(Step[ExactSettings, Settings]):
    """Exact deduplication across all sources."""

    number, version = 4, 1
    nothing = "give --kinds, some of documents,lines,substrings"

    def role(self, source: str) -> Role:
        """Without kinds there is nothing to do."""
        del source
        return "through" if self.settings.kinds else "past"

    def cost(self, corpus: CorpusSize) -> Cost:
        """By kind: core-seconds per million characters, and things compared per character, of 36 bytes on disk each."""
        tokens = 5.0 if self.settings.substring_unit == "word" else 1.2
        things = {"documents": 1 / max(1, corpus.characters), "lines": 1 / 200, "substrings": 0.4 / tokens}
        seconds = {"documents": 0.0022, "lines": 0.0030, "substrings": 0.0504}
        kinds = self.settings.kinds
        most = max((things[kind] for kind in kinds), default=0.0)
        memory = round(
            max(72 * most * min(corpus.text, corpus.shard_characters), 120 * min(most * corpus.text, 1 << 22))
        )
        state = round(36 * sum(things[kind] for kind in kinds) * corpus.text)
        core_seconds = (0.0074 + sum(seconds[kind] for kind in kinds)) * corpus.text / 1e6
        return Cost(core_seconds, 390_000_000 + corpus.group + memory, corpus.disk + state)

    def apply(self, job: Job) -> Summary:
        """Find what recurs, and cut it."""
        from mtnlg_data.exact.stage import remove_repeats  # noqa: PLC0415

        return remove_repeats(job.paths, job.out, self.settings, list(self.sources), job.engine)
