"""``plan --search``: layouts that others published are among the fastest, or the reason against them is told."""

import re
from typing import Any

import pytest
from plan_command import plan, plan_json, shipped_recipe
from test_planner_memory import shape as gpt

from mtnlg_model.families import PRESETS
from mtnlg_parallel.layout import Layout
from mtnlg_parallel.planner.cluster import load_cluster
from mtnlg_parallel.planner.programs import load_software
from mtnlg_parallel.planner.run import Run
from mtnlg_parallel.planner.search import candidates, reason_against, search

FIRST = 5
CAUSE = r"(does not divide|of it \w+|, as fast as any|more: (compute|recompute|tensor comms|bubble|p2p|data comms) \+)"


LLAMA = PRESETS["llama-3.1-405b"].model_copy(update={"sequence": 8192})
H100, SELENE = load_cluster("dgx-h100"), load_cluster("selene")
CHUNKS: dict[str, Any] = {"schedule": "interleaved", "interleave": 3, "cluster": SELENE}
LM, CORE = load_software("megatron-lm"), load_software("megatron-core")
SELECTIVE: dict[str, Any] = {"recompute": "selective", "sequence_parallel": True, "software": LM}
PUBLISHED = {  # Narayanan et al. 2021, table 1; Korthikanti et al. 2022, table 3; Llama 3 (2024), table 4
    "2021-530B": Run(
        gpt(105, 20480, 128), Layout(tp=8, pp=35, dp=9), 2520, software=load_software("megatron-lm-2021"), **CHUNKS
    ),
    "2022-22B": Run(gpt(48, 6144, 64), Layout(tp=8), 4, 4, cluster=SELENE, **SELECTIVE),
    "2022-530B": Run(gpt(105, 20480, 128), Layout(tp=8, pp=35), 280, **CHUNKS, **SELECTIVE),
    "2024-405B": Run(
        LLAMA, Layout(tp=8, pp=16, dp=128), 2048, 1, "none", sequence_parallel=True, software=CORE, cluster=H100
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_layouts_are_found_or_explained(name: str) -> None:
    run = PUBLISHED[name]
    found = search(run, run.gpus, count=FIRST)
    if run not in [each.run for each in found.best]:
        reason = reason_against(run, found.best[0])
        assert re.search(CAUSE, reason), reason
        if " more: " in reason:  # what is longer and what is shorter together explain the loss
            loss = float(reason.partition(" s")[0]) - found.best[0].prediction.seconds
            assert sum(map(float, re.findall(r"[+-]\d+\.\d+", reason))) == pytest.approx(loss, rel=0.4)


def test_fastest_530b_layout_is_korthikantis() -> None:
    run = PUBLISHED["2022-530B"]
    (fastest,) = search(run, run.gpus, count=1).best
    assert fastest.run == run
    assert reason_against(run, fastest).endswith("as fast as the fastest")


def test_megatron_core_counts_embedding_and_head_as_layers() -> None:
    """126 layers on 16 stages; Megatron-LM of 2022 needs as many on each."""
    run = PUBLISHED["2024-405B"]
    core, lm = (
        {each.layout.pp for each in candidates(run._replace(software=program), run.gpus)} for program in (CORE, LM)
    )
    assert 16 in core
    assert all(126 % pp == 0 for pp in lm)


def test_requested_layout_is_compared_with_the_fastest() -> None:
    words = "dense-1.3b --batch 16 --search --top 1 --software megatron-lm"
    (line,) = [line for line in plan(words, "--layout tp=8").splitlines() if line.startswith("asked for")]
    assert re.search(
        r"tp=8,pp=1,dp=1, micro-batch 1, .*recompute full: .*% more: launch gaps \+.*tensor comms \+", line
    )
    told = plan_json(words, "--layout tp=8,dp=2")
    assert told["asked"]["run"].startswith("tp=8,pp=1,dp=2")
    assert "asked" not in plan_json(words)


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ("--recompute full", "recompute", "full"),
        ("--micro-batch 32", "micro_batch", 32),
        ("--interleave 2", "interleave", 2),
        ("--schedule zero-bubble", "schedule", "zero-bubble"),
        ("--schedule 1f1b --interleave 1", "schedule", "1f1b"),
        ("--sequence-parallel", "sequence_parallel", True),
    ],
)
def test_search_keeps_given_options(options: str, field: str, value: object) -> None:
    words = f"dense-1.3b --cluster dgx-h100 --nodes 2 --batch 128 {options}"
    found = plan_json(words, "--search --top 20")
    assert {each[field] for each in found["best"]} == {value}
    assert plan_json(words)[field] == value


def test_offloading_search_finds_runnable_layouts() -> None:
    recipe = shipped_recipe("dense-6.7b")
    settings = "--set train.schedule=zero-bubble --set train.offload_activations=true"
    words = ("--cluster dgx-a100-40gb --nodes 2", settings)
    found = plan_json(recipe, *words, "--search --top 10")
    assert {each["schedule"] for each in found["best"]} <= {"1f1b", "interleaved", "zero-bubble"}
    assert all(each["offload_activations"] for each in found["best"])


@pytest.mark.parametrize(("sequence", "tried"), [(65_536, True), (8192, False)])
def test_search_tries_context_parallelism_for_long_sequences(sequence: int, tried: bool) -> None:
    words = f"llama-3.1-8b --nodes 1 --batch 8 --set model.sequence={sequence} --search --top 3 --json"
    best = plan_json(words)["best"]
    assert any("cp" in each["layout"] for each in best) is tried
    assert all(each["gpus"] <= 8 for each in best)


def test_plan_of_a_preset_defaults_to_the_fastest_layout() -> None:
    told = plan_json("gpt2-xl --batch 16 --nodes 1")
    best = plan_json("gpt2-xl --batch 16 --nodes 1 --search --top 1")["best"][0]
    assert told["layout"] == best["layout"]


def test_a_search_shows_the_best_and_why_others_were_rejected() -> None:
    found = plan_json("dense-6.7b --batch 32 --nodes 2 --search --top 3")
    assert len(found["best"]) == 3
    assert found["fitting"] + len(found["rejected"]) > 100
    assert all(rejected["reason"] for rejected in found["rejected"])
    said = plan("dense-6.7b --batch 32 --nodes 2 --search")
    assert "rejected for memory" in said
    assert "90 % of steps take" in said


def test_search_tries_our_schedules() -> None:
    words = "gpt2-xl --batch 16 --nodes 1 --search --tokens 1B"
    best = plan_json(words, "--top 200")["best"]
    assert {planned["program"] for planned in best} == {"mtnlg-parallel"}
    assert {planned["schedule"] for planned in best} >= {"1f1b", "zero-bubble"}
    steps = -(-(10**9) // (16 * best[0]["sequence"]))
    assert best[0]["days_at_full_batch"] == pytest.approx(steps * best[0]["step_seconds"] / 86400)
    said = plan(words)
    assert "days" in said
    assert "program mtnlg-parallel" in said
