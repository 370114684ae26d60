"""A run's results: results.json, the summary on the console, and the figures that the page shares with them."""

from __future__ import annotations

from collections import defaultdict
from importlib.metadata import version
from math import isfinite
from typing import TYPE_CHECKING, Any

from mtnlg_eval.results.compare import group_means
from mtnlg_eval.results.folder import collected
from mtnlg_eval.table import print_scores
from mtnlg_eval.tasks.published import TASKS
from mtnlg_model.console import output

from .markup import NARROW, count, decimal, duration, short
from .run_files import epochs_read
from .sections.studies import chapters_shown

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def print_summary(run: Run) -> None:
    """Print a line per part, the table of scores, and the studies."""
    spent = f"{run.name}: {duration(total_seconds(run))} in curation, training and scoring"
    for line in filter(None, (spent, _data_line(run), _training_lines(run))):
        output().print(line.replace(NARROW, " "))  # on a terminal a narrow space is not printable
    if run.evaluation is not None:
        main = run.evaluation.main
        tasks = {task: {n: cell.summary for n, cell in main.by_shots(task).items()} for task in main.tasks()}
        print_scores({"name": main.model.name, "tasks": tasks, "groups": group_means(main.results), "not_run": []})
    if chapters := chapters_shown(run.studies):
        output().print(f"studies:    {', '.join(chapter.title for chapter in chapters)}")


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
