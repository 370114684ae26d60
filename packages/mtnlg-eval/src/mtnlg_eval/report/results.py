"""A run's results: results.json, the summary on the console, and the figures that the page shares with them."""

from __future__ import annotations

from collections import defaultdict
from importlib.metadata import version
from math import isfinite
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from mtnlg_eval.results.compare import compared
from mtnlg_eval.table import MOST_DIGITS
from mtnlg_eval.tasks.published import SHOTS, TASKS_BY_NAME, title_of

from .markup import DASH, NARROW, count, decimal, duration, short
from .run_files import epochs_read
from .studies import chapters_shown, other_checkpoints_notice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from mtnlg_eval.results.compare import Cell

    from .run_files import Curation, Evaluation, Run, SourceCounts, Stage, Training

VERSION = 2


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
    """Sum of the wall times of the parts that have been run, without what comes before and between them."""
    return sum(part.seconds for part in (run.curation, run.training, run.evaluation) if part is not None)


def software_versions(run: Run) -> dict[str, str]:
    """Versions of the packages that made the run, according to its files."""
    known = {name: value for name, value in (run.training.versions if run.training else {}).items() if value}
    if run.evaluation:
        known |= run.evaluation.main.results[0].provenance.packages
    return dict(sorted({"mtnlg-eval": version("mtnlg-eval"), **known}.items()))


def count_documents(stages: Sequence[Stage]) -> tuple[int, int]:
    """Documents in and kept. Each source counts at its own first and last stage: not every stage has every source."""
    by_source: defaultdict[str, list[SourceCounts]] = defaultdict(list)
    for stage in stages:
        for source, counts in stage.sources.items():
            by_source[source].append(counts)
    return sum(c[0].documents_in for c in by_source.values()), sum(c[-1].documents_out for c in by_source.values())


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
    main = evaluation.main
    return {
        **main.model.model_dump(),
        "tasks": {
            task: {asked: _score(task, asked, cell) for asked, cell in main.by_shots(task).items()}
            for task in main.tasks()
        },
        "comparison": compared(evaluation.runs),
        "not_run": [gap.model_dump() for gap in evaluation.not_run],
        "seconds": evaluation.seconds,
    }


def _score(task: str, asked: str, cell: Cell) -> dict[str, Any]:
    first, estimate = cell.first, cell.estimate
    return {
        "percent": 100 * estimate.value,
        "interval_95": [100 * estimate.low, 100 * estimate.high],
        "between_draws": cell.between_draws,
        "metrics": {key: metric.model_dump() for key, metric in first.metrics.items()},
        "rows": first.rows.model_dump(),
        "shots": first.shots.model_dump(),
        "truncated": first.truncated,
        "differs": cell.differs,
        "published": {
            model: figures.at(asked)
            for model, figures in (TASKS_BY_NAME[task].figures.items() if task in TASKS_BY_NAME else ())
            if asked in SHOTS
        },
    }


def console_summary(run: Run) -> Iterator[RenderableType]:
    """What the command prints: a line per part, the table of scores, and the studies."""
    spent = f"{run.name}: {duration(total_seconds(run))} in curation, training and scoring"
    lines = (spent, _data_line(run), _training_lines(run))
    for line, style in zip(lines, ("bold", "", ""), strict=True):
        yield Text(line.replace(NARROW, " "), style=style)  # on a terminal a narrow space is not printable
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
    table = Table(box=SIMPLE_HEAD, padding=0, caption=caption, caption_justify="left")
    table.add_column("task", no_wrap=True)
    for shots in SHOTS:
        table.add_column(f"{shots}-shot", justify="right", no_wrap=True)
        table.add_column("MT-NLG", justify="right", style="dim", no_wrap=True)
    table.add_column("rows", justify="right", no_wrap=True, min_width=MOST_DIGITS)
    for name in dict.fromkeys([*TASKS_BY_NAME, *evaluation.main.tasks()]):
        scores = evaluation.main.by_shots(name)
        mtnlg = TASKS_BY_NAME[name].figures["MT-NLG"] if name in TASKS_BY_NAME else None
        cells = [cell for shots in SHOTS for cell in _cells(scores.get(shots), mtnlg and mtnlg.at(shots))]
        rows = sorted({cell.first.rows.count for cell in scores.values()})
        table.add_row(title_of(name), *cells, "/".join(map(str, rows)) or DASH)
    return table


def _cells(cell: Cell | None, mtnlg: float | None) -> tuple[str, str]:
    if cell is None:
        return DASH, decimal(mtnlg, 2)
    value, low, high = (100 * number for number in cell.estimate)
    return f"{value:.1f} ({low:.0f}{DASH}{high:.0f})", decimal(mtnlg, 2)
