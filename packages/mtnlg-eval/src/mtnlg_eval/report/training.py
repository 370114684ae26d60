"""The page's sections on training (curves over tokens) and on the layout (ranks, stages and the model's shape)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import charts
from .attachments.tables import links
from .markup import count, decimal, duration, escape, figure, missing_part, row, table

if TYPE_CHECKING:
    from .run_files import Run, Training

COMMAND = "mtnlg-parallel train RECIPE --data DIR/data --out DIR/train"


def section(run: Run) -> str:
    """Totals, the loss beside the unigram entropy, and four smaller curves."""
    if not run.steps:
        return missing_part("Nothing has been trained yet", "train/metrics.jsonl", COMMAND)
    entropy = run.curation.unigram_entropy_nats if run.curation else None
    note = "the dashed line is the loss from token frequencies alone" if entropy is not None else ""
    small = [
        figure("Learning rate", charts.curve(run.steps, "lr", "lr")),
        figure("Batch size", charts.curve(run.steps, "batch_size", "batch"), "samples per step"),
        figure("Gradient norm", charts.curve(run.steps, "grad_norm", "norm"), "before clipping"),
        figure("Throughput", charts.curve(run.steps, "tokens_per_second", "speed"), "tokens per second"),
    ]
    loss = figure("Loss", charts.losses(run.steps, entropy), note)
    unfinished = (
        f'<p class="absent">Training has not finished: the newest step is {run.steps[-1].step}, and there is no '
        f"<code>train/summary.json</code>. <code>{COMMAND}</code> resumes from the last checkpoint.</p>"
    )
    intro = _totals(run.training) if run.training else unfinished
    return f'{intro}\n<div class="row curves">{loss}\n<div class="small">{"".join(small)}</div></div>'


def _totals(training: Training) -> str:
    validation = f", {decimal(training.validation_loss, 3)} on held-out documents" if training.validation_loss else ""
    return (
        f"<p>{count(training.steps)} steps, {count(training.samples)} samples, {count(training.tokens)} tokens in "
        f"{duration(training.seconds)}; the last loss is {decimal(training.loss, 3)} nats per token{validation}.</p>"
    )


def layout_section(run: Run) -> str:
    """The chart of the ranks with the stages' layers and parameters, and the table of the model's shape."""
    training = run.training
    if training is None:
        return missing_part("Training has not finished, so the layout is not known", "train/summary.json", COMMAND)
    layout = training.layout
    intro = (
        f"<p>{count(len(training.ranks))} ranks: tensor parallel {layout.tp} (columns), pipeline parallel {layout.pp} "
        f"(rows), data parallel {layout.dp} (replicas). A square is a rank.{_tied_embedding(training)}</p>"
    )
    facts = {**training.model, "parameters": training.parameters, "precision": training.precision}
    if training.recompute is not None:
        facts["recompute"] = training.recompute
    rows = [row([escape(name.replace("_", " ")), _fact(value)]) for name, value in facts.items() if value is not None]
    model = f"<div>{table(['model', ''], rows)}\n{links('model')}</div>"
    return f'{intro}\n<div class="row halves"><figure>{charts.layout(training)}</figure>{model}</div>'


def _tied_embedding(training: Training) -> str:
    """A sentence on why the stages have more parameters than the model, if they do."""
    total = sum(stage.parameters for stage in training.stages)
    return " The last stage holds a copy of the embedding as its head." if total > training.parameters else ""


def _fact(value: float | str | bool) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return count(value)
    return escape(f"{value:.4g}" if isinstance(value, float) else value)
