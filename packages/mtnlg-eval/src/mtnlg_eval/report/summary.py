"""What the console shows of a run: four lines, the nine-task table beside MT-NLG's, and which studies there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from mtnlg_eval.published import SHOTS, published

from .notation import DASH, count, decimal, duration, short
from .results import documents, interval, scored, seconds
from .studies import of_others, present

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from .folder import Evaluation, Run, Score


def summary(run: Run) -> Iterator[RenderableType]:
    """The lines and the table, in the order in which they are printed."""
    yield Text(f"{run.name}: {duration(seconds(run))} in all", style="bold")
    yield Text(_data(run))
    yield Text(_training(run))
    if run.evaluation is None:
        yield Text("evaluation: not run yet")
    else:
        yield _table(run.evaluation)
    if shown := present(run.studies):
        yield Text(f"studies:    {', '.join(chapter.title for chapter in shown)}")
    if line := of_others(run.studies):
        yield Text(line)


def _data(run: Run) -> str:
    if run.curation is None:
        return "data:       not run yet"
    entered, left = documents(run.curation.stages)
    tokens = f", {short(sum(source.tokens for source in run.blend.sources))} tokens" if run.blend else ""
    return f"data:       {count(entered)} documents, {count(left)} kept{tokens}"


def _training(run: Run) -> str:
    if run.training is None:
        return f"training:   at step {run.steps[-1].step}" if run.steps else "training:   not run yet"
    entropy = run.curation.unigram_entropy_nats if run.curation else None
    beside = f" (unigram entropy {entropy:.2f})" if entropy is not None else ""
    shape = run.training.layout
    return (
        f"training:   loss {decimal(run.training.loss, 2)} nats a token{beside}\n"
        f"layout:     tp {shape.tp} x pp {shape.pp} x dp {shape.dp}, {short(run.training.tokens_per_second)} tokens/s"
    )


def _table(evaluation: Evaluation) -> Table:
    caption = "accuracy in percent (its 95 % interval); MT-NLG's as published"
    table = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1), caption=caption, caption_justify="left")
    table.add_column("task", no_wrap=True)
    for shots in SHOTS:
        table.add_column(f"{shots}-shot", justify="right", no_wrap=True)
        table.add_column("MT-NLG", justify="right", style="dim", no_wrap=True)
    table.add_column("rows", justify="right")
    for task, scores in scored(evaluation):
        cells = [cell for shots in SHOTS for cell in _cells(scores.get(shots), published(task.name, "MT-NLG", shots))]
        rows = sorted({score.documents for score in scores.values()})
        table.add_row(task.title, *cells, "/".join(map(str, rows)) or DASH)
    return table


def _cells(score: Score | None, theirs: float | None) -> tuple[str, str]:
    if score is None:
        return DASH, decimal(theirs, 2)
    low, high = interval(score)
    return f"{100 * score.value:.1f} ({low:.0f}{DASH}{high:.0f})", decimal(theirs, 2)
