"""Extract documents from records: charset, language, and the text of a web page without its boilerplate."""

from __future__ import annotations

import shutil
from collections import Counter
from typing import TYPE_CHECKING, ClassVar

from mtnlg_data.document import shard_name
from mtnlg_data.extract.grouping import group_files
from mtnlg_data.extract.shards import COPIES, extract_group
from mtnlg_data.extract.text import ExtractSettings
from mtnlg_data.fingerprint import library_version
from mtnlg_data.settings import Settings
from mtnlg_data.step import Cost, Kind, Step
from mtnlg_data.summary import add_up, read_failure, stage_summary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mtnlg_data.extract.grouping import Group
    from mtnlg_data.extract.text import Method
    from mtnlg_data.job import Job
    from mtnlg_data.planning.corpus_size import CorpusSize
    from mtnlg_data.summary import Summary

#: Core-seconds of each method per million bytes of pages, and per million characters of their text.
COSTS: dict[Method, tuple[float, float]] = {
    "justext": (0.0110, 0.078),
    "main": (0.0117, 0.090),
    "resiliparse": (0.0162, 0.114),
    "trafilatura": (0.0525, 0.617),
}


class Extract(Step[ExtractSettings, Settings]):
    """Source files to shards of documents."""

    number, version = 1, 3
    varies = ("justext", "method")
    takes: ClassVar[Kind] = "files"
    kept = ("jusText", "lxml", "pycld2", "resiliparse", "webencodings", "fasttext-predict")

    def check(self) -> None:
        """Open the language model."""
        self.settings.check_model()

    def cost(self, corpus: CorpusSize) -> Cost:
        """Time grows with bytes of pages, mainly read only by the parser, and text; memory with the longest page."""
        of_bytes, of_text = COSTS[self.settings.method]
        of_web = corpus.web * (of_bytes * corpus.page_bytes + of_text) + (1 - corpus.web) * 0.0531
        page = 8 * min(corpus.longest, self.settings.largest_page)
        model = self.settings.language_model.stat().st_size if self.settings.language_model else 0
        return Cost(
            of_web * corpus.text / 1e6, 340_000_000 + page + len(self.sources) * corpus.group // 2 + model, corpus.disk
        )

    def fingerprint(self, source: str) -> object:
        """The version of an extractor counts only for sources that use it."""
        return [super().fingerprint(source), self._versions(source)]

    def _versions(self, *sources: str) -> dict[str, str | None]:
        used = [settings.method for source in sources for settings in self.by_language(source).values()]
        return {method: library_version(method) for method in used}

    def apply(self, job: Job) -> Summary:
        """Read every file once.

        The summary has ``languages`` and ``languages_kept``, records and documents by language, the names of the
        ``shards`` in the order of the files, and under ``failure`` what could not be read of the files, if that is more
        than the settings allow.
        """
        groups = group_files(job.files, self.settings.shard_characters)
        firsts = [job.out / shard_name(group.pieces[0][0].source, group.numbers[0]) for group in groups]
        items = [(group, {file.source: self.by_language(file.source) for file in group.pieces[0]}) for group in groups]
        done = job.map("", extract_group, zip(items, firsts, strict=True), versions=self._versions(*self.sources))
        shutil.rmtree(job.out / COPIES, ignore_errors=True)  # left by killed runs for inputs that are gone
        summaries = [one.summary for one in done]
        shards = [name for summary in summaries for name in summary["shards"]]
        job.folder.shards = shards
        lost = {"sources": {}, "lost": _empty_files(groups, summaries)}
        sources = list(dict.fromkeys(file.source for file in job.files))
        stage = stage_summary(self.name, [*summaries, lost], sources, self.settings.alarm_share)
        failure = read_failure(stage, self.settings.max_failed)
        return {
            **stage,
            **({"failure": failure} if failure else {}),
            **{
                name: dict(Counter(add_up([{}, *(summary[name] for summary in summaries)])).most_common())
                for name in ("languages", "languages_kept")
            },
            "shards": shards,
        }


def _empty_files(groups: Sequence[Group], summaries: Sequence[Summary]) -> list[dict[str, str]]:
    """Files that have bytes but no document in any part. Files without bytes are left out: Spark writes such files."""
    empty = Counter(place for summary in summaries for place in summary["empty"])
    pieces = {f"{piece[0].source}/{piece[0].name}": piece[0] for group in groups for piece in group.pieces if empty}
    return [
        {"source": file.source, "where": file.name, "what": f"no document that the reader {file.kind} finds"}
        for place, file in pieces.items()
        if empty[place] == file.part.parts and file.stats[0]
    ]
