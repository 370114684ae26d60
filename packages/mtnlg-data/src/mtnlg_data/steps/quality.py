"""Train a quality classifier, score every document, and keep those that the Pareto draw keeps.

As crawled sources are filtered in paper.md 4.2. [bold]--model FILE[/bold] takes a trained classifier instead, such as
the classifier.npy of another run.

The classifier is trained on documents of the run, or given. Positives are documents of the curated sources; negatives
are as many raw extracted ones of the filtered sources. A tenth is held out to measure the classifier.

A document of score s is kept if ``pareto(alpha) > 1 - s``, with probability ``(2 - s) ** -alpha``: most good documents
and a few of every kind. Every draw is a hash of the seed and the document's key, so order, shards and restarts do not
affect it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import NonNegativeInt, model_validator

from mtnlg_data.console import Failure
from mtnlg_data.document import replace_columns, shard_source
from mtnlg_data.fingerprint import File
from mtnlg_data.quality.draws import HISTOGRAM_EDGES, histogram, keep_probability, uniform_draws
from mtnlg_data.quantities import alarm_share
from mtnlg_data.settings import Settings, setting
from mtnlg_data.step import Cost, Outcome, Role, Step
from mtnlg_data.summary import add_up
from mtnlg_data.transfer.urls import FilePath  # noqa: TC001  (pydantic reads the annotation)

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from mtnlg_data.document import Shard
    from mtnlg_data.job import Done, Job
    from mtnlg_data.planning.corpus_size import CorpusSize
    from mtnlg_data.step import Decide

REASON = "low_quality"
BINS = len(HISTOGRAM_EDGES) - 1
MIN_DOCUMENTS = 20  # per class, to train a classifier


class QualitySettings(Settings):
    """How crawled documents are scored and drawn."""

    alpha: float = setting(
        3.0, "Exponent of the Pareto draw; higher keeps fewer documents.", paper="3 (GPT-3: 9)", gt=0
    )
    model: FilePath | None = setting(
        None, "A classifier.npy of another run, or a fastText .bin from people whom you trust, instead of training."
    )
    label: str = setting("__label__hq", "Label of good texts in a fastText model.")
    sample: int = setting(  # training holds 4 kB of each
        800_000, "Maximum training documents per class.", unit="documents", paper="800000", ge=MIN_DOCUMENTS
    )
    positives: dict[str, NonNegativeInt] = setting(
        {},
        "Training documents per curated source; default equal numbers.",
        unit="documents",
        paper="OpenWebText2=500000, Wikipedia=295000, Books3=5000",
    )
    held_out: float = setting(
        0.1, "Share of training documents held out to measure the classifier.", unit="share", paper="0.1", gt=0, lt=1
    )
    epochs: int = setting(5, "Passes over the training documents.", gt=0)
    seed: int = setting(1, "Seed of the sample and of the draw.", ge=0, lt=1 << 32)
    alarm_share: float = alarm_share(0.85)  # alpha 3 drops 7/8 at most


class QualityKeys(Settings):
    """What quality reads of a source."""

    filtered: bool = setting(False, "Keep or drop its documents by their quality score.", paper="the two crawls")
    curated: bool = setting(
        False,
        "Its documents are the quality classifier's positive examples.",
        paper="OpenWebText2, Wikipedia, Books3",
    )

    @model_validator(mode="after")
    def _check_roles(self) -> Self:
        if self.filtered and self.curated:
            raise ValueError("a source cannot be both curated and filtered: the filter is trained on curated sources")
        return self


class Quality(Step[QualitySettings, QualityKeys]):
    """Filtered sources are scored and drawn; curated ones are read for the classifier, and pass on."""

    number, version = 2, 2
    kept = ("fasttext-predict",)
    alone: ClassVar[Mapping[str, Any]] = {"filtered": True}
    inputs: ClassVar[Mapping[str, Mapping[str, Any]]] = {"positive": {"curated": True}}

    @property
    def filtered(self) -> list[str]:
        """The sources that are scored."""
        return [source for source in self.sources if self.role_of(source) == "through"]

    @property
    def curated(self) -> list[str]:
        """The sources of good documents."""
        return [source for source in self.sources if self.role_of(source) == "read"]

    def validate(self) -> None:
        """Raise ``ValueError`` if sources are to be filtered without curated sources or a model."""
        if self.filtered and not self.curated and self.settings.model is None:
            raise ValueError(
                f"{self.filtered[0]} has filtered = true, but no source has curated = true to train a classifier on, "
                "and quality.model names none; as options --positive and --model"
            )

    def check(self) -> None:
        """Open the model, if one is given; compare ``positives`` with the curated sources.

        Raises ``Failure`` where the model cannot be used, or no curated source has such a name.
        """
        from mtnlg_data.quality.classifier import open_scorer  # noqa: PLC0415  (numba)

        if self.settings.model is not None:
            open_scorer(self.settings.model, self.settings.label)
        if unknown := sorted(set(self.settings.positives) - set(self.curated)):
            known = f"those are {', '.join(self.curated)}" if self.curated else "there is none"
            raise Failure(f"quality.positives.{unknown[0]}: not a curated source; {known}")

    def cost(self, corpus: CorpusSize) -> Cost:
        """Sampling, training in one process on the samples' beginnings (13 GB for 800,000 per class), and scoring."""
        sampled = 2 * min(self.settings.sample, corpus.documents) if self.settings.model is None else 0
        characters = sampled * min(4000, corpus.characters)
        alone = 270_000_000 + (80 << 20) + 2 * characters
        disk = corpus.disk + round(corpus.packed * characters) + (4 << 20)
        return Cost(0.021 * corpus.text / 1e6, 270_000_000 + corpus.group, disk, 0, 0.0694 * characters / 1e6, alone)

    def role(self, source: str) -> Role:
        """The role that the source's keys give it."""
        keys = self.sources[source]
        return "through" if keys.filtered else "read" if keys.curated else "past"

    def fingerprint(self, source: str) -> object:
        """The settings, of the draw and of the classifier, and the source's keys."""
        return [self.settings, self.sources[source]]

    def open(self, shard: Shard, item: Any = None, **shared: Any) -> Decide:  # noqa: ANN401
        """Score and draw."""
        from mtnlg_data.quality.classifier import open_scorer  # noqa: PLC0415  (numba)

        del shard, item
        settings, scorer = self.settings, open_scorer(shared["classifier"].path, self.settings.label)

        def decide(batch: pa.RecordBatch) -> Outcome:
            keys, texts = (batch[name].to_pylist() for name in ("key", "text"))
            scores = scorer.scores(texts)
            kept = uniform_draws(settings.seed, "pareto", keys) < keep_probability(scores, settings.alpha)
            outcome = Outcome.keep(replace_columns(batch, {"score": scores}), kept, REASON, scores)
            bins = {"candidates": histogram(scores), "kept": histogram(scores[kept])}
            counts = {f"{name} {at}": count for name, own in bins.items() for at, count in enumerate(own)}
            return outcome._replace(counts=counts)

        return decide

    def run(self, job: Job) -> list[Done]:
        """Sample and train, unless a model is given; then score."""
        classifier, measured = self.settings.model, {}
        if classifier is None:
            trained = self._train(job)
            classifier, measured = trained.output, trained.summary
        done = job.write(name="score", classifier=File(classifier))
        counts = add_up([{}, *(one.summary["counts"] for one in done)])
        histograms = {name: [counts.get(f"{name} {at}", 0) for at in range(BINS)] for name in ("candidates", "kept")}
        job.details["quality"] = {**measured, "edges": HISTOGRAM_EDGES.round(2).tolist(), **histograms}
        return done

    def _train(self, job: Job) -> Done:
        """Train the classifier on samples of the shards."""
        from mtnlg_data.quality import training  # noqa: PLC0415

        settings, shares = self.settings, self._sample_shares(job)
        by_path = {shard.path: shard for shard in job.shards}
        ordered = [by_path[path] for path in sorted(job.paths, key=lambda path: shard_source(path) not in self.curated)]
        positives = sum(shard_source(shard.path) in self.curated for shard in ordered)
        items = [
            ((shard, shares[shard_source(shard.path)]), job.state / "samples" / f"{number:07d}.parquet")
            for number, shard in enumerate(ordered)
        ]
        samples = job.map("sample", training.draw_sample, items, seed=settings.seed)
        documents = sum(sample.summary["documents"] for sample in samples)
        (trained,) = job.map(
            "train",
            training.train_classifier,
            [((samples, positives), job.out / "classifier.npy")],
            memory=training.TRAINING_BYTES + training.DOCUMENT_BYTES * documents,
            seed=settings.seed,
            held_out=settings.held_out,
            epochs=settings.epochs,
        )
        return trained

    def _sample_shares(self, job: Job) -> dict[str, float]:
        """The share of each source's documents to sample, for as many positives as negatives."""
        settings = self.settings
        sizes = {source: job.before[source]["documents_out"] for source in (*self.filtered, *self.curated)}
        wanted = {source: min(settings.positives.get(source, 0), sizes[source]) for source in self.curated}
        if not settings.positives:
            wanted = {source: sizes[source] for source in self.curated}
        positives, negatives = sum(wanted.values()), sum(sizes[source] for source in self.filtered)
        per_class = min(settings.sample, positives, negatives)
        if per_class < MIN_DOCUMENTS:
            raise Failure(
                f"quality: {positives} documents of {', '.join(self.curated)} and {negatives} of "
                f"{', '.join(self.filtered)} are too few to train a classifier; it takes {MIN_DOCUMENTS} of each"
            )
        shares = {source: wanted[source] / max(1, sizes[source]) * per_class / positives for source in self.curated}
        return shares | dict.fromkeys(self.filtered, per_class / negatives)
