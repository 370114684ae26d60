"""Predicted memory: against the literature's figures per GPU, and what fits and what does not."""

from itertools import accumulate, product
from math import inf

import pytest

from mtnlg_model.config import ModelConfig
from mtnlg_model.families import preset
from mtnlg_parallel.layout import Layout
from mtnlg_parallel.planner import step
from mtnlg_parallel.planner.cluster import load_cluster
from mtnlg_parallel.planner.costs.activations import layer_bytes
from mtnlg_parallel.planner.memory import fullest_stage, memory, memory_error
from mtnlg_parallel.planner.programs import load_software
from mtnlg_parallel.planner.run import RECOMPUTE, Run, run_error
from mtnlg_parallel.planner.search import search
from mtnlg_parallel.schedules import schedule_names

GIB = 1 << 30
LM, CORE, TITAN = (load_software(name) for name in ("megatron-lm", "megatron-core", "torchtitan"))
SELENE = load_cluster("selene")


def shape(layers: int, hidden: int, heads: int) -> ModelConfig:
    return ModelConfig(layers=layers, hidden=hidden, heads=heads, sequence=2048, vocabulary=51200)


RUNS = {  # Korthikanti et al. 2022, table 3
    "22B": Run(shape(48, 6144, 64), Layout(tp=8), 4, 4, zero=0, software=LM),
    "175B": Run(shape(96, 12288, 96), Layout(tp=8, pp=8), 64, interleave=3, zero=0, software=LM),
    "530B": Run(shape(105, 20480, 128), Layout(tp=8, pp=35), 280, interleave=3, zero=0, software=LM),
    "1T": Run(shape(128, 25600, 160), Layout(tp=8, pp=64), 512, zero=0, software=LM),
}
FIGURE_1 = {  # GiB: state on a middle stage; activations on the first, nothing recomputed; selective, sequence parallel
    "22B": (45.56, 59.25, 9.56),
    "175B": (45.56, 66.84, 12.35),
    "530B": (31.64, 114.02, 23.08),
    "1T": (32.96, 131.25, 26.56),
}
FIGURE_7 = {  # activations as shares of nothing recomputed: sequence parallel alone, selective alone, all recomputed
    "22B": (0.6684, 0.4942, 0.0764),
    "175B": (0.6204, 0.5653, 0.0871),
    "530B": (0.5831, 0.6204, 0.0942),
    "1T": (0.5831, 0.6204, 0.0942),
}


@pytest.mark.parametrize("name", RUNS)
def test_state_and_activations_match_literature_within_8_percent(name: str) -> None:
    run, (state, whole, present), shares = RUNS[name]._replace(recompute="none"), FIGURE_1[name], FIGURE_7[name]
    savings = ({"sequence_parallel": True}, {"recompute": "selective"}, {"recompute": "full"})
    assert memory(run)[run.layout.pp // 2].state / GIB == pytest.approx(state, rel=0.08)
    activations = [memory(run._replace(**each))[0].activations for each in ({}, *savings, savings[0] | savings[1])]
    assert (activations[0] / GIB, activations[-1] / GIB) == pytest.approx((whole, present), rel=0.08)
    assert [each / activations[0] for each in activations[1:-1]] == pytest.approx(shares, rel=0.08)


def test_mt_nlg_memory_matches_the_paper() -> None:
    run = Run(preset("mt-nlg-530b"), Layout(tp=8, pp=35, dp=8), 1920, software=load_software(SELENE.software))
    stages = memory(run)
    assert memory(run._replace(zero=0))[17].state == pytest.approx(37.7e9, rel=0.01)
    assert stages[17].state == pytest.approx(18.0e9, rel=0.01)
    assert layer_bytes(run, "none") == pytest.approx(0.88e9, rel=0.01)
    assert stages[0].activations == pytest.approx(8.81e9, rel=0.01)
    assert stages[0].recomputed == layer_bytes(run, "none")
    assert fullest_stage(stages) == 0
    assert memory_error(stages, SELENE) is None


@pytest.mark.parametrize("name", RUNS)
def test_memory_verdicts_match_runs_on_80_gb(name: str) -> None:
    run = RUNS[name]
    assert memory_error(memory(run), SELENE) is None
    assert memory_error(memory(run._replace(recompute="selective", sequence_parallel=True)), SELENE) is None
    assert memory_error(memory(run._replace(recompute="none")), SELENE)


@pytest.mark.parametrize("chunks", [1, 2])
def test_deferred_weight_gradients_keep_their_inputs(chunks: int) -> None:
    """At the peak of the order that the engine runs, on every stage: s + 1 passes over its largest chunk."""
    run = Run(shape(16, 2048, 16), Layout(tp=2, pp=4), 24, interleave=chunks, recompute="none", schedule="zero-bubble")
    each = 2 * run.elements * (4 + 12 / 2)  # x and dy of four products: four of h, and 12 h over the two ranks
    layers = step.chunks(run)
    for number, order in enumerate(run.orders()):
        most = max(accumulate({"forward": 0, "backward": 1, "weights": -1}[action.kind] for action in order))
        assert memory(run)[number].deferred_gradients == pytest.approx(most * max(layers[number::4]) * each)
    one = memory(run._replace(schedule="interleaved"))[0].deferred_gradients  # until the next collective
    assert one == pytest.approx(each / 4)


@pytest.mark.parametrize(("model", "batch"), [(shape(6, 4096, 32), 12), (shape(4, 12288, 96), 6)], ids=["free", "full"])
def test_search_is_within_two_percent_of_the_best(model: ModelConfig, batch: int) -> None:
    """All: every layout of up to four GPUs, micro-batch, recomputation, number of chunks, schedule and switch."""
    template, degrees, best = Run(model, Layout(), batch, cluster=SELENE), range(1, 5), inf
    for tp, pp, dp, micro_batch, chunks, recompute in product(
        degrees, degrees, degrees, range(1, batch + 1), (1, 2, 3), RECOMPUTE
    ):
        if tp * pp * dp > 4 or batch % (dp * micro_batch):
            continue
        for schedule, slices_sequence, offloads in product(schedule_names(), (False, True), (False, True)):
            run = template._replace(
                layout=Layout(tp=tp, pp=pp, dp=dp),
                micro_batch=micro_batch,
                recompute=recompute,
                interleave=chunks,
                sequence_parallel=slices_sequence and tp > 1,
                schedule=schedule,
                offload_activations=offloads,
            )
            if not run_error(run, 4) and not memory_error(memory(run), SELENE):
                best = min(best, step.predict(run).seconds)
    assert search(template, 4).best[0].prediction.seconds <= 1.02 * best < inf


@pytest.mark.parametrize(
    ("layers", "pp", "v", "micro_batches"), [(126, 16, 4, 48), (30, 4, 2, 4), (22, 4, 3, 8), (9, 4, 2, 8)]
)
def test_uneven_chunks_keep_activations_of_layers_in_flight(layers: int, pp: int, v: int, micro_batches: int) -> None:
    run = Run(shape(layers, 1024, 16), Layout(pp=pp), micro_batches, 1, "none", interleave=v, software=CORE)
    each, cut = layer_bytes(run, "none"), step.chunks(run)
    for stage, order in enumerate(run.orders()):
        flying = accumulate(
            cut[action.chunk * pp + stage] * (1 if action.kind == "forward" else -1) for action in order
        )
        assert memory(run)[stage].activations == pytest.approx(max(flying) * each), stage


def test_unsupported_recomputation_is_refused() -> None:
    run = Run(shape(24, 2048, 16), Layout(dp=2), 8, recompute="operators")
    assert "does not support recompute operators" in str(run_error(run))
    assert run_error(run._replace(software=CORE)) is None
