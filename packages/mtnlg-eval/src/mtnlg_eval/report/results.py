"""A run's results: results.json, the summary on the console, and the figures that the page shares with them."""

from __future__ import annotations

from collections import defaultdict
from importlib.metadata import version
from math import isfinite
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from mtnlg_eval.results.folder import collected
from mtnlg_eval.table import MOST_DIGITS
from mtnlg_eval.tasks.published import SHOTS, TASKS, TASKS_BY_NAME, title_of

from .markup import DASH, NARROW, count, decimal, duration, short
from .run_files import epochs_read
from .sections.studies import chapters_shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from mtnlg_eval.results.compare import Cell

    from .run_files import Curation, Evaluation, Run, SourceCounts, Stage, Training

VERSION = 3


def missing_parts(run: Run) -> dict[str, str]:
    """The parts that have not been run, each with its command."""
    parts = {
        "data": (run.curation, "mtnlg-data run RECIPE --out DIR/data"),
        "training": (run.training, "mtnlg-parallel train RECIPE --data DIR/data --out DIR/train"),
        "evaluation": (run.evaluation, "mtnlg-eval run CHECKPOINT --data ROWS --out DIR/eval"),
    }
    return {name: command for name, (part, command) in parts.items() if part is None}


def build_results(run: Run) -> dict[str, Any]:
    """The content of results.json: every part that has been run; ``not_run`` lists the others."""
    return {
        "version": VERSION,
        "run": run.name,
        "not_run": list(missing_parts(run)),
        "seconds": total_seconds(run),
        "data": _data(run, run.curation) if run.curation else None,
        "training": _training(run.training) if run.training else None,
        "evaluation": _evaluation(run.evaluation) if run.evaluation else None,
        "studies": [{"file": one.file, "model": one.study.name} for one in run.studies.shown],
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
    """The content of the evaluation's own results.json, and the published figures."""
    published = {task.name: {model: figures._asdict() for model, figures in task.figures.items()} for task in TASKS}
    content = collected(evaluation.results, [gap.model_dump() for gap in evaluation.not_run])
    return content | {"published": published, "seconds": evaluation.seconds}


def console_summary(run: Run) -> Iterator[RenderableType]:
    """What the command prints: a line per part, the table of scores, and the studies."""
    spent = f"{run.name}: {duration(total_seconds(run))} in curation, training and scoring"
    lines = (spent, _data_line(run), _training_lines(run))
    for line, style in zip(lines, ("bold", "", ""), strict=True):
        if line:
            yield Text(line.replace(NARROW, " "), style=style)  # on a terminal a narrow space is not printable
    if run.evaluation is not None:
        yield _score_table(run.evaluation)
    if chapters := chapters_shown(run.studies):
        yield Text(f"studies:    {', '.join(chapter.title for chapter in chapters)}")


def _data_line(run: Run) -> str:
    if run.curation is None:
        return ""
    documents_in, documents_out = count_documents(run.curation.stages)
    tokens = f", {short(sum(source.tokens for source in run.blend.sources))} tokens" if run.blend else ""
    return f"data:       {count(documents_in)} documents, {count(documents_out)} kept{tokens}"


def _training_lines(run: Run) -> str:
    if run.training is None:
        return f"training:   at step {run.steps[-1].step}" if run.steps else ""
    entropy = run.curation.unigram_entropy_nats if run.curation else None
    unigram = f" (unigram entropy {entropy:.2f})" if entropy is not None else ""
    shape = run.training.layout
    return (
        f"training:   loss {decimal(run.training.loss, 2)} nats per token{unigram}\n"
        f"layout:     tp {shape.tp} x pp {shape.pp} x dp {shape.dp}, {short(run.training.tokens_per_second)} tokens/s"
    )


def _score_table(evaluation: Evaluation) -> Table:
    name = evaluation.main.model.name
    caption = f"{name}, percent where it is a share (95 % interval); MT-NLG's as published"
    table = Table(box=SIMPLE_HEAD, padding=0, caption=caption, caption_justify="left")
    table.add_column("task", no_wrap=True)
    cells = {task: evaluation.main.by_shots(task) for task in evaluation.main.tasks()}
    asked = sorted({n for own in cells.values() for n in own}, key=lambda n: (n == "few", len(n), n))
    wide = len(asked) <= len(SHOTS)
    for shots in asked:
        table.add_column(f"{shots}-shot", justify="right", no_wrap=True)
        if wide and shots in SHOTS:
            table.add_column("MT-NLG", justify="right", style="dim", no_wrap=True)
    table.add_column("rows", justify="right", no_wrap=True, min_width=MOST_DIGITS)
    for task, own in cells.items():
        mtnlg = TASKS_BY_NAME[task].figures["MT-NLG"] if task in TASKS_BY_NAME else None
        texts: list[str] = []
        for shots in asked:
            texts.append(_cell(own[shots], wide) if shots in own else DASH)
            if wide and shots in SHOTS:
                texts.append(decimal(mtnlg.at(shots), 2) if mtnlg else "")
        rows = sorted({cell.first.rows.count for cell in own.values()})
        table.add_row(title_of(task), *texts, "/".join(map(str, rows)) or DASH)
    return table


def _cell(cell: Cell, wide: bool) -> str:
    if not cell.first.is_share:
        return f"{cell.value:.4g}"
    value, low, high = (100 * number for number in cell.estimate)
    return f"{value:.1f} ({low:.0f}{DASH}{high:.0f})" if wide else f"{value:.1f}"
