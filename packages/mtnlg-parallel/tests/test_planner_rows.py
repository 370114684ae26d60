"""``plan --rows``: published runs are read as they are, by all names of what they say."""

import csv
import json
from io import StringIO
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mtnlg_model.console import UsageFailure
from mtnlg_parallel.cli import app
from mtnlg_parallel.planner.memory import memory
from mtnlg_parallel.planner.published.predicted import COLUMNS, predict_row
from mtnlg_parallel.planner.published.rows import PublishedRun, Row, network_bandwidth, read_rows

RUNS = Path(__file__).parent / "data" / "published_runs.csv"


def rewritten(tmp_path: Path, **cells: str) -> list[Row]:
    """The first row of NeMo with other cells."""
    with RUNS.open(encoding="utf-8", newline="") as file:
        record = next(row for row in csv.DictReader(file) if row["family"] == "nvidia-dgxc")
    path = tmp_path / "rows.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(record | cells))
        writer.writeheader()
        writer.writerow(record | cells)
    return read_rows(path)


def described(tmp_path: Path, **cells: str) -> PublishedRun:
    (row,) = rewritten(tmp_path, **cells)
    assert row.published, row.why_not
    return row.published


@pytest.mark.parametrize(
    ("software", "native"),
    [
        ("NeMo 24.03.01", False),
        ("NeMo 24.07", False),
        ("NeMo 24.05-24.09", True),
        ("NeMo 25.02", True),
        ("NeMo", True),
        ("Megatron-Bridge 25.09", True),
    ],
)
def test_nemo_has_cudnns_attention_from_24_09_on(tmp_path: Path, software: str, native: bool) -> None:
    assert described(tmp_path, software=software).software.native_attention is native


def test_an_optimizer_of_nemo_keeps_what_bf16_lacks_of_a_weight(tmp_path: Path) -> None:
    """16 bits beside the weight's own 16 (store_param_remainders), where Megatron-LM keeps a weight of 32."""
    masters = [
        fullest.master / fullest.moments
        for name in ("NeMo 24.09", "Megatron-Bridge 25.09", "Megatron-LM core v0.7")
        for run, _, software in (described(tmp_path, software=name),)
        for fullest in memory(run, software)[:1]
    ]
    assert masters == [0.25, 0.25, 0.5]


def test_a_row_of_a_gpu_without_bfloat16_that_does_not_say_its_precision_ran_in_fp16(tmp_path: Path) -> None:
    cells = {"hardware": "V100-32GB", "software": "Megatron-LM", "date": "2020", "sequence_parallel": "no"}
    assert described(tmp_path, **cells, precision="").run.precision == "fp16"
    (row,) = rewritten(tmp_path, **cells, precision="bf16")
    assert "no products of bfloat16" in row.why_not


def test_the_row_chooses_gpu_network_program_and_shape(tmp_path: Path) -> None:
    (row,) = rewritten(tmp_path)
    assert row.published
    run, cluster, software = row.published
    assert (cluster.name, software.name) == ("dgx-h100", "megatron-core")
    assert (run.model.kv_heads, run.model.tied, run.model.bias, run.sequence_parallel) == (8, False, False, True)
    (row,) = rewritten(tmp_path, hardware="GB200", network="400 Gb/s RDMA a GPU", sharding="ZeRO-3", arch="llama")
    assert row.published
    run, cluster, _ = row.published
    assert (cluster.gpu.name, cluster.node.network_bandwidth) == ("GB200-186GB", 72 * 50e9)
    assert (run.zero, run.model.mlp, run.model.norm) == (3, "swiglu", "rms")


@pytest.mark.parametrize(
    ("text", "bandwidth"),
    [
        ("4x Omni-Path 100 Gb/s a node (tr11 README)", 50e9),
        ("8x NDR400 a node", 400e9),
        ("1600 Gb/s RoCE a node", 200e9),
        ("400 Gb/s RDMA a GPU", 400e9),
        ("Selene: 8x HDR200 InfiniBand a node", 200e9),
        ("8x ConnectX-7 400 Gb/s", 400e9),
        ("8\u00d7 400Gb/s InfiniBand", 400e9),
        ("400 Gb/s x 8", 400e9),
        ("3.2 Tb/s EFA", 400e9),
        ("3.2 Tbps (8 x 400 Gbps) a node", 400e9),
        ("50 GB/s per GPU", 400e9),
        ("400 Gbit/s per GPU (8x NDR)", 400e9),
        ("NVLink 900 GB/s; 8x HDR InfiniBand", 200e9),
        ("1600Gb/s RoCE, NVSwitch 600 GB/s", 200e9),
        ("InfiniBand NDR a GPU", 400e9),
        ("EFAv2 3,200 Gb/s", 400e9),
        ("400 Gb/s/GPU", 400e9),
        ("8 NICs of 200 Gb/s", 200e9),
        ("800 Gb/s (8 x 100)", 100e9),
        ("8xHDR", 200e9),
        ("8x400G", 400e9),
        ("100GbE", 12.5e9),
        ("InfiniBand", None),
        ("not stated", None),
    ],
)
def test_a_network_is_read_from_its_words(text: str, bandwidth: float | None) -> None:
    assert network_bandwidth(text, 8) == bandwidth


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"hardware": "TPU v4"}, "hardware 'TPU v4' is not known"),
        ({"software": "MaxText"}, "software 'MaxText' is not known"),
        ({"gpus": "7"}, "GPUs, not 7"),
        ({"micro_batch": ""}, "micro_batch is not stated"),
        ({"layers": "many"}, "layers = 'many' is no whole number"),
        ({"seq": "8192/4096"}, "is no whole number"),
        ({"gpus_per_node": "0"}, "is no whole number"),
        ({"hardware": ""}, "hardware is not stated"),
        ({"hardware": "H100-PCIe-80GB"}, "is not known"),
        ({"hardware": "H800"}, "is not known"),
        ({"hardware": "GH200 96GB"}, "is not known"),
        ({"software": ""}, "software '' is not known"),
        ({"precision": "NVFP4"}, "precision 'NVFP4' is not known"),
        ({"precision": "TF32"}, "precision 'TF32' is not known"),
        ({"precision": "fp8", "hardware": "A100-80GB"}, "A100-SXM4-80GB has no products of 8 bits"),
        ({"recompute": "not stated"}, "recompute 'not stated' is not known"),
        ({"schedule": "DualPipe"}, "schedule 'DualPipe' is not known"),
        ({"schedule": "ZB-H1"}, "megatron-core has not got the schedule zero-bubble; use --software mtnlg-parallel"),
        ({"model": "Mixtral 8x7B"}, "no dense decoder"),
        ({"arch": "deepseek-v3 MLA"}, "no dense decoder"),
        ({"arch": "bert"}, "no dense decoder"),
        ({"kv_groups": "7"}, "does not divide heads"),
        ({"sharding": "FSDP2 x3"}, "no whole number of such groups"),
        ({"heads": "47"}, "heads = 47 does not divide hidden"),
        ({"micro_batch": "3"}, "does not divide the batch"),
        ({"cp": "3", "gpus": "96"}, "cp 3 does not divide model.sequence = 4096; use cp 2 or 4"),
    ],
)
def test_a_row_that_cannot_be_predicted_says_why(tmp_path: Path, cells: dict[str, str], words: str) -> None:
    (row,) = rewritten(tmp_path, **cells)
    predicted = predict_row(row)
    if words not in str(predicted["why_not"]):
        pytest.fail(str(predicted["why_not"]))
    assert {predicted[name] for name in COLUMNS if name != "why_not"} == {None}


def plan(*words: object) -> str:
    result = CliRunner().invoke(app, ["plan", *map(str, words)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_rows_come_back_with_predictions_which_replace_older_ones(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(RUNS.read_text(encoding="utf-8").splitlines()[:4]) + "\n", encoding="utf-8")
    back = list(csv.DictReader(StringIO(plan("--rows", path))))
    assert list(back[0])[-len(COLUMNS) :] == list(COLUMNS)
    assert all(
        float(r["low_step_seconds"]) < float(r["predicted_step_seconds"]) < float(r["high_step_seconds"]) for r in back
    )
    assert all(
        float(r["error"]) == pytest.approx(float(r["predicted_step_seconds"]) / float(r["step_seconds"]) - 1, abs=1e-4)
        for r in back
    )
    plan("--rows", path, "--out", path)
    assert list(csv.DictReader(StringIO(plan("--rows", path)))) == back
    told = json.loads(plan("--rows", path, "--json"))
    assert (told["rows"], told["predicted"], len(told["predictions"])) == (3, 3, 3)


@pytest.mark.parametrize("words", [("--cluster", "dgx-a100"), ("--nodes", "2"), ("mt-nlg-530b",), ("--search",)])
def test_an_option_of_one_run_beside_rows_is_refused(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, ["plan", "--rows", str(RUNS), *words])
    assert isinstance(result.exception, UsageFailure)
    assert "each row names its own run" in str(result.exception)


def test_a_file_for_rows_without_any_is_refused() -> None:
    result = CliRunner().invoke(app, ["plan", "mt-nlg-530b", "--cluster", "selene", "--out", "x.csv"])
    assert isinstance(result.exception, UsageFailure)


def test_another_program_predicts_only_the_rows_whose_runs_it_has(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    with RUNS.open(encoding="utf-8", newline="") as file:
        records = [row for row in csv.DictReader(file) if row["family"] == "torchtitan"]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(records[0]))
        writer.writeheader()
        writer.writerows(records)
    for name in ("mtnlg-parallel", "megatron-lm-2021"):
        told = json.loads(plan("--rows", path, "--software", name, "--json"))
        assert all(f"{name} has not got" in row["why_not"] for row in told["predictions"])
    assert json.loads(plan("--rows", path, "--software", "megatron-core", "--json"))["predicted"] == len(records)


def test_a_row_of_nemo_that_does_not_say_how_it_shards_has_a_distributed_optimizer(tmp_path: Path) -> None:
    zeros = [described(tmp_path, software=name, sharding="").run.zero for name in ("NeMo 25.02", "Megatron-LM core")]
    assert zeros == [1, 0]


@pytest.mark.parametrize(
    "cells",
    [
        {"tp": "4.0", "global_batch": "64.0", "vocab": "256,000"},
        {"dp": "", "cp": "", "vpp": ""},
        {"ffn": "", "kv_groups": "", "vocab": "", "precision": "", "recompute": "", "network": "", "date": ""},
        {"network": "InfiniBand"},
        {"network": "0x HDR200"},
        {"hardware": "NVIDIA h100 80gb sxm"},
        {"hardware": "8 x H200"},
        {"hardware": "B200", "precision": "MXFP8"},
        {"software": "Megatron-LM core v0.7"},
        {"software": "megatron_core 0.9"},
        {"software": "Megatron-Bridge 25.11"},
        {"software": "Megatron Bridge"},
        {"hardware": "H100-94GB"},
        {"software": "Megatron-LM", "date": "2024-03"},
        {"software": "Megatron-LM", "date": ""},
        {"precision": "bfloat16"},
        {"precision": "FP8 (delayed scaling)"},
        {"recompute": "uniform"},
        {"recompute": "core attention"},
        {"sequence_parallel": "True"},
        {"sequence_parallel": ""},
        {"step_seconds": "~3"},
        {"step_seconds": "-1"},
        {"step_seconds": "nan", "tflops_per_gpu": "inf"},
        {"step_seconds": "", "tokens_per_s_per_gpu": "", "tflops_per_gpu": ""},
        {"gpus_per_node": "4"},
        {"gpus_per_node": "6"},
        {"seq": "1048576"},
        {"software": "torchtitan", "tp": "1", "dp": "32", "sharding": "", "recompute": "none"},
        {"software": "torchtitan", "tp": "1", "dp": "32", "sharding": "HSDP 4 x 8", "recompute": "none"},
        {"software": "torchtitan", "tp": "1", "pp": "4", "vpp": "3", "dp": "8", "sharding": "FSDP"},
        {"software": "llm-foundry", "tp": "1", "dp": "32", "sequence_parallel": "no", "arch": "mpt"},
    ],
)
def test_a_row_in_other_words_is_predicted(tmp_path: Path, cells: dict[str, str]) -> None:
    (row,) = rewritten(tmp_path, **cells)
    predicted = predict_row(row)
    assert row.published, row.why_not
    assert 0 < predicted["low_step_seconds"] < predicted["predicted_step_seconds"] < predicted["high_step_seconds"]
    assert predicted["fits"] is (
        predicted["predicted_memory_gb"] < row.published.cluster.gpu.memory_bytes / 1e9 * 0.975
    )
    assert predicted["error"] is None or predicted["error"] > -1


@pytest.mark.parametrize("name", ["H100-96GB", "H100-94GB", "H100 94 GB", "H100-95GB"])
def test_an_h100_of_94_to_96_gb_is_that_of_500_w(tmp_path: Path, name: str) -> None:
    """As torchtitan's two pages of the same machines call it."""
    assert described(tmp_path, hardware=name).cluster.name == "hgx-h100-96gb"


@pytest.mark.parametrize(
    ("network", "cluster"),
    [
        ("4x Omni-Path 100 Gb/s a node (tr11 README)", "jean-zay"),
        ("Jean Zay", "jean-zay"),
        ("Selene: 8x HDR200 InfiniBand a node", "selene"),
        ("8x HDR200 InfiniBand a node", "dgx-a100"),
    ],
)
def test_a_network_names_its_site(tmp_path: Path, network: str, cluster: str) -> None:
    assert described(tmp_path, hardware="A100-80GB", network=network, precision="bf16").cluster.name == cluster


def test_megatron_lm_on_gpus_of_2022_and_later_is_megatron_core(tmp_path: Path) -> None:
    names = []
    for cells in (
        {"software": "Megatron-LM", "date": ""},
        {"software": "Megatron-LM", "date": "2024", "hardware": "A100-80GB", "sequence_parallel": "no"},
        {"software": "Megatron-LM", "date": "2021", "hardware": "A100-80GB", "sequence_parallel": "no"},
        {"software": "Megatron-LM", "date": "Apr 2021", "hardware": "A100-80GB", "sequence_parallel": "no"},
        {"software": "Megatron-LM", "date": "", "hardware": "h100 sxm", "sequence_parallel": "no"},
    ):
        (row,) = rewritten(tmp_path, **cells)
        assert row.published, row.why_not
        names.append(row.published.software.name)
    assert names == ["megatron-core", "megatron-core", "megatron-lm-2021", "megatron-lm-2021", "megatron-core"]


@pytest.mark.parametrize(
    ("words", "zero", "shards"),
    [
        ("FSDP", 3, None),
        ("FSDP2 x8", 3, 8),
        ("ZeRO-3", 3, None),
        ("ZeRO stage 3", 3, None),
        ("HYBRID_SHARD", 3, 8),
        ("FSDP SHARD_GRAD_OP", 2, None),
        ("ZeRO-1", 1, None),
        ("distributed optimizer", 1, None),
        ("none", 0, None),
        ("FSDP NO_SHARD", 0, None),
        ("ZeRO-0", 0, None),
        ("DistributedDataParallel", 0, None),
        ("DDP, distributed optimizer", 1, None),
    ],
)
def test_sharding_is_recognized_by_all_of_its_names(tmp_path: Path, words: str, zero: int, shards: int | None) -> None:
    run = described(tmp_path, sharding=words).run
    assert (run.zero, run.shards) == (zero, shards)


def test_hybrid_shards_are_no_more_than_the_ranks(tmp_path: Path) -> None:
    run = described(tmp_path, sharding="HSDP", gpus="32", tp="8", dp="4", pp="1", cp="1", vpp="1").run
    assert run.state_shards == 4


@pytest.mark.parametrize(
    ("words", "precision"),
    [("amp_fp16", "fp16"), ("16-mixed", "fp16"), ("amp_bf16", "bf16"), ("bf16-mixed", "bf16"), ("amp_fp8", "fp8")],
)
def test_precision_is_recognized_by_other_names(tmp_path: Path, words: str, precision: str) -> None:
    assert described(tmp_path, precision=words).run.precision == precision


def test_a_gated_decoder_without_a_stated_width_is_two_thirds_as_wide_as_a_gpt(tmp_path: Path) -> None:
    """Of three matrices for two, in multiples of 256: Llama's rule."""
    cells = {"ffn": "", "hidden": "4096", "heads": "32", "kv_groups": "32"}
    widths = [described(tmp_path, arch=arch, **cells).run.model.ffn for arch in ("llama", "gpt")]
    assert widths == [11008, 16384]


def test_a_vocabulary_that_nobody_states_is_no_misaligned_one(tmp_path: Path) -> None:
    cells = {"software": "torchtitan", "tp": "1", "dp": "32", "pp": "1", "gpus": "32", "sharding": "FSDP"}
    assert described(tmp_path, **cells, vocab="").run.model.vocabulary == 50304
    assert described(tmp_path, **cells, vocab="50257").run.model.vocabulary == 50257


def test_a_rack_in_one_nvlink_domain_stays_one_whatever_its_trays_are(tmp_path: Path) -> None:
    """GB200: 4 GPUs a tray, 72 a rack; and half a server has half of its adapters."""
    node = described(tmp_path, hardware="GB200", gpus_per_node="4", network="").cluster.node
    assert (node.gpus, node.network_bandwidth / node.gpus) == (72, 50e9)
    node = described(tmp_path, hardware="GB200 NVL72", gpus_per_node="4", network="4x NDR400 a node").cluster.node
    assert (node.gpus, node.network_bandwidth / node.gpus) == (72, 50e9)
    node = described(tmp_path, hardware="H100", gpus_per_node="4", network="").cluster.node
    assert (node.gpus, node.network_bandwidth) == (4, 200e9)


def test_figures_may_have_commas_and_kinds_capitals(tmp_path: Path) -> None:
    (row,) = rewritten(tmp_path, step_seconds="", tokens_per_s_per_gpu="1,234.5")
    assert row.figure("tokens_per_s_per_gpu") == 1234.5
    kinds = [predict_row(rewritten(tmp_path, tflops_kind=kind)[0]) for kind in ("Hardware FLOPs", "hardware")]
    assert kinds[0]["predicted_tflops_per_gpu"] == kinds[1]["predicted_tflops_per_gpu"]


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        ({"precision": "fb8"}, "precision 'fb8' is not known"),
        ({"precision": "fp64"}, "precision 'fp64' is not known"),
        ({"sequence_parallel": "maybe"}, "sequence_parallel 'maybe' is not known"),
        ({"global_batch": "100000000000000"}, "micro-batches"),
    ],
)
def test_a_word_that_nobody_knows_and_a_batch_beyond_simulation_cost_their_row(
    tmp_path: Path, cells: dict[str, str], why: str
) -> None:
    (row,) = rewritten(tmp_path, **cells)
    assert row.published is None
    assert why in row.why_not


@pytest.mark.parametrize("precision", ["BF16", "bfloat16", "amp_bf16/PURE", "mixed", "16-mixed", ""])
def test_usual_words_for_16_bits_are_known(tmp_path: Path, precision: str) -> None:
    assert described(tmp_path, precision=precision).run.precision in {"bf16", "fp16"}
