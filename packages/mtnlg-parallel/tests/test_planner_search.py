"""``plan --search``: layouts that others published are among the fastest, or the reason against them is told."""

import json
import re
from typing import Any

import pytest
from typer.testing import CliRunner

from mtnlg_model.config import PRESETS, ModelConfig
from mtnlg_parallel.cli import app
from mtnlg_parallel.layout import Layout
from mtnlg_parallel.planner.cluster import load_cluster
from mtnlg_parallel.planner.programs import load_software
from mtnlg_parallel.planner.run import Run
from mtnlg_parallel.planner.search import candidates, reason_against, search

FIRST = 5
CAUSE = r"(does not divide|of it \w+|, as fast as any|more: (compute|recompute|tensor comms|bubble|p2p|data comms) \+)"


def gpt(layers: int, hidden: int, heads: int) -> ModelConfig:
    return ModelConfig(layers=layers, hidden=hidden, heads=heads, sequence=2048, vocabulary=51200)


LLAMA = PRESETS["llama-3.1-405b"].model_copy(update={"sequence": 8192})
SELECTIVE: dict[str, Any] = {"recompute": "selective", "sequence_parallel": True}
PUBLISHED = {  # Narayanan et al. 2021, table 1; Korthikanti et al. 2022, table 3; Llama 3 (2024), table 4
    "2021-530B": ("megatron-lm-2021", Run(gpt(105, 20480, 128), Layout(tp=8, pp=35, dp=9), 2520, interleave=3)),
    "2022-22B": ("megatron-lm", Run(gpt(48, 6144, 64), Layout(tp=8), 4, 4, **SELECTIVE)),
    "2022-530B": ("megatron-lm", Run(gpt(105, 20480, 128), Layout(tp=8, pp=35), 280, interleave=3, **SELECTIVE)),
    "2024-405B": (
        "megatron-core",
        Run(LLAMA, Layout(tp=8, pp=16, dp=128), 2048, recompute="none", sequence_parallel=True),
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_layout_is_among_the_first_five_or_has_a_reason_against_it(name: str) -> None:
    program, run = PUBLISHED[name]
    cluster, software = load_cluster("dgx-h100" if program == "megatron-core" else "selene"), load_software(program)
    found = search(run, cluster, software, run.gpus, count=FIRST)
    if run not in [each.run for each in found.best]:
        reason = reason_against(run, cluster, software, found.best[0])
        assert re.search(CAUSE, reason), reason
        assert not reason.endswith(": ")


def test_what_korthikanti_ran_at_530b_is_the_fastest() -> None:
    program, run = PUBLISHED["2022-530B"]
    cluster, software = load_cluster("selene"), load_software(program)
    (fastest,) = search(run, cluster, software, run.gpus, count=1).best
    assert fastest.run == run
    assert reason_against(run, cluster, software, fastest).endswith("as fast as any")


def test_megatron_core_counts_embedding_and_head_as_layers() -> None:
    """126 layers on 16 stages; Megatron-LM of 2022 needs as many on each."""
    run = PUBLISHED["2024-405B"][1]
    cluster = load_cluster("dgx-h100")
    stages = {
        program: {each.layout.pp for each in candidates(run, cluster, load_software(program), run.gpus)}
        for program in ("megatron-core", "megatron-lm")
    }
    assert 16 in stages["megatron-core"]
    assert all(126 % pp == 0 for pp in stages["megatron-lm"])


def plan(*words: str) -> str:
    result = CliRunner().invoke(app, ["plan", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_layout_asked_for_with_a_search_is_held_against_the_fastest() -> None:
    words = ("dense-1.3b", "--batch", "16", "--search", "--top", "1", "--software", "megatron-lm")
    (line,) = [line for line in plan(*words, "--layout", "tp=8").splitlines() if line.startswith("asked for")]
    assert re.search(
        r"tp=8,pp=1,dp=1, micro-batch 1, .*recompute full: .*% more: launch gaps \+.*tensor comms \+", line
    )
    told = json.loads(plan(*words, "--layout", "tp=8,dp=2", "--json"))
    assert told["asked"]["run"].startswith("tp=8,pp=1,dp=2")
    assert "asked" not in json.loads(plan(*words, "--json"))
