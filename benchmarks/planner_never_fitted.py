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
    """Return a row's kind, whether it was priced and its verdict was wrong, and its errors, by `MEANS`."""
    predicted, failed = predict_row(row), row.cells.get("caveat") == "OOM"
    result: dict[str, Any] = {"id": row.cells["id"], "kind": f"{row.cells['family']}, {row.cells['hardware']}"}
    if row.published is None:
        return result | {"priced": False, "wrong verdicts": False, "why_not": row.why_not}
    result["kind"] = f"{row.cells['family']}, {row.published.cluster.gpu.name}, {row.published.precision}"
    result |= {"priced": True, "wrong verdicts": predicted["fits"] == failed}
    if seconds := measured_seconds(row):
        result |= {
            "error": abs(predicted["error"]),
            "mean": predicted["error"],
            "in interval": predicted["low_step_seconds"] <= seconds <= predicted["high_step_seconds"],
            "roofline": abs(roofline(row.published) / seconds - 1),
            "6ND": abs(six_operations(row.published) / seconds - 1),
        }
    if memory := row.figure("memory_gb"):
        result["memory"] = predicted["predicted_memory_gb"] / memory - 1
    return result


MEANS = ("error", "mean", "in interval", "roofline", "6ND", "memory")


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return numbers of rows of a kind, and means of those that have a figure."""
    figures = {name: [row[name] for row in rows if name in row] for name in MEANS}
    return {
        "rows": len(rows),
        **{name: sum(row[name] for row in rows) for name in ("priced", "wrong verdicts")},
        **{name: sum(each) / len(each) for name, each in figures.items() if each},
    }


def measure(*files: Path) -> dict[str, Any]:
    """Predict every row."""
    rows = [described(row) for file in files for row in read_rows(file)]
    kinds = {kind: [row for row in rows if row["kind"] == kind] for kind in dict.fromkeys(row["kind"] for row in rows)}
    return {"by_kind": {kind: summary(own) for kind, own in (kinds | {"all": rows}).items()}, "rows": rows}


if __name__ == "__main__":
    run(measure, __doc__)
