"""What more nodes give: the run on each number of nodes, beside the paper's measurements where it is the paper's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.table import Table

from mtnlg_model.config import PRESETS
from mtnlg_model.console import UsageFailure
from mtnlg_parallel.layout import Layout

from .report import console, facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .hardware import Cluster
    from .run import Run
    from .software import Software

PUBLISHED: Final = {280: (60.1, 126), 350: (50.2, 121), 420: (44.4, 113)}
"""Seconds of a step and TFLOP/s a GPU of MT-NLG on so many DGX A100 (Smith et al. 2022, section 2.4)."""


def scale(run: Run, cluster: Cluster, software: Software, nodes: Sequence[int]) -> list[dict[str, Any]]:
    """The run's plan on each number of nodes, which data parallelism fills. Raises ``UsageFailure`` where it cannot."""
    told = []
    for number in nodes:
        layout = run.layout
        dp, over = divmod(number * cluster.node.gpus, layout.tp * layout.pp)
        if over or not dp or run.batch % (dp * run.micro_batch):
            near = [n for n in range(1, 4 * number) if _fills(run, cluster, n)]
            choices = ", ".join(map(str, sorted(sorted(near, key=lambda n: abs(n - number))[:3])))
            place = (
                f"--scaling {number}: {number} nodes are no whole number of replicas of {layout.tp * layout.pp} GPUs"
            )
            raise UsageFailure(f"{place} that divides the batch {run.batch}; use {choices or 'another layout'}")
        other = run._replace(layout=Layout(tp=layout.tp, pp=layout.pp, dp=dp))
        published = PUBLISHED.get(number, (None, None)) if _is_the_papers(other) else (None, None)
        plan = facts(other, cluster, software)
        told.append(plan | {"published_seconds": published[0], "published_tflops_per_gpu": published[1]})
    return told


def _fills(run: Run, cluster: Cluster, nodes: int) -> bool:
    dp, over = divmod(nodes * cluster.node.gpus, run.layout.tp * run.layout.pp)
    return not over and dp > 0 and run.batch % (dp * run.micro_batch) == 0


def _is_the_papers(run: Run) -> bool:
    layout, paper = run.layout, PRESETS["mt-nlg-530b"]
    return run.model == paper and run.batch == 1920 and (layout.tp, layout.pp) == (8, 35)


def draw_scaling(told: list[dict[str, Any]]) -> None:
    """Print the table."""
    table = Table("nodes", "GPUs", "dp", box=None, padding=(0, 2, 0, 0))
    for name in ("seconds", "published", "error", "TFLOP/s a GPU", "published", "tokens/s"):
        table.add_column(name, justify="right")
    for plan in told:
        seconds, published = plan["step_seconds"], plan["published_seconds"]
        row = [str(plan["nodes"]), f"{plan['gpus']:,}", str(plan["layout"]["dp"]), f"{seconds:.1f}"]
        row += [f"{published:.1f}", f"{seconds / published - 1:+.1%}"] if published else ["", ""]
        row += [f"{plan['tflops_per_gpu']:.0f}", str(plan["published_tflops_per_gpu"] or "")]
        table.add_row(*row, f"{plan['tokens_per_second']:,.0f}")
    console().print(table)
