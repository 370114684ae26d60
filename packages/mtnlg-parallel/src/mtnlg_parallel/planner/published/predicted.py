"""Predictions of published rows, as the columns that ``plan --rows`` adds."""

from __future__ import annotations

import csv
from io import StringIO
from typing import TYPE_CHECKING, Any, Final

import typer

from mtnlg_model.console import print_json, say
from mtnlg_model.files import write_text
from mtnlg_parallel.planner.interval import interval_of
from mtnlg_parallel.planner.memory import fullest_stage, memory, memory_error
from mtnlg_parallel.planner.programs import load_software, with_switches
from mtnlg_parallel.planner.run import hardware_flops, run_error
from mtnlg_parallel.planner.step import predict

from .rows import read_rows

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mtnlg_parallel.planner.run import Run

    from .rows import Row

COLUMNS: Final = (
    "predicted_step_seconds",
    "low_step_seconds",
    "high_step_seconds",
    "predicted_tokens_per_s_per_gpu",
    "predicted_tflops_per_gpu",
    "predicted_memory_gb",
    "fits",
    "error",
    "why_not",
)

GIB: Final = 1 << 30

IN_GIB: Final = ("torchtitan",)
"""Programs that publish memory in GiB (what PyTorch's allocator has reserved); others in GB."""

MEASURED: Final = ("step_seconds", "tokens_per_s_per_gpu", "tflops_per_gpu")
"""What the error is of: the first of these that a row has."""


def predict_file(
    path: Path, out: Path | None, software: str | None, switches: Sequence[str] | None, *, as_json: bool
) -> None:
    """Print the rows of a file with their predictions, or write them to ``out``; all by ``software`` if it is given."""
    rows = read_rows(path)
    if software or switches:
        for number, row in enumerate(rows):
            if row.published:
                run, place, own = row.published
                program = with_switches(load_software(software) if software else own, switches)
                reason = run_error(run, program, place)
                published = None if reason else row.published._replace(software=program)
                rows[number] = row._replace(published=published, why_not=reason or "")
    predictions = [predict_row(row) for row in rows]
    summary = summarize(rows, predictions)
    if out:
        write_text(out, with_predictions(rows, predictions))
    if as_json:
        pairs = zip(rows, predictions, strict=True)
        print_json(summary | {"predictions": [row.cells | predicted for row, predicted in pairs]})
    elif not out:
        typer.echo(with_predictions(rows, predictions), nl=False)
    if "mean_error" in summary:
        figures = f"mean absolute error {summary['mean_absolute_error']:.2%}, mean {summary['mean_error']:+.2%}"
        figures += f", largest {summary['largest_error']:+.1%}; {summary['in_interval']:.0%} in their intervals"
        say(f"{summary['predicted']} of {summary['rows']} rows predicted: {figures}")


def predict_row(row: Row) -> dict[str, Any]:
    """The added columns of a row: numbers, ``fits`` as a boolean, None where there is nothing to say.

    ``error`` is predicted over measured, less 1, of the first that the row has of step time, tokens and operations.
    Memory is in the unit in which the row's program publishes it.
    """
    result: dict[str, Any] = dict.fromkeys(COLUMNS)
    result["why_not"] = row.why_not
    if row.published is None:
        return result
    run, cluster, software = row.published
    seconds, interval = predict(run, cluster, software).seconds, interval_of(run, cluster, software)
    stages = memory(run, software)
    tokens = run.batch * run.model.sequence
    rates = {
        "predicted_step_seconds": seconds,
        "predicted_tokens_per_s_per_gpu": tokens / run.gpus / seconds,
        "predicted_tflops_per_gpu": counted_flops(row, run) / run.gpus / seconds / 1e12,
    }
    result |= rates | {
        "low_step_seconds": seconds * interval.low,
        "high_step_seconds": seconds * interval.high,
        "predicted_memory_gb": stages[fullest_stage(stages)].total / (GIB if software.name in IN_GIB else 1e9),
        "fits": memory_error(stages, cluster) is None,
    }
    for name in MEASURED:
        if measured := row.figure(name):
            result["error"] = rates[f"predicted_{name}"] / measured - 1
            break
    return result


def counted_flops(row: Row, run: Run) -> float:
    """Operations of a step as the row's source counts them: with what is recomputed, or of the model alone."""
    kind = (row.cells.get("tflops_kind") or "").strip().lower()
    return hardware_flops(run) if kind.startswith("hardware") else run.model.model_flops(run.batch)


def with_predictions(rows: Sequence[Row], predictions: Sequence[dict[str, Any]]) -> str:
    """The CSV with the predictions as its last columns; older ones of the same names are replaced."""
    kept = [name for name in rows[0].cells if name not in COLUMNS] if rows else []
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*kept, *COLUMNS])
    for row, predicted in zip(rows, predictions, strict=True):
        writer.writerow([*(row.cells[name] for name in kept), *(_text(predicted[name]) for name in COLUMNS)])
    return out.getvalue()


def _text(value: float | bool | str | None) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else f"{value:.6g}"


def measured_seconds(row: Row) -> float | None:
    """Measured seconds of a step, also where the source has a rate; None where nothing was measured."""
    if row.published is None:
        return None
    run = row.published.run
    if seconds := row.figure("step_seconds"):
        return seconds
    if rate := row.figure("tokens_per_s_per_gpu"):
        return run.batch * run.model.sequence / run.gpus / rate
    if rate := row.figure("tflops_per_gpu"):
        return counted_flops(row, run) / run.gpus / rate / 1e12
    return None


def summarize(rows: Sequence[Row], predictions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Number of rows, of those predicted, and what the errors are."""
    result: dict[str, Any] = {
        "rows": len(rows),
        "predicted": sum(row.published is not None for row in rows),
        "fit": sum(bool(predicted["fits"]) for predicted in predictions),
    }
    pairs = zip(predictions, map(measured_seconds, rows), strict=True)
    measured = [(predicted, seconds) for predicted, seconds in pairs if seconds]
    if measured:
        errors = [predicted["error"] for predicted, _ in measured]
        covered = sum(p["low_step_seconds"] <= seconds <= p["high_step_seconds"] for p, seconds in measured)
        result |= {
            "mean_absolute_error": sum(map(abs, errors)) / len(errors),
            "mean_error": sum(errors) / len(errors),
            "largest_error": max(errors, key=abs),
            "in_interval": covered / len(errors),
        }
    return result
