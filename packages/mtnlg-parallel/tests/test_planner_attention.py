"""Attention's time beside published measurements, and what a ring of context parallel ranks adds to it."""

import pytest
import torch
from test_planner_step import changed
from torch import Tensor

from mtnlg_model import functional
from mtnlg_model.config import ModelConfig
from mtnlg_parallel.layout import Layout
from mtnlg_parallel.model.ring_attention import part_of
from mtnlg_parallel.planner.cluster import load_cluster
from mtnlg_parallel.planner.costs import layer as layer_cost
from mtnlg_parallel.planner.costs.activations import core_bytes
from mtnlg_parallel.planner.costs.attention import attention
from mtnlg_parallel.planner.memory import memory
from mtnlg_parallel.planner.programs import load_software
from mtnlg_parallel.planner.run import Run

DGX, H100 = load_cluster("dgx-a100"), load_cluster("dgx-h100")
SMALL = ModelConfig(layers=16, hidden=4096, heads=32, sequence=2048, vocabulary=51200, attention_dropout=0)
CORE = load_software("megatron-core")


@pytest.mark.parametrize(
    ("name", "native", "row", "measured"),
    [
        *(("hgx-h200", False, *pair) for pair in ((4096, 264), (8192, 290), (16384, 311), (32768, 325), (65536, 329))),
        *(("hgx-h200", True, *pair) for pair in ((4096, 468), (8192, 490), (16384, 520), (32768, 520), (65536, 520))),
        *(("gb200-nvl72", True, *pair) for pair in ((4096, 1154), (8192, 1349), (16384, 1440), (32768, 1503))),
    ],
)
def test_attention_takes_the_published_time(name: str, native: bool, row: int, measured: float) -> None:
    """TFLOP/s of both passes, causal, heads of 128: NVIDIA's cudnn-frontend, benchmark/."""
    cluster = changed(load_cluster(name), "measured", clock=1.0)
    program = CORE.model_copy(update={"native_attention": native})
    run = Run(SMALL.model_copy(update={"sequence": row}), Layout(), 1, cluster=cluster, software=program)
    seconds = sum(attention(run, backward).products for backward in (False, True))
    operations = (1 + CORE.attention_backward) * 2 * row**2 * SMALL.hidden
    assert operations / seconds / 1e12 == pytest.approx(measured, rel=0.08)


def test_a_clock_slows_products_and_attention_but_not_memory() -> None:
    slow = changed(DGX, "measured", clock=DGX.measured.clock / 2)
    run = Run(SMALL, Layout(tp=2), 4, software=CORE)
    fast, slowed = (layer_cost.layer(run._replace(cluster=cluster)).forward for cluster in (DGX, slow))
    assert slowed.memory == fast.memory
    assert 1.6 < slowed.products / fast.products <= 2


def test_ring_attention_costs_only_exposed_sends() -> None:
    run = Run(SMALL.model_copy(update={"sequence": 32768}), Layout(cp=4), 1, cluster=H100, software=CORE)
    assert attention(run, False).collectives == 0
    slow = changed(H100, "node", link_bandwidth=H100.node.link_bandwidth / 100)
    cost = attention(run._replace(cluster=slow), False)
    sent = 0.75 * 2 * 2 * 32768 * SMALL.hidden / (slow.node.link_bandwidth * slow.measured.link)
    assert cost.collectives + cost.products == pytest.approx(sent, rel=1e-3)


def test_documents_shorten_the_rows_of_attention() -> None:
    """Half as long: half of the pairs, at the lower rate of a shorter row; with a window, the pairs inside it."""
    whole = Run(SMALL, Layout(), 1, cluster=H100, software=CORE)
    halves = whole._replace(document=SMALL.sequence / 2)
    full, half = (attention(run, False).products for run in (whole, halves))
    assert half / full == pytest.approx(0.5 * (1024 + 1000) / 1024 * 2048 / (2048 + 1000))
    assert whole._replace(document=1e9).row == whole.row
    assert halves.model_flops < halves._replace(document=2048.0).model_flops == whole.model_flops


def test_windows_shorten_what_is_recomputed() -> None:
    """Attention again is a third of its operations in forward and backward, with windows as without."""
    model = ModelConfig.model_validate(SMALL.model_dump() | {"by_layer": [{"window": 512}, {}]}, strict=False)
    wider, run = (Run(each, Layout(), 8, recompute="selective", cluster=H100) for each in (SMALL, model))
    assert wider.model_flops - run.model_flops == pytest.approx(3 * (wider.hardware_flops - run.hardware_flops) / 4)


@pytest.mark.parametrize("window", [None, 1, 2, 100, 129, 257, 300, 1000, 2000, 4096])
def test_planned_parts_of_our_ring_are_those_it_computes(window: int | None) -> None:
    """Of the rank that computes most by products, in squares of a rank's tokens."""
    model = SMALL.model_copy(update={"by_layer": [{"window": window}]})

    def squares(rank: int) -> tuple[float, float]:
        found = {True: 0.0, False: 0.0}
        for other in range(8):
            if part := part_of(rank, other, 8, model.sequence, functional.Rule(1.0, window=window)):
                rows, columns = map(len, part.places(torch.device("cpu")))
                is_flash_diagonal = part.is_plain and rank == other  # of which it computes half
                found[part.is_plain] += rows * columns / 256**2 / (1 + is_flash_diagonal)
        return found[False], found[True]

    assert Run(model, Layout(cp=8), 1).ring_parts == max(map(squares, range(8)))


@pytest.mark.parametrize("window", [None, 300])
def test_planned_scores_with_a_soft_cap_are_those_it_keeps(window: int | None) -> None:
    sizes = {"sequence": 1024, "heads": 8, "attention_softcap": 5.0}
    model = SMALL.model_copy(update={**sizes, "by_layer": [{"window": window}]})
    kept: dict[int, int] = {}

    def keep(x: Tensor) -> Tensor:
        if x.shape[-1] >= 128:  # scores, not q, k and v
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    q, k, v = torch.randn(3, 1, 8, 1024, 16, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        out = functional.attention(q, k, v, None, functional.Rule(0.2, window=window, cap=5.0))
    run = Run(model, Layout(), 1)
    assert sum(kept.values()) == pytest.approx(core_bytes(run), rel=0.03)
    assert memory(run._replace(recompute="selective"))[0].recomputed == core_bytes(run)
    flash = run._replace(model=model.model_copy(update={"attention_softcap": None}))
    assert attention(run, False).memory > attention(flash, False).memory
    del out
