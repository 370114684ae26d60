"""The command ``mtnlg-parallel calibrate``: rates of this machine's products, copies, launches and links, as a cluster.

Every rank is a separate process, and all measure at once, as they will train. The planner takes a product's rate as a
share of the peak; without a data sheet, as on a CPU, the peak is the measured rate and the share is 1. On a CPU there
may be more ranks than processors, and other work may run. So there a rank's own work is measured in processor time, as
the planner counts it, and only communication in wall time.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from mtnlg_data.engine.machine import cores
from mtnlg_model.console import say
from mtnlg_model.files import write_text
from mtnlg_model.settings import dump
from mtnlg_parallel.layout import MOST, Layout
from mtnlg_parallel.planner.costs.layer import APART
from mtnlg_parallel.planner.costs.products import gemm_seconds

from .machine import check_ranks
from .preflight import this_machine

if TYPE_CHECKING:
    from collections.abc import Callable

    from mtnlg_parallel.planner.cluster import Cluster

ROUNDS: Final = 7
PRODUCT: Final = {"cuda": 8192, "cpu": 768}
"""Rows, columns and depth of the matrix product that is timed."""

COPIED: Final = {"cuda": 1 << 30, "cpu": 1 << 26}
"""Bytes copied, far more than any cache holds."""

SUMMED: Final = {"cuda": 1 << 28, "cpu": 1 << 24}
SMALL: Final = 1 << 10
LAYERS: Final = 16
"""Layers of a decoder so small that only its launches take time."""


def calibrate_command(
    out: Annotated[
        Path, typer.Argument(metavar="CLUSTER.toml", dir_okay=False, help="File to write the cluster's figures to.")
    ],
    ranks: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Ranks to measure at once; all GPUs, or 2 on a CPU.")
    ] = None,
) -> None:
    """Measure this machine's products, copies, launches and links; write them as a cluster for --cluster."""
    import torch  # noqa: PLC0415  (slow to import, and --help does without)

    on_gpus = torch.cuda.is_available()
    number = ranks or (torch.cuda.device_count() if on_gpus else 2)
    check_ranks(Layout(dp=number))
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(  # type: ignore[attr-defined, no-untyped-call]
            measure_rank, args=(number, folder, "cuda" if on_gpus else "cpu"), nprocs=number
        )
        files = [(Path(folder) / f"{rank}.txt").read_text(encoding="utf-8") for rank in range(number)]
    figures = zip(*(map(float, text.split()) for text in files), strict=True)
    median = [*map(statistics.median, figures)]
    cluster = measured_cluster(this_machine(Layout(dp=number)), number, median)
    at_once = f"{number} ranks at once" if number > 1 else "one rank alone, its links not measured"
    write_text(out, f"# Measured by mtnlg-parallel calibrate, {at_once}.\n\n{dump(cluster)}")
    rates = f"{median[0] / 1e12:.3g} TFLOP/s, {median[1] / 1e9:.3g} GB/s, {median[2] * 1e6:.3g} us a launch"
    links = f"links {median[3] / 1e9:.3g} GB/s and {median[4] * 1e6:.3g} us" if number > 1 else at_once
    say(f"{out}: {rates}, {links}")


def measured_cluster(machine: Cluster, ranks: int, figures: list[float]) -> Cluster:
    """The machine with one rank's measured ``figures``.

    They are FLOP/s of a product, bytes/s of a copy, seconds per launch, bytes/s of a link and seconds of latency.
    """
    product, copied, launch, link, latency = figures
    gpu, node = machine.gpu, machine.node
    on_cpu = "core" in gpu.name
    sheet = gpu.peak_flops >= product and not on_cpu
    gpu = gpu.model_copy(
        update={} if sheet else {"peak_flops": product, "memory_bandwidth": copied}  # a CPU has no data sheet
    )
    measured = machine.measured.model_copy(
        update={
            "gemm": 1.0,
            "clock": 1.0,
            "memory": min(copied / gpu.memory_bandwidth, 1.0),
            "launch_seconds": launch,
            "link": 1.0 if ranks > 1 else machine.measured.link,
            "link_seconds": min(latency, 0.9) if ranks > 1 else machine.measured.link_seconds,
        }
    )
    links = {"gpus": ranks} | ({"link_bandwidth": link} if ranks > 1 else {})
    cluster = machine.model_copy(update={"gpu": gpu, "node": node.model_copy(update=links), "measured": measured})
    size, width = (PRODUCT["cpu"], 4) if on_cpu else (PRODUCT["cuda"], 2)
    share = _tile_share(cluster, size, width, 2 * size**3 / product)
    if sheet:
        return cluster.model_copy(update={"measured": measured.model_copy(update={"gemm": min(share, 1.0)})})
    return cluster.model_copy(update={"gpu": gpu.model_copy(update={"peak_flops": share * gpu.peak_flops})})


def _tile_share(cluster: Cluster, size: int, width: int, seconds: float) -> float:
    """Share of this cluster's tile rate at which the planner predicts ``seconds`` for a product of this size.

    It differs from the timed rate, since the planner counts partial tiles and writing the result separately.
    """
    full, half = (
        gemm_seconds(
            cluster.model_copy(update={"measured": cluster.measured.model_copy(update={"gemm": gemm})}),
            size,
            size,
            size,
            width=width,
        )
        for gemm in (1.0, 0.5)
    )
    tiles = half - full  # at the full rate; the rest of `full` does not depend on it
    return tiles / (seconds - (full - tiles))


def measure_rank(rank: int, ranks: int, folder: str, device: str) -> None:
    """Measure as one of several ranks, and write the figures to the folder."""
    import torch  # noqa: PLC0415  (as above)
    import torch.distributed as dist  # noqa: PLC0415

    from mtnlg_model import Decoder, ModelConfig  # noqa: PLC0415

    if device == "cuda":
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(max(cores() // ranks, 1))
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(
        backend, f"file://{folder}/store", rank=rank, world_size=ranks, timeout=timedelta(seconds=60)
    )

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    threads = 1 if device == "cuda" else torch.get_num_threads()

    def seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
        work()
        times = []
        for _ in range(ROUNDS):
            dist.barrier()
            wait()
            begin = clock()
            work()
            wait()
            times.append(clock() - begin)
        return statistics.median(times)

    def alone(work: Callable[[], object]) -> float:
        return seconds(work) if device == "cuda" else seconds(work, time.process_time) / threads

    size, dtype = PRODUCT[device], torch.bfloat16 if device == "cuda" else torch.float32
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    product = 2 * size**3 / alone(lambda: a @ b)
    source = torch.zeros(COPIED[device], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copied = 2 * COPIED[device] / alone(lambda: target.copy_(source))
    decoder = Decoder(ModelConfig(layers=LAYERS, hidden=32, heads=4, sequence=16, vocabulary=64)).to(device)
    tokens = torch.zeros(1, 16, dtype=torch.int64, device=device)
    launch = alone(lambda: decoder(tokens).sum().backward()) / (LAYERS * sum(APART.launches))
    large, small = (torch.zeros(n // 4, device=device) for n in (SUMMED[device], SMALL))
    latency = seconds(lambda: dist.all_reduce(small)) / max(2 * (ranks - 1), 1)
    moved = 2 * (ranks - 1) / ranks * SUMMED[device]
    link = moved / seconds(lambda: dist.all_reduce(large)) if ranks > 1 else 0.0
    dist.destroy_process_group()
    figures = (product, copied, launch, link, latency)
    (Path(folder) / f"{rank}.txt").write_text(" ".join(map(repr, figures)), encoding="utf-8")
