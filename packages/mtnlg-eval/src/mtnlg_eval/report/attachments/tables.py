"""Every table of the page as CSV and JSON beside it, report/NAME.csv and .json, with its numbers in full.

A table is a list of rows, each from column to value. In CSV a text that a spreadsheet would take for a formula is
preceded by an apostrophe: stages, reasons and checkpoints are named by strangers.
"""

from __future__ import annotations

import csv
from io import StringIO
from typing import TYPE_CHECKING, Any

from mtnlg_eval.report.run_files import epochs_read
from mtnlg_eval.report.study_files import Bias, Hans, Operators
from mtnlg_eval.results.compare import difference, labels
from mtnlg_eval.tasks.published import SHOTS, TASKS_BY_NAME
from mtnlg_model.files import write_json, write_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from mtnlg_eval.report.run_files import Curation, Evaluation, Run
    from mtnlg_eval.report.study_files import HansTally, Study
    from mtnlg_eval.results.compare import Estimate
    from mtnlg_eval.results.result import Result

    Rows = Sequence[Mapping[str, Any]]

FOLDER = "report"
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""What a spreadsheet may take for the beginning of a formula."""


def build_tables(run: Run) -> dict[str, Rows]:
    """The tables of a run by name, for the parts that have been run."""
    tables: dict[str, Rows] = {}
    if run.curation:
        tables |= {"stages": list(_stages(run.curation)), "dropped": list(_dropped(run.curation))}
    if run.blend:
        epochs = epochs_read(run)
        tables["blend"] = [source.model_dump() | {"epochs": epochs.get(source.name)} for source in run.blend.sources]
    if run.training:
        facts = run.training.model | {"parameters": run.training.parameters, "precision": run.training.precision}
        tables["model"] = [{"name": name, "value": value} for name, value in facts.items()]
    if run.evaluation:
        tables["results"] = [_result(result) for result in run.evaluation.results]
        tables["scores"] = list(_scores(run.evaluation))
        if len(run.evaluation.runs) > 1:
            tables["comparison"] = list(_comparison(run.evaluation))
    for item in run.studies.shown:
        for name, rows in study_tables(item.study).items():
            tables[name] = [*tables.get(name, ()), *({"file": item.file, **row} for row in rows)]
    return tables


def write_tables(run: Path, tables: Mapping[str, Rows]) -> None:
    """Write each table beside the page of ``run``."""
    for name, rows in tables.items():
        write_json(run / FOLDER / f"{name}.json", rows)
        write_text(run / FOLDER / f"{name}.csv", _csv(rows))


def links(*names: str) -> str:
    """Links to the files of these tables, in a line below them on the page."""
    words = [
        f'{name}: <a href="{FOLDER}/{name}.csv">CSV</a>, <a href="{FOLDER}/{name}.json">JSON</a>' for name in names
    ]
    return f'<p class="files">{"; ".join(words)}</p>'


def _csv(rows: Rows) -> str:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    file = StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(map(_cell, columns))
    writer.writerows([_cell(row.get(column)) for column in columns] for row in rows)
    return file.getvalue()


def _cell(value: object) -> object:
    text = "; ".join(map(str, value)) if isinstance(value, list) else value
    return f"'{text}" if isinstance(text, str) and text.startswith(FORMULA) else text


def _stages(curation: Curation) -> Iterator[Mapping[str, Any]]:
    keys = ("documents_in", "documents_out", "characters_in", "characters_out")
    for stage in curation.stages:
        whole = {key: getattr(stage, key) for key in keys}
        yield {"stage": stage.name, "source": "all", "seconds": stage.seconds, **whole}
        for source, counts in stage.sources.items():
            parts = {key: getattr(counts, key) for key in keys}
            yield {"stage": stage.name, "source": source, "seconds": None, **parts}


def _dropped(curation: Curation) -> Iterator[Mapping[str, Any]]:
    for stage in curation.stages:
        for source, counts in stage.sources.items():
            for reason, documents in counts.dropped.items():
                yield {"stage": stage.name, "source": source, "reason": reason, "documents": documents}


def _result(result: Result) -> Mapping[str, Any]:
    """A result in one row; parts of it are columns such as ``rows_digest``."""
    record = result.model_dump(exclude={"version", "correct", "lm_eval", "metrics", "differs", "provenance"})
    row: dict[str, Any] = {"result": result.name}
    for key, value in record.items():
        row |= {f"{key}_{part}": inner for part, inner in value.items()} if isinstance(value, dict) else {key: value}
    low, high = result.interval
    for name, metric in result.metrics.items():
        row |= {name: metric.value, f"{name}_stderr": metric.stderr}
    made = result.provenance.model_dump(exclude={"packages"})
    return row | {"acc_low": low, "acc_high": high, "differs": result.differs, **made}


def _scores(evaluation: Evaluation) -> Iterator[Mapping[str, Any]]:
    """The main run's scores beside the published ones."""
    for task in evaluation.main.tasks():
        for asked, cell in evaluation.main.by_shots(task).items():
            published = {
                model: figures.at(asked)
                for model, figures in (TASKS_BY_NAME[task].figures.items() if task in TASKS_BY_NAME else ())
                if asked in SHOTS
            }
            counts = {"shown": cell.shown, "rows": cell.first.rows.count, "between_draws": cell.between_draws}
            row: dict[str, Any] = {"task": task, "shots": asked, **_percent(cell.estimate), **counts}
            yield row | published | {"differs": cell.differs}


def _comparison(evaluation: Evaluation) -> Iterator[Mapping[str, Any]]:
    """Every run's scores, with the paired differences to the first."""
    base = evaluation.main
    for run, label in zip(evaluation.runs, labels(evaluation.runs), strict=True):
        for (task, asked), cell in run.cells.items():
            first = base.cells.get((task, asked))
            change = difference(cell, first) if first and run is not base else None
            row = {"run": label, "tokens": run.model.tokens, "task": task, "shots": asked, **_percent(cell.estimate)}
            yield row | _percent(change, "difference")


def _percent(estimate: Estimate | None, name: str = "percent") -> dict[str, float | None]:
    value, low, high = (None, None, None) if estimate is None else (100 * number for number in estimate)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def study_tables(study: Study) -> dict[str, Rows]:
    """The tables of a study that have rows, by name."""
    tables: dict[str, Rows] = {}
    match study:
        case Hans():
            tables["hans"] = [row for shots, tally in study.shots.items() for row in _hans(shots, tally)]
        case Operators():
            tables["operators"] = [cell.model_dump() for cell in study.cells]
        case Bias():
            tables |= {"occupations": list(_occupations(study)), **_groups(study)}
    return {name: rows for name, rows in tables.items() if rows}


def _hans(shots: str, tally: HansTally) -> Iterator[Mapping[str, Any]]:
    yield {"shots": shots, "part": "all", **tally.whole.model_dump(), "mass": tally.mass, "said_true": tally.said_true}
    for part, groups in (("label", tally.labels), ("subcase", tally.subcases)):
        for heuristic, scores in groups.items():
            for name, score in scores.items():
                yield {"shots": shots, "part": part, "heuristic": heuristic, "name": name, **score.model_dump()}


def _occupations(study: Bias) -> Iterator[Mapping[str, Any]]:
    if study.occupation:
        marked = study.occupation.marked.by_occupation if study.occupation.marked else {}
        for is_marked, names in ((False, study.occupation.by_occupation), (True, marked)):
            for name, ratio in names.items():
                yield {"occupation": name, "marked": is_marked, "log_ratio": ratio}


def _groups(study: Bias) -> dict[str, Rows]:
    groups = [(kind, name, g) for kind, words in study.adjectives.items() for name, g in words.groups.items()]
    return {
        "sentiment": [{"kind": kind, "group": name, **g.sentiment.model_dump()} for kind, name, g in groups],
        "adjectives": [
            {"kind": kind, "group": name, "word": word, "rank": rank}
            for kind, name, group in groups
            for rank, word in group.alone
        ],
    }
