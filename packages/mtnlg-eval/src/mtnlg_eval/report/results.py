"""A run's results: results.json, the summary on the console, and the figures that the page shares with them."""

from __future__ import annotations

from collections import defaultdict
from importlib.metadata import version
from math import isfinite
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from mtnlg_eval.table import wilson_interval
from mtnlg_eval.tasks.published import SHOTS, TASKS, published

from .markup import DASH, count, decimal, duration, short
from .studies import chapters_shown, other_checkpoints_notice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from mtnlg_eval.tasks.published import Shots, Task

    from .run_files import Curation, Evaluation, Run, Score, SourceCounts, Stage, Training

VERSION = 1


def build_results(run: Run) -> dict[str, Any]:
    """The content of results.json: every part that has been run; ``not_run`` lists the others."""
    parts = {"data": run.curation, "training": run.training, "evaluation": run.evaluation}
    return {
        "version": VERSION,
        "run": run.name,
        "not_run": [name for name, part in parts.items() if part is None],
        "seconds": total_seconds(run),
        "data": _data(run, run.curation) if run.curation else None,
        "training": _training(run.training) if run.training else None,
        "evaluation": _evaluation(run.evaluation) if run.evaluation else None,
        "studies": [{"file": one.file, "checkpoint": one.study.checkpoint} for one in run.studies.shown],
        "versions": software_versions(run),
    }


def total_seconds(run: Run) -> float:
    """Sum of the wall times of the parts that have been run."""
    return sum(part.seconds for part in (run.curation, run.training, run.evaluation) if part is not None)


def software_versions(run: Run) -> dict[str, str]:
    """Versions of the packages that made the run, according to its files, and of mtnlg-eval now."""
    known = {name: value for name, value in (run.training.versions if run.training else {}).items() if value}
    if run.harness and run.harness.lm_eval_version:
        known["lm-eval"] = run.harness.lm_eval_version
    return {**dict(sorted(known.items())), "mtnlg-eval": version("mtnlg-eval")}


def count_documents(stages: Sequence[Stage]) -> tuple[int, int]:
    """Documents in and kept. Each source counts at its own first and last stage: not every stage has every source."""
    by_source: defaultdict[str, list[SourceCounts]] = defaultdict(list)
    for stage in stages:
        for source, counts in stage.sources.items():
            by_source[source].append(counts)
    return sum(c[0].documents_in for c in by_source.values()), sum(c[-1].documents_out for c in by_source.values())


def epochs_read(run: Run) -> dict[str, float]:
    """Epochs by source: its share of the tokens trained, over its tokens outside the validation set."""
    if run.blend is None or run.training is None:
        return {}
    trained, train_share = run.training.tokens, 1 - run.blend.validation
    weights = sum(source.weight for source in run.blend.sources) or 1.0
    return {
        source.name: trained * source.weight / weights / (source.tokens * train_share)
        for source in run.blend.sources
        if source.tokens * train_share > 0
    }


def score_interval(score: Score) -> tuple[float, float]:
    """Wilson's 95 % confidence interval of an accuracy, in percent."""
    low, high = wilson_interval(score.value * score.documents, score.documents)
    return 100 * low, 100 * high


def scores_by_task(evaluation: Evaluation) -> list[tuple[Task, dict[Shots, Score]]]:
    """The nine tasks in the paper's order, each with its scores at 0, 1 and few shots as far as there are any."""
    tables = [(task, evaluation.tasks.get(task.name, {})) for task in TASKS]
    return [(task, {shots: table[shots] for shots in SHOTS if shots in table}) for task, table in tables]


def _data(run: Run, curation: Curation) -> dict[str, Any]:
    documents_in, documents_out = count_documents(curation.stages)
    epochs = epochs_read(run)
    blend = run.blend.sources if run.blend else []
    return {
        "documents_in": documents_in,
        "documents_out": documents_out,
        "stages": [stage.model_dump() for stage in curation.stages],
        "quality": curation.quality.model_dump() if curation.quality else None,
        "duplicate_clusters": curation.duplicates.components if curation.duplicates else None,
        "decontamination": curation.decontamination.model_dump() if curation.decontamination else None,
        "tokens": sum(source.tokens for source in blend),
        "blend": [source.model_dump() | {"epochs": epochs.get(source.name)} for source in blend],
        "vocabulary": curation.vocabulary,
        "unigram_entropy_nats": curation.unigram_entropy_nats,
        "seconds": curation.seconds,
    }


def _training(training: Training) -> dict[str, Any]:
    summary = training.model_dump(exclude={"ranks", "stages", "versions"})
    return {key: None if isinstance(value, float) and not isfinite(value) else value for key, value in summary.items()}


def _evaluation(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "checkpoint": evaluation.checkpoint,
        "digest": evaluation.digest,
        "tokens": evaluation.tokens,
        "rows_from": evaluation.rows_from,
        "tasks": {
            task.name: {shots: _score(task, shots, score) for shots, score in scores.items()}
            for task, scores in scores_by_task(evaluation)
        },
        "not_run": [gap.model_dump() for gap in evaluation.not_run],
        "seconds": evaluation.seconds,
    }


def _score(task: Task, shots: Shots, score: Score) -> dict[str, Any]:
    return {
        "metric": score.metric,
        "percent": 100 * score.value,
        "interval_95": list(score_interval(score)),
        "documents": score.documents,
        "shots_used": score.shots_used,
        "published": {model: figures.at(shots) for model, figures in task.figures.items()},
    }


def console_summary(run: Run) -> Iterator[RenderableType]:
    """What the command prints: a line per part, the table of scores, and the studies."""
    yield Text(f"{run.name}: {duration(total_seconds(run))} in total", style="bold")
    yield Text(_data_line(run))
    yield Text(_training_lines(run))
    if run.evaluation is None:
        yield Text("evaluation: not run yet")
    else:
        yield _score_table(run.evaluation)
    if chapters := chapters_shown(run.studies):
        yield Text(f"studies:    {', '.join(chapter.title for chapter in chapters)}")
    if notice := other_checkpoints_notice(run.studies):
        yield Text(notice)


def _data_line(run: Run) -> str:
    if run.curation is None:
        return "data:       not run yet"
    documents_in, documents_out = count_documents(run.curation.stages)
    tokens = f", {short(sum(source.tokens for source in run.blend.sources))} tokens" if run.blend else ""
    return f"data:       {count(documents_in)} documents, {count(documents_out)} kept{tokens}"


def _training_lines(run: Run) -> str:
    if run.training is None:
        return f"training:   at step {run.steps[-1].step}" if run.steps else "training:   not run yet"
    entropy = run.curation.unigram_entropy_nats if run.curation else None
    unigram = f" (unigram entropy {entropy:.2f})" if entropy is not None else ""
    shape = run.training.layout
    return (
        f"training:   loss {decimal(run.training.loss, 2)} nats per token{unigram}\n"
        f"layout:     tp {shape.tp} x pp {shape.pp} x dp {shape.dp}, {short(run.training.tokens_per_second)} tokens/s"
    )


def _score_table(evaluation: Evaluation) -> Table:
    caption = "accuracy in percent (95 % interval); MT-NLG's as published"
    table = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1), caption=caption, caption_justify="left")
    table.add_column("task", no_wrap=True)
    for shots in SHOTS:
        table.add_column(f"{shots}-shot", justify="right", no_wrap=True)
        table.add_column("MT-NLG", justify="right", style="dim", no_wrap=True)
    table.add_column("rows", justify="right")
    for task, scores in scores_by_task(evaluation):
        cells = [cell for shots in SHOTS for cell in _cells(scores.get(shots), published(task.name, "MT-NLG", shots))]
        rows = sorted({score.documents for score in scores.values()})
        table.add_row(task.title, *cells, "/".join(map(str, rows)) or DASH)
    return table


def _cells(score: Score | None, mtnlg: float | None) -> tuple[str, str]:
    if score is None:
        return DASH, decimal(mtnlg, 2)
    low, high = score_interval(score)
    return f"{100 * score.value:.1f} ({low:.0f}{DASH}{high:.0f})", decimal(mtnlg, 2)
