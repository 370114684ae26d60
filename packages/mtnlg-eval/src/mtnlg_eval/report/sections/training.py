"""The page's sections on training (curves over tokens) and on the layout (ranks, stages and the model's shape)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mtnlg_eval.report.blocks import Row, Section, Table, beside, figure, paragraph
from mtnlg_eval.report.charts import training_charts as charts
from mtnlg_eval.report.markup import count, decimal, duration

if TYPE_CHECKING:
    from markupsafe import Markup

    from mtnlg_eval.report.run_files import Run, Training

SMALL = (
    ("Learning rate", "lr", "lr", ""),
    ("Batch size", "batch_size", "batch", "samples per step"),
    ("Gradient norm", "grad_norm", "norm", "before clipping"),
    ("Throughput", "tokens_per_second", "speed", "tokens per second"),
)


def sections(run: Run) -> list[Section]:
    """The loss beside the unigram entropy and four smaller curves, and the layout once training has ended."""
    if not run.steps:
        return []
    entropy = run.curation.unigram_entropy_nats if run.curation else None
    note = "the dashed line is the loss from token frequencies alone" if entropy is not None else ""
    small = [figure(title, charts.curve(run.steps, quantity, name), words) for title, quantity, name, words in SMALL]
    curves = beside("row curves", figure("Loss", charts.losses(run.steps, entropy), note), beside("small", *small))
    if run.training is None:
        newest = f"Training has not finished: the newest step is {run.steps[-1].step}."
        return [Section("training", "Training", [paragraph(newest, "absent"), curves])]
    return [Section("training", "Training", [_totals(run.training), curves]), _layout(run.training)]


def _totals(training: Training) -> Markup:
    validation = f", {decimal(training.validation_loss, 3)} on held-out documents" if training.validation_loss else ""
    return paragraph(
        f"{count(training.steps)} steps, {count(training.samples)} samples, {count(training.tokens)} tokens in "
        f"{duration(training.seconds)}; the last loss is {decimal(training.loss, 3)} nats per token{validation}."
    )


def _layout(training: Training) -> Section:
    """The chart of the ranks with the stages' layers and parameters, and the table of the model's shape."""
    layout, total = training.layout, sum(stage.parameters for stage in training.stages)
    tied = " The last stage holds a copy of the embedding as its head." if total > training.parameters else ""
    intro = paragraph(
        f"{count(len(training.ranks))} ranks: tensor parallel {layout.tp} (columns), pipeline parallel {layout.pp} "
        f"(rows), data parallel {layout.dp} (replicas). A square is a rank.{tied}"
    )
    facts = {**training.model, "parameters": training.parameters, "precision": training.precision}
    facts |= {} if training.recompute is None else {"recompute": training.recompute}
    rows = [Row([name.replace("_", " "), _fact(value)]) for name, value in facts.items() if value is not None]
    picture = figure("", charts.layout(training))
    return Section("layout", "Layout", [intro, beside("row halves", picture, Table(["model", ""], rows))])


def _fact(value: float | str | bool) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return count(value)
    return f"{value:.4g}" if isinstance(value, float) else value
