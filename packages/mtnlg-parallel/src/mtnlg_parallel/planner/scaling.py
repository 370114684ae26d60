"""MT-NLG's scaling over nodes: predictions beside the published steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.table import Table

from mtnlg_model.console import UsageFailure
from mtnlg_model.families import PRESETS
from mtnlg_parallel.layout import Layout
from mtnlg_parallel.layout_report import console

from .report import plan, three_digits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .cluster import Cluster
    from .programs import Software
    from .run import Run

PUBLISHED: Final = {280: (60.1, 126), 350: (50.2, 121), 420: (44.4, 113)}
"""MT-NLG's (seconds per step, TFLOP/s per GPU) by number of DGX A100 nodes (Smith et al. 2022, section 2.4)."""


def plan_scaling(run: Run, cluster: Cluster, software: Software, nodes: Sequence[int]) -> list[dict[str, Any]]:
    """Plan the run on each number of nodes by scaling dp. Raises ``UsageFailure`` if replicas do not fit."""
    plans = []
    for number in nodes:
        layout = run.layout
        dp, over = divmod(number * cluster.node.gpus, layout.tp * layout.pp * run.cp)
        if over or not dp or run.batch % (dp * run.micro_batch):
            near = [n for n in range(1, 4 * number) if _divides(run, cluster, n)]
            choices = ", ".join(map(str, sorted(sorted(near, key=lambda n: abs(n - number))[:3])))
            replica = layout.tp * layout.pp * run.cp
            place = f"--scaling {number}: {number} nodes are no whole number of replicas of {replica} GPUs"
            raise UsageFailure(f"{place} that divides the batch {run.batch}; use {choices or 'another layout'}")
        scaled = run._replace(layout=Layout(tp=layout.tp, pp=layout.pp, dp=dp))
        published = PUBLISHED.get(number, (None, None)) if _is_mt_nlg(scaled, software) else (None, None)
        planned = plan(scaled, cluster, software)
        plans.append(planned | {"published_seconds": published[0], "published_tflops_per_gpu": published[1]})
    return plans


def _divides(run: Run, cluster: Cluster, nodes: int) -> bool:
    dp, over = divmod(nodes * cluster.node.gpus, run.layout.tp * run.layout.pp * run.cp)
    return not over and dp > 0 and run.batch % (dp * run.micro_batch) == 0


def _is_mt_nlg(run: Run, software: Software) -> bool:
    layout, paper = run.layout, PRESETS["mt-nlg-530b"]
    measured = software.name == "megatron-deepspeed-2021"
    return measured and run.model == paper and run.batch == 1920 and (layout.tp, layout.pp) == (8, 35)


def print_scaling(plans: list[dict[str, Any]]) -> None:
    """Print one row per number of nodes, with published figures if there are any."""
    compared = any(planned["published_seconds"] for planned in plans)
    names = ["seconds", *(["published", "error"] if compared else [])]
    names += ["TFLOP/s a GPU", *(["published"] if compared else []), "tokens/s", "GB", ""]
    table = Table("nodes", "GPUs", "dp", box=None, padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(name, justify="right")
    for planned in plans:
        seconds, published = planned["step_seconds"], planned["published_seconds"]
        row = [str(planned["nodes"]), f"{planned['gpus']:,}", str(planned["layout"]["dp"]), three_digits(seconds)]
        row += [f"{published:.1f}", f"{seconds / published - 1:+.1%}"] if published else ["", ""] if compared else []
        row += [f"{planned['tflops_per_gpu']:.0f}"]
        row += [str(planned["published_tflops_per_gpu"] or "")] if compared else []
        row += [f"{planned['tokens_per_second']:,.0f}", f"{planned['memory_bytes'] / 1e9:.1f}"]
        table.add_row(*row, "" if planned["fits"] else "does NOT fit")
    console().print(f"program {plans[0]['program']}, on {plans[0]['cluster']}")
    console().print(table)
    low, high = (plans[0][f"{side}_step_seconds"] / plans[0]["step_seconds"] for side in ("low", "high"))
    console().print(
        f"90 % of steps take {low:.2f} to {high:.2f} times the seconds, by errors on {plans[0]['interval']}"
    )
