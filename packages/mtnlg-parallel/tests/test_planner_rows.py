"""``plan --rows``: published runs read as they are, predicted, and compared with what was measured."""

import csv
import json
from io import StringIO
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mtnlg_model.console import Failure
from mtnlg_parallel.cli import app
from mtnlg_parallel.planner.interval import interval_of
from mtnlg_parallel.planner.programs import load_software
from mtnlg_parallel.planner.published.predicted import COLUMNS, measured_seconds, predict_row
from mtnlg_parallel.planner.published.rows import Row, network_bandwidth, read_rows

RUNS = Path(__file__).parent / "data" / "published_runs.csv"
ROWS = read_rows(RUNS)
PREDICTED = {row.cells["id"]: predict_row(row) for row in ROWS}


def of_family(family: str, *, precision: str | None = None) -> list[Row]:
    rows = [row for row in ROWS if row.cells["family"] == family]
    return [row for row in rows if precision is None or (row.published and row.published.run.precision == precision)]


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


@pytest.mark.parametrize(
    ("family", "precision", "bound"),
    [
        ("vtrain", None, 0.06),
        ("mt-nlg", None, 0.03),
        ("megatron-sc21", None, 0.03),
        ("megatron-2205.05198", None, 0.03),
        ("nvidia-dgxc", "bf16", 0.03),
        ("nvidia-dgxc", "fp8", 0.06),
        ("nvidia-dgxc-gpt3", "bf16", 0.02),
        ("nvidia-dgxc-gpt3", "fp8", 0.03),
        ("torchtitan", None, 0.06),
        ("mosaic-fsdp", None, 0.08),
        ("bloom-prequel", None, 0.09),
    ],
)
def test_published_steps_are_predicted(family: str, precision: str | None, bound: float) -> None:
    errors = [abs(PREDICTED[row.cells["id"]]["error"]) for row in of_family(family, precision=precision)]
    assert len(errors) >= 3
    assert sum(errors) / len(errors) <= bound


def test_every_row_is_predicted_and_no_run_that_ran_is_called_unfit() -> None:
    assert not [row.why_not for row in ROWS if row.published is None]
    assert not [name for name, predicted in PREDICTED.items() if not predicted["fits"]]


def test_intervals_hold_the_steps_they_are_made_from_and_are_of_use() -> None:
    """More than 90 %, as these rows were seen; what left-out hidden sizes give is in docs/decisions/0110."""
    inside = [
        predicted["low_step_seconds"] <= (measured_seconds(row) or 0) <= predicted["high_step_seconds"]
        for row in ROWS
        for predicted in (PREDICTED[row.cells["id"]],)
    ]
    assert sum(inside) / len(inside) >= 0.9
    assert all(p["high_step_seconds"] <= 1.6 * p["low_step_seconds"] for p in PREDICTED.values())


def test_a_program_that_nobody_measured_gets_the_interval_of_all() -> None:
    run = next(row.published.run for row in of_family("nvidia-dgxc", precision="bf16") if row.published)
    ours, theirs = (interval_of(run, load_software(name)) for name in ("mtnlg-parallel-pipeline", "megatron-core"))
    assert "other programs" in ours.kind
    assert ours.high - ours.low > theirs.high - theirs.low


def test_eight_bits_are_a_kind_of_runs_of_their_own() -> None:
    run = next(row.published.run for row in of_family("nvidia-dgxc", precision="fp8") if row.published)
    software = load_software("megatron-core")
    narrow, wide = interval_of(run._replace(precision="bf16"), software), interval_of(run, software)
    assert (narrow.kind.endswith("megatron-core"), wide.kind.endswith("megatron-core fp8")) == (True, True)
    assert wide.high - wide.low > narrow.high - narrow.low


def test_eager_and_compiled_runs_of_torchtitan_err_alike() -> None:
    """Norms and rotary positions of fp32 operations and casts that read twice are what sets them apart."""
    eager, compiled, eight_bit = (
        PREDICTED[f"titan-{name}"]["error"]
        for name in ("t1-bf16 eager", "t3-bf16 torch.compile", "t1-float8 torch.compile")
    )
    assert max(eager, compiled, eight_bit) - min(eager, compiled, eight_bit) <= 0.04


@pytest.mark.parametrize(("family", "bound"), [("bloom-prequel", 0.1), ("torchtitan", 0.105)])
def test_peak_memory_is_predicted_where_it_was_published(family: str, bound: float) -> None:
    pairs = [(PREDICTED[r.cells["id"]]["predicted_memory_gb"], r.figure("memory_gb")) for r in of_family(family)]
    errors = [predicted / measured - 1 for predicted, measured in pairs if measured]
    assert len(errors) >= 5
    assert max(map(abs, errors)) <= bound
    assert sum(map(abs, errors)) / len(errors) <= 0.06
    assert abs(sum(errors)) / len(errors) <= 0.05


def test_the_row_chooses_gpu_network_program_and_shape(tmp_path: Path) -> None:
    (row,) = rewritten(tmp_path)
    assert row.published
    run, cluster, software = row.published
    assert (cluster.name, software.name) == ("dgx-h100", "megatron-core")
    assert (run.model.kv_heads, run.model.tied, run.model.bias, run.sequence_parallel) == (8, False, False, True)
    (row,) = rewritten(tmp_path, hardware="GB200", network="400 Gb/s RDMA a GPU", sharding="ZeRO-3", arch="llama")
    assert row.published
    run, cluster, _ = row.published
    assert (cluster.gpu.name, cluster.node.network_bandwidth) == ("GB200-192GB", 8 * 50e9)
    assert (run.zero, run.model.mlp, run.model.norm) == (3, "swiglu", "rms")


@pytest.mark.parametrize(
    ("text", "bandwidth"),
    [
        ("4x Omni-Path 100 Gb/s a node (tr11 README)", 50e9),
        ("8x NDR400 a node", 400e9),
        ("1600 Gb/s RoCE a node", 200e9),
        ("400 Gb/s RDMA a GPU", 400e9),
        ("Selene: 8x HDR200 InfiniBand a node", 200e9),
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
        ({"recompute": "not stated"}, "recompute 'not stated' is not known"),
        ({"schedule": "DualPipe"}, "schedule 'DualPipe' is not known"),
        ({"schedule": "ZB-H1"}, "megatron-core has not got a zero-bubble schedule; use --software mtnlg-parallel"),
        ({"model": "Mixtral 8x7B"}, "no dense decoder"),
        ({"arch": "deepseek-v3 MLA"}, "no dense decoder"),
        ({"arch": "bert"}, "no dense decoder"),
        ({"kv_groups": "7"}, "does not divide heads"),
        ({"sharding": "FSDP2 x3"}, "no whole number of such groups"),
        ({"heads": "47"}, "heads = 47 does not divide hidden"),
        ({"micro_batch": "3"}, "does not divide the batch"),
        ({"cp": "3", "gpus": "96"}, "cp 3 does not divide"),
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


def test_rates_are_counted_as_the_source_counts_them() -> None:
    """The operations of BLOOM's and Narayanan's rows count what is recomputed, those of llm-foundry do not."""
    for family in ("bloom-prequel", "megatron-sc21", "mosaic-fsdp"):
        for row in of_family(family):
            predicted, rate = PREDICTED[row.cells["id"]], row.figure("tflops_per_gpu")
            assert rate
            ratio = predicted["predicted_tflops_per_gpu"] / rate * (1 + predicted["error"])
            assert ratio == pytest.approx(1, abs=0.04), row.cells["id"]


def test_vtrains_files_are_read_by_their_own_columns(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    header = (
        "note,# GPUs,global batch,micro batch,hidden size,attention heads,# layers,sequence length,tensor parallelism"
    )
    path.write_text(
        f"{header},data parallelism,pipeline parallelism,iteration time (ms)\nmine,8,16,2,2048,16,20,1024,2,2,2,263.1\n"
    )
    (row,) = read_rows(path)
    assert (row.cells["note"], row.cells["step_seconds"]) == ("mine", "0.2631")
    assert row.published
    assert row.published.run.precision == "fp16"
    assert abs(predict_row(row)["error"]) < 0.3


@pytest.mark.parametrize(
    ("text", "words"),
    [("a,b\n1,2\n", "column 'hardware' is missing"), ("hardware,layers\nA100,2\n", "column 'gpus' is missing")],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(Failure, match=words):
        read_rows(path)


def test_odd_lines_and_missing_columns_cost_only_the_rows_that_have_them(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    first, second, *_ = RUNS.read_text(encoding="utf-8").splitlines()
    path.write_text(f"{first}\n{second}\n1,2\n{second},more\n", encoding="utf-8-sig")
    good, short, long = read_rows(path)
    assert good.published
    assert "is not stated" in short.why_not
    assert "more than the" in long.why_not
    path.write_text("hardware,gpus\nA100-80GB,8\n", encoding="utf-8")
    (row,) = read_rows(path)
    assert row.why_not == "layers is not stated"
    assert predict_row(row)["predicted_step_seconds"] is None


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
    assert predicted["fits"] is (predicted["predicted_memory_gb"] < row.published.cluster.gpu.memory_bytes / 1e9 * 0.96)
    assert predicted["error"] is None or predicted["error"] > -1


def test_megatron_lm_on_gpus_of_2022_and_later_is_megatron_core(tmp_path: Path) -> None:
    names = []
    for cells in (
        {"software": "Megatron-LM", "date": ""},
        {"software": "Megatron-LM", "date": "2024", "hardware": "A100-80GB", "sequence_parallel": "no"},
        {"software": "Megatron-LM", "date": "2021", "hardware": "A100-80GB", "sequence_parallel": "no"},
    ):
        (row,) = rewritten(tmp_path, **cells)
        assert row.published, row.why_not
        names.append(row.published.software.name)
    assert names == ["megatron-core", "megatron-core", "megatron-lm-2021"]


def test_fsdp_is_recognized_by_all_of_its_names(tmp_path: Path) -> None:
    stages = {}
    for words in ("FSDP", "FSDP2 x8", "ZeRO-3", "ZeRO stage 3", "HYBRID_SHARD", "FSDP SHARD_GRAD_OP", "ZeRO-1", "none"):
        (row,) = rewritten(tmp_path, sharding=words)
        assert row.published, row.why_not
        stages[words] = (row.published.run.zero, row.published.run.shards)
    assert list(stages.values()) == [(3, None), (3, 8), (3, None), (3, None), (3, 8), (2, None), (1, None), (0, None)]
