"""Predictions beside measurements: a CSV of step times in vTrain's format, and MT-NLG's scaling over nodes.

CSV columns are found by name, in any order: GPUs, global batch, micro batch, hidden size, attention heads, layers,
sequence length, tensor, data and pipeline parallelism. vTrain measured in fp16, with full recomputation, without ZeRO,
and with GPT-2's vocabulary padded as Megatron pads it. Other columns are kept.
"""

from __future__ import annotations

import csv
from io import StringIO
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError
from rich.table import Table

from mtnlg_model.config import PRESETS, ModelConfig
from mtnlg_model.console import Failure, UsageFailure
from mtnlg_parallel.layout import Layout

from .cluster import Software
from .report import console, plan
from .run import Run, padded_vocabulary, run_error
from .step import predict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .cluster import Cluster


GPT2_TOKENS: Final = 50_257
MEASURED: Final = "iteration time (ms)"
PREDICTED: Final = "predicted (ms)"
COLUMNS: Final = (
    "# GPUs",
    "global batch",
    "micro batch",
    "hidden size",
    "attention heads",
    "# layers",
    "sequence length",
    "tensor parallelism",
    "data parallelism",
    "pipeline parallelism",
)


class MeasuredRows:
    """A CSV of runs: header, records, and the `Run` of each record."""

    def __init__(self, path: Path) -> None:
        """Read a file. Raises ``Failure`` if it is missing, ``UsageFailure`` if a column or value is wrong."""
        try:
            with path.open(encoding="utf-8", newline="") as file:
                self.header, *self.records = [line for line in csv.reader(file) if line]
        except FileNotFoundError:
            raise Failure(f"{path}: no such file") from None
        except (UnicodeDecodeError, ValueError, csv.Error):
            raise UsageFailure(f"{path}: no CSV with a header; its columns are {', '.join(COLUMNS)}") from None
        self.header = [name.strip() for name in self.header]
        if missing := [name for name in COLUMNS if name not in self.header]:
            present = ", ".join(self.header)
            raise UsageFailure(f"{path}: column {missing[0]!r} is missing; there are {present}")
        self.runs = [self._run(path, line, record) for line, record in enumerate(self.records, 2)]

    def _run(self, path: Path, line: int, record: list[str]) -> Run:
        if len(record) != len(self.header):
            raise UsageFailure(f"{path}, line {line}: {len(record)} fields under {len(self.header)} columns")
        try:
            figures = {name: int(record[self.header.index(name)]) for name in COLUMNS}
            tp, dp, pp = (figures[f"{axis} parallelism"] for axis in ("tensor", "data", "pipeline"))
            model = ModelConfig(
                layers=figures["# layers"],
                hidden=figures["hidden size"],
                heads=figures["attention heads"],
                sequence=figures["sequence length"],
                vocabulary=padded_vocabulary(GPT2_TOKENS, tp),
            )
            layout = Layout(tp=tp, pp=pp, dp=dp)
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]
            raise UsageFailure(f"{path}, line {line}: {wrong['msg'].removeprefix('Value error, ')}") from None
        except ValueError as error:
            raise UsageFailure(f"{path}, line {line}: {error}") from None
        run = Run(model, layout, figures["global batch"], figures["micro batch"], zero=0, precision="fp16")
        reason = "micro batch must be 1 or more" if run.micro_batch < 1 else run_error(run, Software())
        if not reason and layout.world != figures["# GPUs"]:
            reason = f"{layout} is {layout.world} GPUs, not {figures['# GPUs']}"
        if reason:
            raise UsageFailure(f"{path}, line {line}: {reason}")
        return run

    def predicted(self, cluster: Cluster, software: Software) -> list[float]:
        """Predicted seconds of each row's step."""
        return [predict(run, cluster, software).seconds for run in self.runs]

    def measured(self) -> list[float] | None:
        """Measured seconds of each row's step; None where the CSV has no such column."""
        if MEASURED not in self.header:
            return None
        column = self.header.index(MEASURED)
        try:
            return [float(record[column]) / 1e3 for record in self.records]
        except ValueError as error:
            raise UsageFailure(f"column {MEASURED!r}: {error}") from None

    def with_predictions(self, seconds: list[float]) -> str:
        """The CSV with the predictions as its last column."""
        kept = [place for place, name in enumerate(self.header) if name != PREDICTED]
        out = StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([*(self.header[place] for place in kept), PREDICTED])
        for record, value in zip(self.records, seconds, strict=True):
            writer.writerow([*(record[place] for place in kept), f"{value * 1e3:.3f}"])
        return out.getvalue()


PUBLISHED: Final = {280: (60.1, 126), 350: (50.2, 121), 420: (44.4, 113)}
"""Nodes (DGX A100) to seconds a step and TFLOP/s a GPU of MT-NLG (Smith et al. 2022, section 2.4)."""


def plan_scaling(run: Run, cluster: Cluster, software: Software, nodes: Sequence[int]) -> list[dict[str, Any]]:
    """Plan the run on each number of nodes by data parallelism. Raises ``UsageFailure`` where replicas do not fit."""
    plans = []
    for number in nodes:
        layout = run.layout
        dp, over = divmod(number * cluster.node.gpus, layout.tp * layout.pp)
        if over or not dp or run.batch % (dp * run.micro_batch):
            near = [n for n in range(1, 4 * number) if _divides(run, cluster, n)]
            choices = ", ".join(map(str, sorted(sorted(near, key=lambda n: abs(n - number))[:3])))
            place = (
                f"--scaling {number}: {number} nodes are no whole number of replicas of {layout.tp * layout.pp} GPUs"
            )
            raise UsageFailure(f"{place} that divides the batch {run.batch}; use {choices or 'another layout'}")
        scaled = run._replace(layout=Layout(tp=layout.tp, pp=layout.pp, dp=dp))
        published = PUBLISHED.get(number, (None, None)) if _is_mt_nlg(scaled) else (None, None)
        planned = plan(scaled, cluster, software)
        plans.append(planned | {"published_seconds": published[0], "published_tflops_per_gpu": published[1]})
    return plans


def _divides(run: Run, cluster: Cluster, nodes: int) -> bool:
    dp, over = divmod(nodes * cluster.node.gpus, run.layout.tp * run.layout.pp)
    return not over and dp > 0 and run.batch % (dp * run.micro_batch) == 0


def _is_mt_nlg(run: Run) -> bool:
    layout, paper = run.layout, PRESETS["mt-nlg-530b"]
    return run.model == paper and run.batch == 1920 and (layout.tp, layout.pp) == (8, 35)


def print_scaling(plans: list[dict[str, Any]]) -> None:
    """Print one row a number of nodes, with the published figures."""
    table = Table("nodes", "GPUs", "dp", box=None, padding=(0, 2, 0, 0))
    for name in ("seconds", "published", "error", "TFLOP/s a GPU", "published", "tokens/s"):
        table.add_column(name, justify="right")
    for planned in plans:
        seconds, published = planned["step_seconds"], planned["published_seconds"]
        row = [str(planned["nodes"]), f"{planned['gpus']:,}", str(planned["layout"]["dp"]), f"{seconds:.1f}"]
        row += [f"{published:.1f}", f"{seconds / published - 1:+.1%}"] if published else ["", ""]
        row += [f"{planned['tflops_per_gpu']:.0f}", str(planned["published_tflops_per_gpu"] or "")]
        table.add_row(*row, f"{planned['tokens_per_second']:,.0f}")
    console().print(table)
