"""What a run amounts to, as one object for a machine: funnel, training, scores beside the published ones.

What the console shows of a run: four lines, the nine-task table beside MT-NLG's, and which studies there are.
"""

from __future__ import annotations

from importlib.metadata import version
from math import isfinite
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from mtnlg_eval.table import wilson
from mtnlg_eval.tasks.published import SHOTS, TASKS, published

from .markup import DASH, count, decimal, duration, short
from .studies import of_others, present

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from mtnlg_eval.tasks.published import Shots, Task

    from .run_files import Curation, Evaluation, Run, Score, Stage, Training


VERSION = 1


def results(run: Run) -> dict[str, Any]:
    """The run as JSON: every part that has been run, and under ``not_run`` the names of those that have not."""
    parts = {"data": run.curation, "training": run.training, "evaluation": run.evaluation}
    return {
        "version": VERSION,
        "run": run.name,
        "not_run": [name for name, part in parts.items() if part is None],
        "seconds": seconds(run),
        "data": _data(run, run.curation) if run.curation else None,
        "training": _training(run.training) if run.training else None,
        "evaluation": _evaluation(run.evaluation) if run.evaluation else None,
        "studies": [{"file": one.file, "checkpoint": one.study.checkpoint} for one in run.studies.shown],
        "versions": versions(run),
    }


def seconds(run: Run) -> float:
    """Wall time of the parts that have been run, as each of them took it."""
    return sum(part.seconds for part in (run.curation, run.training, run.evaluation) if part is not None)


def versions(run: Run) -> dict[str, str]:
    """Versions of what made the run, as its files tell, and of this report."""
    known = {name: value for name, value in (run.training.versions if run.training else {}).items() if value}
    if run.harness and run.harness.lm_eval_version:
        known["lm-eval"] = run.harness.lm_eval_version
    return {**dict(sorted(known.items())), "mtnlg-eval": version("mtnlg-eval")}


def sources_of(stages: Sequence[Stage]) -> list[str]:
    """Names of the sources in the order in which the stages name them."""
    return list(dict.fromkeys(source for stage in stages for source in stage.sources))


def documents(stages: Sequence[Stage]) -> tuple[int, int]:
    """Documents that entered and that are left: each source counts at its first and at its last stage."""
    flows = [[stage.sources[source] for stage in stages if source in stage.sources] for source in sources_of(stages)]
    return sum(flow[0].documents_in for flow in flows), sum(flow[-1].documents_out for flow in flows)


def epochs(run: Run) -> dict[str, float]:
    """How often training has read each source: its share of the tokens trained over the tokens that it may read."""
    if run.blend is None or run.training is None:
        return {}
    trained, share = run.training.tokens, 1 - run.blend.validation
    whole = sum(source.weight for source in run.blend.sources) or 1.0
    return {s.name: trained * s.weight / whole / (s.tokens * share) for s in run.blend.sources if s.tokens * share > 0}


def interval(score: Score) -> tuple[float, float]:
    """The 95 % confidence interval of an accuracy in percent (Wilson's: its rows are right or wrong)."""
    low, high = wilson(score.value * score.documents, score.documents)
    return 100 * low, 100 * high


def scored(evaluation: Evaluation) -> list[tuple[Task, dict[Shots, Score]]]:
    """The nine tasks in the paper's order, each with the scores that it has."""
    tables = [(task, evaluation.tasks.get(task.name, {})) for task in TASKS]
    return [(task, {shots: table[shots] for shots in SHOTS if shots in table}) for task, table in tables]


def _data(run: Run, curation: Curation) -> dict[str, Any]:
    entered, left = documents(curation.stages)
    read = epochs(run)
    blend = run.blend.sources if run.blend else []
    return {
        "documents_in": entered,
        "documents_out": left,
        "stages": [stage.model_dump() for stage in curation.stages],
        "quality": curation.quality.model_dump() if curation.quality else None,
        "duplicate_clusters": curation.duplicates.components if curation.duplicates else None,
        "decontamination": curation.decontamination.model_dump() if curation.decontamination else None,
        "tokens": sum(source.tokens for source in blend),
        "blend": [source.model_dump() | {"epochs": read.get(source.name)} for source in blend],
        "vocabulary": curation.vocabulary,
        "unigram_entropy_nats": curation.unigram_entropy_nats,
        "seconds": curation.seconds,
    }


def _training(training: Training) -> dict[str, Any]:
    told = training.model_dump(exclude={"ranks", "stages", "versions"})
    return {key: None if isinstance(value, float) and not isfinite(value) else value for key, value in told.items()}


def _evaluation(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "checkpoint": evaluation.checkpoint,
        "digest": evaluation.digest,
        "tokens": evaluation.tokens,
        "rows_from": evaluation.rows_from,
        "tasks": {
            task.name: {s: _score(task, s, score) for s, score in row.items()} for task, row in scored(evaluation)
        },
        "not_run": [gap.model_dump() for gap in evaluation.not_run],
        "seconds": evaluation.seconds,
    }


def _score(task: Task, shots: Shots, score: Score) -> dict[str, Any]:
    return {
        "metric": score.metric,
        "percent": 100 * score.value,
        "interval_95": list(interval(score)),
        "documents": score.documents,
        "shots_used": score.shots_used,
        "published": {model: figures.at(shots) for model, figures in task.figures.items()},
    }


def summary(run: Run) -> Iterator[RenderableType]:
    """The lines and the table, in the order in which they are printed."""
    yield Text(f"{run.name}: {duration(seconds(run))} in all", style="bold")
    yield Text(_data_lines(run))
    yield Text(_training_lines(run))
    if run.evaluation is None:
        yield Text("evaluation: not run yet")
    else:
        yield _table(run.evaluation)
    if shown := present(run.studies):
        yield Text(f"studies:    {', '.join(chapter.title for chapter in shown)}")
    if line := of_others(run.studies):
        yield Text(line)


def _data_lines(run: Run) -> str:
    if run.curation is None:
        return "data:       not run yet"
    entered, left = documents(run.curation.stages)
    tokens = f", {short(sum(source.tokens for source in run.blend.sources))} tokens" if run.blend else ""
    return f"data:       {count(entered)} documents, {count(left)} kept{tokens}"


def _training_lines(run: Run) -> str:
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
