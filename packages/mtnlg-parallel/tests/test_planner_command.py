"""``mtnlg-parallel plan``: what it prints, writes and refuses."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from plan_command import PAPER, plan, plan_json, refusal, run_plan, shipped_recipe
from typer.testing import CliRunner

from mtnlg_data.console import Failure as DataFailure
from mtnlg_data.tokens.store import TokenStore, writing_store
from mtnlg_model.console import Failure
from mtnlg_model.settings import dump
from mtnlg_parallel.cli import app
from mtnlg_parallel.launch.preflight import forecast
from mtnlg_parallel.planner.cluster import cluster_names, cluster_with, load_cluster
from mtnlg_parallel.planner.report import PUBLISHED
from mtnlg_parallel.recipe_file import load_recipe


def test_json_holds_the_step_its_parts_and_the_memory() -> None:
    said, told = plan(PAPER), plan_json(PAPER, "--tokens 270e9")
    for words in ("bubble", "TFLOP/s per GPU", "MFU", "HFU", "tokens/s", "fits into", "stage 0, the fullest"):
        assert words in said
    assert sum(told["step_seconds_by"].values()) == pytest.approx(told["step_seconds"])
    assert told["mfu"] == pytest.approx(0.302, rel=0.03)
    assert told["hfu"] == pytest.approx(0.403, rel=0.03)
    assert sum(told["memory_bytes_by"].values()) == pytest.approx(told["memory_bytes"])
    assert told["memory_bytes"] == max(told["memory_bytes_of_stages"])
    assert told["fits"]
    assert told["run"]["days"] == pytest.approx(47.8, rel=0.03)
    assert told["run"]["gpu_hours"] == pytest.approx(2.57e6, rel=0.03)


def test_json_imports_no_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mtnlg_parallel.planner.page", None)
    assert plan_json(PAPER)["fits"]


def test_ramp_costs_match_small_batches() -> None:
    recipe = shipped_recipe("mt-nlg-530b")
    told = plan_json(recipe, "--cluster selene --software megatron-deepspeed-2021")
    assert told["run"]["ramp_days"] == pytest.approx(3.1, rel=0.2)
    assert told["run"]["days"] == pytest.approx(48.7, rel=0.03)


@pytest.mark.parametrize("nodes", PUBLISHED)
def test_preset_and_nodes_alone_give_the_papers_step_within_four_percent(nodes: int) -> None:
    """That on 280 nodes sets the program's one constant."""
    told = plan_json("mt-nlg-530b --nodes", nodes)
    assert (told["cluster"], told["program"]) == ("selene", "megatron-deepspeed-2021")
    assert told["layout"] == {"tp": 8, "pp": 35, "dp": nodes // 35}
    assert (told["step_seconds"], told["tflops_per_gpu"]) == pytest.approx(PUBLISHED[nodes], rel=0.04)


def test_scaling_prints_the_papers_table_beside_ours() -> None:
    said = plan("mt-nlg-530b --cluster selene --layout tp=8,pp=35 --scaling 280,350,420")
    assert re.search(r"420\s+3,360\s+12\s+4\d\.\d\s+44\.4\s+[+-]\d\.\d%", said)
    assert "NOT" not in said
    assert "90 % of steps take" in said


@pytest.mark.parametrize(
    ("name", "option", "cluster"),
    [("mt-nlg-530b-2022", "", "selene"), ("llama-1b", "", "dgx-a100-40gb"), ("mt-nlg-530b", "ndv4", "ndv4")],
)
def test_recipe_is_planned_for_its_cluster(name: str, option: str, cluster: str) -> None:
    words = ["--cluster", option] if option else []
    assert plan_json(shipped_recipe(name), *words)["cluster"] == cluster


def test_plan_reads_a_cluster_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    mine = load_cluster("dgx-a100")
    path.write_text(dump(mine.model_copy(update={"name": "mine", "node": mine.node.model_copy(update={"gpus": 4})})))
    assert plan_json("dense-1.3b --cluster", path, "--layout dp=4")["cluster"] == "mine"
    path.write_text(path.read_text().replace("socket_gpus", "sockets"))
    with pytest.raises(Failure, match=r"did you mean socket_gpus\?"):
        plan("tiny --cluster", path, "--batch 8")


def write_recipe(folder: Path, *lines: str) -> Path:
    """A recipe of 8 layers over 4 stages."""
    model = ["[model]", "layers = 8", "hidden = 1024", "heads = 8", "sequence = 1024", "vocabulary = 1024"]
    train = ["[train]", "samples = 1000", "batch = 16", "lr = 1e-4", 'recompute = "none"']
    path = folder / "train.toml"
    path.write_text("\n".join([*model, "[layout]", "tp = 2", "pp = 4", "dp = 1", *train, *lines]))
    return path


@pytest.mark.parametrize(
    ("lines", "program", "schedule"),
    [
        ((), "mtnlg-parallel", "1f1b"),
        (('engine = "deepspeed"',), "mtnlg-parallel-deepspeed", "1f1b"),
        (('schedule = "interleaved"', "chunks = 2"), "mtnlg-parallel", "interleaved"),
        (('schedule = "zero-bubble"', "kernels = false"), "mtnlg-parallel", "zero-bubble"),
    ],
)
def test_plan_matches_the_forecast_of_train(
    tmp_path: Path, lines: tuple[str, ...], program: str, schedule: str
) -> None:
    path = write_recipe(tmp_path, *lines)
    told = plan_json(path, "--cluster selene")
    assert (told["program"], told["schedule"]) == (program, schedule)
    assert told["software"]["fused_kernels"] == ("kernels = false" not in lines)
    assert told["sequence_parallel"]
    expected = forecast(load_recipe(path), "selene", force=False)
    assert told["step_seconds"] == expected.seconds
    assert told["memory_bytes"] == expected.bytes


def test_plan_of_a_preset_accepts_model_keys_and_token_units() -> None:
    words = "dense-6.7b --layout tp=8 --batch 16"
    short, long = (plan_json(words, more) for more in ("", "--set model.sequence=4096"))
    assert (short["sequence"], long["sequence"]) == (2048, 4096)
    assert long["step_seconds"] > 1.5 * short["step_seconds"]
    lengths = [plan_json(words, "--tokens", tokens)["run"] for tokens in ("100e9", "100B", "'100B tokens'")]
    assert lengths[0] == lengths[1] == lengths[2]
    said = plan(words)
    assert "sequence 2,048" in said
    assert "program mtnlg-parallel" in said


def test_switch_option_changes_the_step_time() -> None:
    fused, apart = (plan_json(PAPER, words) for words in ("", "--switch fused_kernels=off"))
    assert apart["step_seconds"] > 1.03 * fused["step_seconds"]


REFUSED = {
    "mt-nlg-530b": {
        "--cluster selen": "unknown; did you mean selene?",
        "--layout tp=7": "use 1, 2, 4, 8, 16, 32, 64 or 128",
        "--layout tp=1,pp=1,dp=7": "does not divide the batch 1920; use dp 6 or batch 1918",
        "--nodes 2 --layout tp=8,pp=35,dp=1": "use --nodes 35",
        "--software megatron-lm --interleave 2": "use --interleave 1 or 3",
        "--software megatron-lm --layout tp=8,pp=36,dp=8": "use pp 21 or 35",
        "--software megatron-deepspeed --sequence-parallel": "does not support sequence parallelism",
        "--software megatron-lm --schedule zero-bubble": "does not support the schedule zero-b",
        "--interleave 4": "pp = 35 x train.chunks = 4",
        "--set model.sequnce=4096": "did you mean sequence?",
        "--set train.batch=4096": "preset mt-nlg-530b has only [model]",
        "--tokens many": "such as 270e9 or 270B",
        "--nodes 3 --search": "; use more --nodes",
        "--layout tp=8,pp=35 --scaling 281": "use 210, 280, 350",
        "--software megatron": "unknown; use",
        "--switch fast=on": "names are fused_kernels",
        f"--layout dp={10**26}": "is not AXIS=DEGREE",
        "--scaling 280,": "write numbers of nodes",
        "--scaling " + "9" * 5000: "write numbers of nodes",
    },
    "llama-3.1-8b --batch 16 --layout dp=2": {
        "--software megatron-lm --zero 3": "megatron-lm does not support FSDP; use --software mtnlg-parallel",
        "--software megatron-lm --zero 3 --layout pp=2": "FSDP; use --software megatron-core",
        "--zero 3 --layout pp=2": "mtnlg-parallel has zero 3 at pp 1 and over all dp x cp ranks; use --zero 1",
        "--zero 2 --shards 2": "mtnlg-parallel has zero 2 at pp 1",
        "--software llm-foundry --layout cp=2": "llm-foundry does not support context parallelism",
        "--software megatron-lm --precision fp8 --cluster dgx-h100": "8-bit products; use --software mtnlg-parallel",
        "--software megatron-lm --precision fp8": "A100-SXM4-80GB has no 8-bit products",
        "--software megatron-core --layout cp=3": "layout.cp = 3 x 2 does not divide model.sequence",
        "--precision fp8": "A100-SXM4-80GB has no 8-bit products",
        "--precision nvfp4 --cluster mi355x": "MI355X-288GB has no 4-bit products",
        "--data tokens": "is for a recipe with data.documents",
        "--cluster dgx1-v100": "V100-SXM2-32GB has no bfloat16 products; use --precision fp32",
        "--software torchtitan --zero 3 --shards 4": "shards 4 does not divide dp x cp = 2 ranks",
        "--software torchtitan --shards 2": "shards 2 needs zero 2 or 3",
        "--precision fp16": "mtnlg-parallel does not support fp16",
        "--precision fp8 --cluster dgx-h100 --layout tp=2 --set model.ffn=1000": "multiple of 16",
        "--layout cp=8,dp=2 --nodes 1": "cp=8,pp=1,dp=2 is 16 GPUs and there are 8; use dp=1, or",
    },
    "gpt2 --cluster dgx-h100": {
        "": "give --batch",
        "--batch 1048576 --layout pp=2,dp=1": "1,048,576 micro-batches",
        "--batch 64 --nodes 1 --search --micro-batch 48": "micro-batch 48",
        "--batch 64 --search --html page.html": "--html shows one plan, --search several",
        "--batch 64 --search --scaling 1,2": "--scaling shows one plan, --search several",
        "--batch 64 --layout dp=8 --scaling 1,2 --html page.html": "--html shows one plan, --scaling several",
        "--batch 64 --layout dp=8 --scaling 1,2 --tokens 1T": "--tokens shows one plan, --scaling several",
        "--batch 64 --layout dp=8 --top 10": "--top needs --search",
    },
}
"""By what is planned and what is asked of it: a part of the line that refuses it."""


@pytest.mark.parametrize(("words", "more"), [(words, more) for words in REFUSED for more in REFUSED[words]])
def test_impossible_plan_names_the_nearest_possible(words: str, more: str) -> None:
    assert REFUSED[words][more] in refusal(words, more)


def test_unknown_recipe_name_suggests_a_preset() -> None:
    with pytest.raises(Failure, match=r"no such preset; choose a folder or mt-nlg-530b") as caught:
        plan("530b")
    assert caught.value.exit_status == 1


def test_run_that_cannot_fit_is_refused(tmp_path: Path) -> None:
    recipe = shipped_recipe("dense-6.7b")
    words = ["train", str(recipe), "--data", str(tmp_path / "none"), "--out", str(tmp_path / "out")]
    words += ["--cluster", "dgx-a100-40gb", "--layout", "tp=1,pp=1,dp=1", "--set", "train.micro_batch=4"]
    with pytest.raises(Failure, match=r"cannot fit: stage 0 needs .* or --force") as caught:
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert caught.value.exit_status == 2
    assert not (tmp_path / "out").exists()
    with pytest.raises(DataFailure, match=r"blend\.json"):  # forced, it goes on to the data, which are not there
        CliRunner().invoke(app, [*words, "--force"], catch_exceptions=False)
    assert not (tmp_path / "out").exists()


def test_any_decoder_and_sharding_is_planned() -> None:
    """FSDP with activations recomputed fits 8 GPUs what ZeRO-1 does not; HSDP reduces over replicas too."""
    words = "llama-3.1-8b --set model.sequence=8192 --cluster dgx-h100 --software torchtitan"
    run = "--layout dp=16 --batch 16 --json"
    plans = [
        plan_json(words, run, "--zero", zero, more)
        for zero, more in ((1, ""), (3, ""), (3, "--shards 8"), (3, "--precision fp8"))
    ]
    whole, sharded, replicated, narrow = plans
    assert sharded["memory_bytes"] < whole["memory_bytes"] - 40e9
    assert sharded["memory_bytes"] < replicated["memory_bytes"] < whole["memory_bytes"]
    assert narrow["step_seconds"] < sharded["step_seconds"]
    assert all(p["low_step_seconds"] < p["step_seconds"] < p["high_step_seconds"] for p in plans)


def test_cluster_file_inherits_unset_fields_by_like(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\nlike = "dgx-h100"\n[measured]\nclock = 0.8\n', encoding="utf-8")
    mine, base = load_cluster(str(path)), load_cluster("dgx-h100")
    assert mine.measured == base.measured.model_copy(update={"clock": 0.8})
    assert (mine.gpu, mine.node, mine.name) == (base.gpu, base.node, "mine")
    path.write_text('name = "mine"\nlike = "dgx-h1000"\n', encoding="utf-8")
    with pytest.raises(Failure, match="like = 'dgx-h1000': unknown"):
        load_cluster(str(path))


def test_a_gpus_cluster_is_the_file_that_names_it() -> None:
    """Each shipped file, by its own GPU's name; clusters that are like it have the GPU but not the name."""
    shipped = {name: load_cluster(name) for name in cluster_names()}
    named = {name for name, cluster in shipped.items() if cluster.gpus}
    assert {cluster_with(shipped[name].gpu.name) for name in named} == named
    assert {cluster.gpu.name for cluster in shipped.values()} == {shipped[name].gpu.name for name in named}
    assert cluster_with("NVIDIA GH200 480GB") == "gh200"
    assert cluster_with("NVIDIA H100 PCIe") is None
    assert cluster_with("NVIDIA RTX A1000") is None  # begins as A100


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[mesured]\nclock = 0.8\n", "mesured"),
        ("[name]\nclock = 0.8\n", "name"),
        ("gpu = 3\n", "gpu"),
        ('software = "nosuch"\n', "mine.toml: software = 'nosuch': unknown; use "),
    ],
)
def test_cluster_file_with_misspelt_table_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f'like = "dgx-h100"\n{text}', encoding="utf-8")
    assert words in refusal("mt-nlg-530b --cluster", str(path))


def test_eight_bit_recipe_is_planned_as_trained() -> None:
    """Products take half of their time, and casts by one kernel a part of what that saves (docs/decisions/0127)."""
    recipe = shipped_recipe("mt-nlg-530b-2022")
    steps = {
        precision: plan_json(recipe, "--cluster dgx-h100 --set", f"train.precision={precision}")["step_seconds"]
        for precision in ("bf16", "fp8")
    }
    assert 0.75 * steps["bf16"] < steps["fp8"] < 0.85 * steps["bf16"]


def test_layout_without_dp_fills_the_nodes() -> None:
    words = "llama-3.1-8b --cluster dgx-h100 --nodes 16 --batch 64"
    paper = "mt-nlg-530b --cluster dgx-a100"
    spread, idle, more = (
        run_plan(line) for line in (f"{words} --layout tp=4,pp=2", f"{words} --layout tp=4,pp=2,dp=2", paper)
    )
    assert "on 128 GPUs" in spread.stdout
    assert "idle" not in spread.stderr
    assert "on 16 GPUs" in idle.stdout
    assert "112 of the 128 GPUs are idle" in idle.stderr
    assert "dgx-a100 has 64 nodes, not 280" in more.stderr


def test_scaling_prints_program_and_layouts_that_do_not_fit() -> None:
    words = "llama-3.1-70b --cluster dgx-h100 --batch 64 --set model.sequence=8192"
    said = plan(words, "--layout tp=8,pp=1,dp=1 --scaling 1,2")
    assert said.count("does NOT fit") == 2
    assert "program mtnlg-parallel" in said
    ours = plan("mt-nlg-530b --cluster selene --scaling 280 --software megatron-lm")
    assert "%" not in ours.replace("90 %", ""), "an error is of the program that was measured"


def test_a_recipe_is_planned_with_its_context_parallelism(tmp_path: Path) -> None:
    recipe = tmp_path / "train.toml"
    model = '[model]\npreset = "llama-3.1-8b"\nsequence = 65_536\n[layout]\ncp = 8\n'
    recipe.write_text(model + "[train]\nsamples = 800\nbatch = 8\nlr = 3e-4\n")
    words = "--cluster dgx-h100 --json"
    planned = plan_json(recipe, words)
    assert (planned["layout"]["cp"], planned["gpus"]) == (8, 8)
    assert plan_json(recipe, words, "--layout cp=4,dp=2")["layout"]["cp"] == 4
    assert "cp" not in plan_json(recipe, words, "--layout cp=1")["layout"]


def test_64k_tokens_of_an_8b_fit_a_node() -> None:
    words = "llama-3.1-8b --set model.sequence=65536 --cluster dgx-h100 --nodes 1 --batch 8"
    planned = plan_json(words, "--layout cp=8")
    assert planned["fits"]
    assert not plan_json(words, "--layout dp=8")["fits"]


@pytest.mark.parametrize("program", ["mtnlg-parallel", "megatron-core"])
def test_nvfp4_plan_warns_that_it_cannot_be_trained(program: str) -> None:
    words = "llama-3.1-405b --cluster gb300-nvl72 --layout tp=4,pp=8,dp=8 --batch 128 --json --software"
    results = [run_plan(words, program, "--precision", precision) for precision in ("fp8", "nvfp4")]
    eight, four = (json.loads(each.stdout)["step_seconds"] for each in results)
    assert 0.4 < four / eight < 0.9
    assert ("does not train in nvfp4" in results[1].stderr) == (program == "mtnlg-parallel")


def test_isolated_documents_are_planned_by_their_lengths(tmp_path: Path) -> None:
    """Of 100 tokens each, or what a sample has of one: attention's rows are those, not the 1,024 of a sample."""
    tokens = tmp_path / "tokens"
    tokens.mkdir()
    with writing_store(tokens / "a", 1024) as store:
        for _ in range(200):
            store.add(np.arange(100))
    source = {"name": "a", "prefix": "a", "weight": 1.0, "documents": 200, "tokens": 20_000}
    source["sha256"] = TokenStore(tokens / "a").checksum()
    blend = {"seed": 0, "vocabulary": 1024, "eod": 0, "validation": 0.0, "sources": [source]}
    (tokens / "blend.json").write_text(json.dumps(blend))
    path = write_recipe(tmp_path, "[data]", 'documents = "isolated"')
    assumed, counted = (run_plan(path, "--cluster dgx-h100 --json", *more) for more in ((), ("--data", tmp_path)))
    assert "fill their samples" in assumed.stderr
    assert f"lengths in {tmp_path}" in counted.stderr
    most, told = (json.loads(each.stdout) for each in (assumed, counted))
    assert 90 < told["document"] <= 100
    for figure in ("step_seconds", "model_tflops_per_gpu"):
        assert told[figure] < most[figure]
    (tokens / "blend.json").unlink()
    assert plan_json(path, "--cluster dgx-h100 --data", tmp_path) == told, "the lengths are read once"
