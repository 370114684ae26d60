"""The page's parts on training and on the layout: curves over tokens, ranks in their places, the layers they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import charts
from .markup import absent, count, decimal, duration, figure, row, table, text

if TYPE_CHECKING:
    from .run_files import Run, Training

COMMAND = "mtnlg-parallel train RECIPE --data DIR/data --out DIR/train"


def section(run: Run) -> str:
    """The loss against the unigram entropy, and what went with it step by step."""
    if not run.steps:
        return absent("Nothing has been trained yet", "train/metrics.jsonl", COMMAND)
    entropy = run.curation.unigram_entropy_nats if run.curation else None
    note = "the dashed line is what token frequencies alone would reach" if entropy is not None else ""
    small = [
        figure("Learning rate", charts.curve(run.steps, "lr", "lr")),
        figure("Batch size", charts.curve(run.steps, "batch_size", "batch"), "samples a step"),
        figure("Gradient norm", charts.curve(run.steps, "grad_norm", "norm"), "before clipping"),
        figure("Throughput", charts.curve(run.steps, "tokens_per_second", "speed"), "tokens a second"),
    ]
    loss = figure("Loss", charts.losses(run.steps, entropy), note)
    unfinished = (
        f'<p class="absent">Training has not finished: the newest step is {run.steps[-1].step}, and there is no '
        f"<code>train/summary.json</code>. The same <code>{COMMAND}</code> goes on from the last checkpoint.</p>"
    )
    told = "" if run.training else unfinished
    return (
        f'{told}{_told(run.training)}\n<div class="row curves">{loss}\n<div class="small">{"".join(small)}</div></div>'
    )


def _told(training: Training | None) -> str:
    if training is None:
        return ""
    validation = f", {decimal(training.validation_loss, 3)} on held-out documents" if training.validation_loss else ""
    return (
        f"<p>{count(training.steps)} steps, {count(training.samples)} samples, {count(training.tokens)} tokens in "
        f"{duration(training.seconds)}; the last loss is {decimal(training.loss, 3)} nats a token{validation}.</p>"
    )


def layout_section(run: Run) -> str:
    """Who holds what: the picture of the ranks, the stages' parameters, the model's shape."""
    training = run.training
    if training is None:
        return absent("No training has finished, so its layout is not known", "train/summary.json", COMMAND)
    shape = training.layout
    told = (
        f"<p>{count(len(training.ranks))} ranks: tensor parallel {shape.tp} (columns), pipeline parallel {shape.pp} "
        f"(rows), data parallel {shape.dp} (replicas). A square is a rank.{_tied(training)}</p>"
    )
    facts = {**training.model, "parameters": training.parameters, "precision": training.precision}
    if training.recompute is not None:
        facts["recompute"] = training.recompute
    shown = [row([text(name.replace("_", " ")), _fact(value)]) for name, value in facts.items() if value is not None]
    model = table(["model", ""], shown)
    return f'{told}\n<div class="row halves"><figure>{charts.layout(training)}</figure>{model}</div>'


def _tied(training: Training) -> str:
    """Why the stages hold more parameters than the model has, where they do."""
    held = sum(stage.parameters for stage in training.stages)
    return " The last stage holds a copy of the embedding as its head." if held > training.parameters else ""


def _fact(value: float | str | bool) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return count(value)
    return text(f"{value:.4g}" if isinstance(value, float) else value)
