"""Cut the n-grams of the evaluation tasks, and the text around them, out of the documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from pydantic import PositiveInt, model_validator

from mtnlg_data.console import Failure, say
from mtnlg_data.engine import CUTS
from mtnlg_data.files import file_lines
from mtnlg_data.quantities import alarm_share, characters
from mtnlg_data.settings import Settings, setting
from mtnlg_data.step import Cost, Role, Step
from mtnlg_data.transfer.urls import FilePath  # noqa: TC001  (pydantic reads the annotation)

if TYPE_CHECKING:
    from mtnlg_data.document import Shard
    from mtnlg_data.job import Done, Job
    from mtnlg_data.planning.corpus_size import CorpusSize
    from mtnlg_data.step import Decide


class DecontaminateSettings(Settings):
    """What counts as contamination, and how much around it is cut; the defaults are the paper's (4.4)."""

    texts: FilePath | None = setting(
        None, "Texts of the evaluation tasks, to be cut from the documents (mtnlg-eval texts)."
    )
    n: PositiveInt = setting(13, "Length of an n-gram.", unit="words", paper="13 in Megatron's tool")
    minimum: PositiveInt = setting(
        8, "Shortest task text that counts as one n-gram.", unit="words", paper="8 in Megatron's tool"
    )
    common: PositiveInt = setting(
        10,
        "n-grams that occur in this many documents or more are not cut.",
        unit="documents",
        paper="10 in Megatron's tool",
    )
    window: int = characters(200, "Text cut on each side of a match.", paper="200")
    shortest: int = characters(200, "Minimum length of a piece that is kept.", paper="200")
    most_splits: PositiveInt = setting(10, "Maximum pieces of a document that is kept.", paper="10")
    alarm_share: float = alarm_share(0.1, "Warn where a source loses a larger share of whole documents.")

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if self.minimum > self.n:
            raise ValueError(f"minimum = {self.minimum} is more than n = {self.n}")
        return self


class Decontaminate(Step[DecontaminateSettings, Settings]):
    """Paper.md 4.4."""

    number, version = 5, 2
    varies = ("window",)
    top_level = ("texts",)
    nothing = "give --texts"

    def check(self) -> None:
        """Read the texts."""
        from mtnlg_data.decontaminate.ngrams import check_task_texts  # noqa: PLC0415  (numba)

        if (texts := self.settings.texts) is None:
            say("decontaminate: no texts of tasks are given, so nothing is cut; mtnlg-eval texts writes them")
        elif not texts.is_file():
            raise Failure(f"{texts}: no such file of task texts; mtnlg-eval texts --out {texts} writes it")
        else:
            check_task_texts(texts)

    def role(self, source: str) -> Role:
        """All sources pass by if no texts are given."""
        del source
        return "past" if self.settings.texts is None else "through"

    def cost(self, corpus: CorpusSize) -> Cost:
        """The n-grams of all task texts are in the memory of each worker; one process builds them."""
        texts = 70_000  # of the paper's tasks
        if self.settings.texts is not None and self.settings.texts.is_file():
            texts = sum(1 for _ in file_lines(self.settings.texts, follow=True))
        memory = 365_000_000 + corpus.group + 2200 * texts
        return Cost(0.024 * corpus.text / 1e6, memory, corpus.disk, seconds_alone=0.0004 * texts)

    def open(self, shard: Shard, item: Any = None, **shared: Any) -> Decide:  # noqa: ANN401
        """Cut the matches of the shard, which are ``item``."""
        from mtnlg_data.decontaminate.stage import cut_matches  # noqa: PLC0415  (numba)

        del shard
        return cut_matches(item, shared["found"], self.settings)

    def run(self, job: Job) -> list[Done]:
        """Match, plan, cut."""
        from mtnlg_data.decontaminate.stage import effects, find_matches, write_ledger  # noqa: PLC0415  (numba)

        matches, found = find_matches(job, self.settings)
        ledger = job.map(
            "ledger",
            write_ledger,
            [(item, job.out / CUTS / item[0].path.name) for item in zip(job.shards, matches, strict=True)],
            found=found,
            shortest=self.settings.shortest,
            most_splits=self.settings.most_splits,
        )
        done = job.write(matches, name="cut", found=found)
        counted, written = ([one.summary for one in parts] for parts in (ledger, done))
        if common := found.rare.summary["common"]:
            say(f"decontaminate: {common:,} n-grams stay: each is in {self.settings.common} documents or more")
        job.details["decontamination"] = effects(counted, written, common)
        return done
