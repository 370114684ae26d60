"""Predicted step times: each figure and switch moves them the way it must."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtnlg_model.config import ModelConfig
from mtnlg_model.families import preset
from mtnlg_parallel.layout import Layout, stages
from mtnlg_parallel.planner.cluster import Cluster, cluster_names, load_cluster
from mtnlg_parallel.planner.costs import layer as layer_cost
from mtnlg_parallel.planner.costs import network
from mtnlg_parallel.planner.costs.activations import layer_bytes
from mtnlg_parallel.planner.costs.cost import OVERLAP_SHARE
from mtnlg_parallel.planner.costs.products import gemm_seconds
from mtnlg_parallel.planner.memory import memory
from mtnlg_parallel.planner.programs import ENGINES, SOFTWARE, Software, load_software
from mtnlg_parallel.planner.run import STAGES, Run, _train_software, train_run
from mtnlg_parallel.planner.step import chunks, lower_bound, predict
from mtnlg_parallel.recipe import Recipe, Train

SELENE, DGX = load_cluster("selene"), load_cluster("dgx-a100")
LM = load_software("megatron-lm")
MT_NLG = preset("mt-nlg-530b")
SMALL = ModelConfig(layers=16, hidden=4096, heads=32, sequence=2048, vocabulary=51200)


def changed(cluster: Cluster, part: str, **figures: float | None) -> Cluster:
    return cluster.model_copy(update={part: getattr(cluster, part).model_copy(update=figures)})


FIGURES = [
    ("node", "network_bandwidth"),
    ("node", "link_bandwidth"),
    ("gpu", "peak_flops"),
    ("gpu", "memory_bandwidth"),
]


@given(st.sampled_from(FIGURES), st.floats(0.1, 1.0), st.sampled_from(sorted(SOFTWARE)))
def test_time_never_falls_when_hardware_slows_down(figure: tuple[str, str], share: float, program: str) -> None:
    run, (part, field) = Run(SMALL, Layout(tp=4, pp=4, dp=4), batch=64, software=load_software(program)), figure
    slower = changed(DGX, part, **{field: getattr(getattr(DGX, part), field) * share})
    assert predict(run._replace(cluster=slower)).seconds >= predict(run).seconds - 1e-12


@pytest.mark.parametrize(
    "switch",
    [
        *("fused_kernels", "flash_attention", "fused_accumulation", "overlap_tensor", "overlap_forward"),
        *("overlap_gradients", "overlap_pipeline", "scatter_pipeline", "reduce_scatter"),
    ],
)
def test_a_switch_saves_time_between_nodes(switch: str) -> None:
    off = Software(fused_kernels=False, scatter_pipeline=False, reduce_scatter=False)
    run = Run(SMALL, Layout(tp=8, pp=4, dp=4), batch=64, software=off)
    assert predict(run._replace(software=off.model_copy(update={switch: True}))).seconds < predict(run).seconds


@pytest.mark.parametrize("program", SOFTWARE)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_the_breakdown_adds_up_and_no_part_is_negative(program: str, recompute: str) -> None:
    run = Run(SMALL, Layout(tp=4, pp=4, dp=4), batch=64, recompute=recompute, software=load_software(program))  # type: ignore[arg-type]
    found = predict(run)
    assert sum(found.breakdown) == pytest.approx(found.seconds)
    assert min(found.breakdown) >= -1e-9
    assert lower_bound(run) <= found.seconds


def test_a_product_costs_a_wave_more_when_one_tile_is_too_many() -> None:
    one_wave = gemm_seconds(DGX, 256 * 12, 128 * 9, 8192)  # 108 tiles on 108 processors
    assert gemm_seconds(DGX, 256 * 12 + 1, 128 * 9, 8192) > 1.15 * one_wave
    assert gemm_seconds(DGX, 256 * 12 - 1, 128 * 9, 8192) == pytest.approx(one_wave, rel=1e-4)


def test_product_rates_of_large_and_thin_shapes() -> None:
    assert 2 * 8192**3 / gemm_seconds(DGX, 8192, 8192, 8192) == pytest.approx(270e12, rel=0.05)
    moved = 2 * (16 * 8192 + 8192**2 + 16 * 8192)
    bandwidth = DGX.gpu.memory_bandwidth * DGX.measured.memory
    assert gemm_seconds(DGX, 16, 8192, 8192) == pytest.approx(moved / bandwidth, rel=1e-6)


@pytest.mark.parametrize("name", cluster_names())
def test_every_cluster_that_ships_can_be_planned_on(name: str) -> None:
    cluster = load_cluster(name)
    run = Run(SMALL, Layout(tp=8), batch=8, cluster=cluster, software=load_software(cluster.software))
    assert 0.01 < predict(run).seconds < 10


PIPELINE, OURS = (load_software(name) for name in ENGINES.values())
SPLIT = Run(SMALL, Layout(tp=8, pp=4, dp=4), batch=64, recompute="none", sequence_parallel=True, schedule="zero-bubble")


def test_separate_weight_gradients_are_the_same_work() -> None:
    """All but the sums of dx and the gathers of dy: their product is put off, so half of these no longer overlaps."""
    runs, alone = (SPLIT, SPLIT._replace(schedule="1f1b")), PIPELINE.model_copy(update={"overlap_tensor": False})
    split, whole = (predict(run._replace(software=alone)).pipeline for run in runs)
    assert split.weights
    assert whole.weights is None
    assert split.forward == whole.forward
    layer, apart = (layer_cost.layer(SPLIT._replace(model=MT_NLG, schedule=name)) for name in ("1f1b", "zero-bubble"))
    all_reduce = layer_cost.tensor_collectives(SPLIT._replace(model=MT_NLG), 1).collectives
    exposed = apart.backward.collectives - layer.backward.collectives
    assert exposed == pytest.approx(2 * OVERLAP_SHARE * all_reduce)
    for backward, weights, both in zip(split.backward, split.weights, whole.backward, strict=True):
        assert backward + weights == pytest.approx(both, rel=0.1)


def test_chunked_gradient_reduction_is_cheaper() -> None:
    run = SPLIT._replace(schedule="interleaved", interleave=2)
    whole = PIPELINE.model_copy(update={"overlap_gradients": False})
    at_end, by_chunk = (predict(run._replace(software=program)).breakdown for program in (whole, PIPELINE))
    assert by_chunk.data_comms < at_end.data_comms
    assert by_chunk.data_comms > 0
    assert at_end.bubble == by_chunk.bubble


@pytest.mark.parametrize(("layers", "parts"), [(16, 4), (16, 16), (18, 4), (105, 35)])
def test_layers_are_cut_as_the_engine_cuts_them(layers: int, parts: int) -> None:
    for vocabulary in (51200, 512000):
        model = SMALL.model_copy(update={"layers": layers, "vocabulary": vocabulary})
        run = Run(model, Layout(pp=parts), batch=parts, recompute="none")
        counts = [len(stage.layers) for stage in stages(model, Layout(pp=parts), "none")]
        assert [*chunks(run._replace(software=OURS))] == counts


def test_misaligned_product_is_slower_and_8_bits_faster() -> None:
    plain, off = gemm_seconds(DGX, 4096, 4096, 4096), gemm_seconds(DGX, 4096, 4096, 4090)
    assert off > 3 * plain
    hopper = load_cluster("dgx-h100")
    assert 1.7 < gemm_seconds(hopper, *[8192] * 3) / gemm_seconds(hopper, *[8192] * 3, width=1) < 2.2


def test_fp32_products_run_at_fp32_rate() -> None:
    """19.5 of 312 TFLOP/s on an A100, in layers, attention and head; a CPU has one rate, no tensor cores."""
    narrow, wide = Run(SMALL, Layout(tp=2), 4), Run(SMALL, Layout(tp=2), 4, precision="fp32")
    for part in (layer_cost.layer, layer_cost.head):
        for program in (LM, OURS):
            seconds = [part(run._replace(software=program)).forward.products for run in (narrow, wide)]
            assert 10 < seconds[1] / seconds[0] < 17
    processor = changed(DGX, "gpu", fp32_flops=None)
    assert gemm_seconds(processor, 4096, 4096, 4090, width=4) == pytest.approx(
        gemm_seconds(processor, 4096, 4096, 4096, width=4), rel=0.01
    )


def test_stages_gather_and_reduce_once_per_step() -> None:
    """FSDP2 leaves weights whole until a step's end where a pipeline runs, and reduces after the last backward pass."""
    program, slow = load_software("torchtitan"), changed(DGX, "node", network_bandwidth=1e9)
    steps = []
    for cluster in (DGX, slow):
        run = Run(SMALL, Layout(tp=2, pp=2, dp=8), 64, zero=3, cluster=cluster, software=program)
        steps.append([predict(run), predict(run._replace(batch=128))])
    (fast_few, fast_many), (slow_few, slow_many) = steps
    assert slow_few.breakdown.data_comms > 10 * fast_few.breakdown.data_comms
    assert slow_many.breakdown.data_comms == pytest.approx(slow_few.breakdown.data_comms)
    assert slow_many.breakdown.tensor_comms == pytest.approx(fast_many.breakdown.tensor_comms)


def test_an_update_moves_34_bytes_a_parameter() -> None:
    """The norm reads the gradient (4); Adam reads it and both reads and writes three others (28); a cast (2)."""
    seconds = predict(Run(SMALL, Layout(tp=8), batch=8, zero=0, software=LM)).breakdown.optimizer
    bytes_moved = seconds * DGX.gpu.memory_bandwidth * DGX.measured.memory
    sliced = (SMALL.parameters - SMALL.sequence * SMALL.hidden) / 8 + SMALL.sequence * SMALL.hidden
    assert bytes_moved / sliced == pytest.approx(34, rel=2e-3)


@pytest.mark.parametrize(
    ("size", "measured"), [(1 << 20, 92.8e-6), (32 << 20, 358.1e-6), (96 << 20, 828.5e-6), (240 << 20, 1996.9e-6)]
)
def test_all_reduce_time_in_a_node_matches_nccl(size: int, measured: float) -> None:
    """Over eight A100, nccl-tests, published beside vTrain's code (docs/decisions/0060)."""
    assert network.ring(Run(SMALL, Layout(), 1), 8, 1).all_reduce(size) == pytest.approx(measured, rel=0.07)


def test_offloading_costs_only_exposed_copies() -> None:
    kept = Run(SMALL, Layout(tp=2, pp=4), 32, recompute="none", schedule="zero-bubble", sequence_parallel=True)
    moved = kept._replace(offload_activations=True)

    def seconds(run: Run, bandwidth: float) -> float:
        return predict(run._replace(cluster=changed(DGX, "node", host_bandwidth=bandwidth))).seconds

    a_pass = 4 * layer_bytes(kept, "none")
    assert a_pass == pytest.approx(4 * 2048 * 4096 * 34 / 2, rel=0.02), "four layers of 34 s b h / t"
    at_once = seconds(moved, 1e15)
    assert at_once == pytest.approx(seconds(kept, 1e15), rel=1e-3)
    forward = min(predict(kept).pipeline.forward)
    assert seconds(moved, a_pass / forward) <= at_once + forward
    assert seconds(moved, 1e9) == pytest.approx(31 * a_pass / 1e9, rel=0.2), "each but the last micro-batch, one way"


def test_a_recipes_sharding_is_planned_in_any_layout() -> None:
    """In a layout that nothing can be sharded over, it costs nothing."""
    train = {"samples": 8, "batch": 8, "lr": 1e-3, "decay": 8, "validation_samples": 8, "precision": "fp8"}
    runs = [
        train_run(Recipe(model=SMALL, layout=Layout(), train=Train.model_validate(train | {"shard": shard})))
        for shard in STAGES
    ]
    assert [run.zero for run in runs] == [1, 2, 3]
    assert len({(predict(run).seconds, *memory(run)) for run in runs}) == 1


@pytest.mark.parametrize(("gradients", "width"), [("fp32", 4), ("bf16", 2)])
def test_a_recipes_sums_of_gradients_are_planned(gradients: str, width: int) -> None:
    train = Train.model_validate({"samples": 8, "batch": 8, "lr": 1e-3, "decay": 8, "gradients": gradients})
    run = Run(SMALL, Layout(dp=8), batch=8)
    held = memory(run._replace(software=_train_software(train)))[0]
    assert held.gradients == width * SMALL.parameters
