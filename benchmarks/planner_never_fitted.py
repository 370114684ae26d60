# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-parallel", "scipy>=1.13"]
# ///
"""The planner against published runs that no constant was fitted to, with the constants as shipped.

    python benchmarks/planner_never_fitted.py tests/data/never_fitted_runs.csv [--out FILE]

Figures by source, GPU and precision: rows, those priced, mean absolute and mean error of the step time, the share in
the 90 % interval, the errors of `planner_published`'s roofline and six operations, the mean error of the memory where
it was published, and verdicts that were wrong: runs that ran and were called unfit, or failed for memory and were
called fit. Beside them every row's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from planner_published import roofline, six_operations
from planner_rows import measured_seconds, predict_row, read_rows
from record import run

if TYPE_CHECKING:
    from pathlib import Path

    from planner_rows import Row


def described(row: Row) -> dict[str, Any]:
    """Return a row's kind, its errors, and whether the verdict on its memory was wrong."""
    predicted, failed = predict_row(row), row.cells.get("caveat") == "OOM"
    result: dict[str, Any] = {"id": row.cells["id"], "kind": f"{row.cells['family']}, {row.cells['hardware']}"}
    if row.published is None:
        return result | {"why_not": row.why_not}
    result["kind"] = f"{row.cells['family']}, {row.published.cluster.gpu.name}, {row.published.precision}"
    result["wrong"] = predicted["fits"] == failed
    if seconds := measured_seconds(row):
        result |= {
            "error": predicted["predicted_step_seconds"] / seconds - 1,
            "inside": predicted["low_step_seconds"] <= seconds <= predicted["high_step_seconds"],
            "roofline": roofline(row.published) / seconds - 1,
            "6ND": six_operations(row.published) / seconds - 1,
        }
    if memory := row.figure("memory_gb"):
        result["memory"] = predicted["predicted_memory_gb"] / memory - 1
    return result


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of `COLUMNS` of rows of a kind; None where no row tells."""

    def mean(name: str, *, absolute: bool = False) -> float | None:
        figures = [abs(row[name]) if absolute else row[name] for row in rows if name in row]
        return sum(figures) / len(figures) if figures else None

    return {
        "rows": len(rows),
        "priced": sum("why_not" not in row for row in rows),
        "error": mean("error", absolute=True),
        "mean": mean("error"),
        "in interval": mean("inside"),
        "roofline": mean("roofline", absolute=True),
        "6ND": mean("6ND", absolute=True),
        "memory": mean("memory"),
        "wrong verdicts": sum(row.get("wrong", False) for row in rows),
    }


def measure(*files: Path) -> dict[str, Any]:
    """Predict every row."""
    rows = [described(row) for file in files for row in read_rows(file)]
    kinds = {kind: [row for row in rows if row["kind"] == kind] for kind in dict.fromkeys(row["kind"] for row in rows)}
    return {"by_kind": {kind: summary(own) for kind, own in (kinds | {"all": rows}).items()}, "rows": rows}


if __name__ == "__main__":
    run(measure, __doc__)
