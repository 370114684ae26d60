"""Extract documents from records: charset, language, and the text of a web page without its boilerplate."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mtnlg_data.extract.text import ExtractSettings
from mtnlg_data.fingerprint import library_version
from mtnlg_data.settings import Settings
from mtnlg_data.step import Cost, Kind, Step

if TYPE_CHECKING:
    from mtnlg_data.job import Job
    from mtnlg_data.planning.corpus_size import CorpusSize
    from mtnlg_data.tally import Summary


class Extract(Step[ExtractSettings, Settings]):
    """Source files to shards of documents."""

    number, version = 1, 1
    takes: ClassVar[Kind] = "files"
    kept = ("jusText", "lxml", "pycld2", "fasttext-predict")

    def check(self) -> None:
        """Open the language model."""
        self.settings.check_model()

    def cost(self, corpus: CorpusSize) -> Cost:
        """Pages by their bytes, most of which the parser alone sees, and by their text; a worker parses the longest."""
        of_web = corpus.web * (0.0157 * corpus.page_bytes + 0.184) + (1 - corpus.web) * 0.0531
        page = 8 * min(corpus.longest, self.settings.largest_page)
        model = self.settings.language_model.stat().st_size if self.settings.language_model else 0
        return Cost(
            of_web * corpus.text / 1e6, 160_000_000 + page + len(self.sources) * corpus.group // 2 + model, corpus.disk
        )

    def fingerprint(self, source: str) -> object:
        """The version of another extractor counts where it is used."""
        return [super().fingerprint(source), library_version(self.settings.method)]

    def apply(self, job: Job) -> Summary:
        """Read every file once."""
        from mtnlg_data.extract.stage import extract_documents  # noqa: PLC0415

        return extract_documents(job.files, job.out, self.settings, job.engine)
