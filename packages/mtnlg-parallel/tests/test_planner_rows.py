"""``plan --rows``: published runs read as they are, predicted, and compared with what was measured."""

import csv
import json
import re
from io import StringIO
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mtnlg_model.console import Failure
from mtnlg_parallel.cli import app
from mtnlg_parallel.planner.cluster import load_cluster
from mtnlg_parallel.planner.interval import interval_of, kind_of
from mtnlg_parallel.planner.memory import memory
from mtnlg_parallel.planner.programs import load_software
from mtnlg_parallel.planner.published.predicted import COLUMNS, measured_seconds, predict_row
from mtnlg_parallel.planner.published.rows import PublishedRun, Row, network_bandwidth, read_rows

RUNS = Path(__file__).parent / "data" / "published_runs.csv"
ROWS = read_rows(RUNS)
NEVER_FITTED = read_rows(RUNS.with_name("never_fitted_runs.csv"))
H100 = load_cluster("dgx-h100")
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
        ("nvidia-dgxc-gb200", "bf16", 0.02),
        ("torchtitan", None, 0.06),
        ("mosaic-fsdp", None, 0.08),
        ("bloom-prequel", None, 0.09),
    ],
)
def test_published_steps_are_predicted(family: str, precision: str | None, bound: float) -> None:
    errors = [abs(PREDICTED[row.cells["id"]]["error"]) for row in of_family(family, precision=precision)]
    assert len(errors) >= 3
    assert sum(errors) / len(errors) <= bound


@pytest.mark.parametrize(
    ("family", "hardware", "precision", "bound"),
    [
        ("nvidia-dgxc", "H100", "bf16", 0.03),
        ("nvidia-dgxc", "H100", "fp8", 0.06),
        ("nvidia-dgxc-2025", "H100", "bf16", 0.03),
        ("nvidia-dgxc-2025", "H100", "fp8", 0.05),
        ("nvidia-dgxc-2025", "GB200", "fp8", 0.08),
        ("nemo-summary", "H100", "fp8", 0.07),
        ("nemo-summary", r"\bB200", "fp8", 0.08),
        ("nemo-summary", "GB200", "fp8", 0.08),
        ("nemo-long", "H100", "fp8", 0.12),
        ("torchtitan", "H100", None, 0.13),
        ("mosaic-fsdp", "H100", "bf16", 0.08),
        ("mosaic-fsdp", "H100", "fp8", 0.12),
        ("mosaic-fsdp", "A100", None, 0.08),
        ("bloom-prequel", "A100", None, 0.09),
    ],
)
def test_runs_to_which_nothing_was_fitted_are_predicted(
    family: str, hardware: str, precision: str | None, bound: float
) -> None:
    """The bounds are those of test_published_steps_are_predicted where the kind of run is the same."""
    errors = []
    for row in NEVER_FITTED:
        if row.cells["family"] != family or not re.search(hardware, row.cells["hardware"]) or not row.published:
            continue
        seconds = measured_seconds(row)
        if seconds and precision in {None, row.published.run.precision}:
            errors.append(abs(predict_row(row)["predicted_step_seconds"] / seconds - 1))
    assert len(errors) >= 4
    assert sum(errors) / len(errors) <= bound


def test_intervals_hold_runs_to_which_nothing_was_fitted() -> None:
    inside = []
    for row in NEVER_FITTED:
        if seconds := measured_seconds(row):
            predicted = predict_row(row)
            inside.append(predicted["low_step_seconds"] <= seconds <= predicted["high_step_seconds"])
    assert len(inside) >= 300
    assert 0.85 <= sum(inside) / len(inside) <= 0.96


def test_what_ran_fits_and_what_did_not_does_not() -> None:
    """Of BLOOM's six trials without memory one is counted as its neighbours, which ran (docs/decisions/0189)."""
    fits = {row.cells["id"]: predict_row(row)["fits"] for row in NEVER_FITTED if row.published}
    failed = [row.cells["id"] for row in NEVER_FITTED if row.cells["caveat"] == "OOM"]
    assert [name for name in fits if not fits[name] and name not in failed] == []
    assert len(failed) == 6
    assert [name for name in failed if fits[name]] == ["bloom-h14336-l82-a128-dp8tp4pp12-mb2-b2048-b"]


def test_the_only_runs_that_are_refused_are_of_a_program_that_nobody_has() -> None:
    assert {row.why_not for row in NEVER_FITTED if not row.published} == {
        "software 'Meta, internal' is not known to the planner"
    }


def test_an_optimizer_of_nemo_keeps_what_bf16_lacks_of_a_weight(tmp_path: Path) -> None:
    """16 bits beside the weight's own 16 (store_param_remainders), where Megatron-LM keeps a weight of 32."""
    masters = [
        fullest.master / fullest.moments
        for name in ("NeMo 24.09", "Megatron-Bridge 25.09", "Megatron-LM core v0.7")
        for run, _, software in (described(tmp_path, software=name),)
        for fullest in memory(run, software)[:1]
    ]
    assert masters == [0.25, 0.25, 0.5]


def test_every_row_is_predicted_and_no_run_that_ran_is_called_unfit() -> None:
    assert not [row.why_not for row in ROWS if row.published is None]
    assert not [name for name, predicted in PREDICTED.items() if not predicted["fits"]]


def test_intervals_hold_the_steps_they_are_made_from_and_are_of_use() -> None:
    """90 % and more, as these rows were seen; what left-out hidden sizes give is in docs/decisions/0170.

    Of torchtitan's 14 runs in 8 bits two err by more than 20 %, so its interval cannot be as narrow as the others'.
    """
    inside = [
        predicted["low_step_seconds"] <= (measured_seconds(row) or 0) <= predicted["high_step_seconds"]
        for row in ROWS
        for predicted in (PREDICTED[row.cells["id"]],)
    ]
    assert sum(inside) / len(inside) >= 0.9
    for row in ROWS:
        predicted, (run, _, software) = PREDICTED[row.cells["id"]], row.published or pytest.fail(row.why_not)
        most = 1.65 if kind_of(run, software) == "torchtitan fp8" else 1.43
        assert predicted["high_step_seconds"] <= most * predicted["low_step_seconds"]


def test_a_program_that_nobody_measured_gets_the_interval_of_all() -> None:
    run = next(row.published.run for row in of_family("nvidia-dgxc", precision="bf16") if row.published)
    ours, theirs = (
        interval_of(run, H100, load_software(name)) for name in ("mtnlg-parallel-pipeline", "megatron-core")
    )
    assert "all programs" in ours.kind
    assert ours.high - ours.low > theirs.high - theirs.low


def test_rows_that_nobody_measured_make_no_interval() -> None:
    """Of vTrain's rows 14 of many nodes were measured, and 196 of one node computed (docs/decisions/0172)."""
    run = next(row.published.run for row in of_family("vtrain") if row.published)
    interval = interval_of(run, load_cluster("dgx-a100"), load_software("megatron-deepspeed"))
    assert interval.kind == "14 runs of megatron-deepspeed"


def test_eight_bits_are_a_kind_of_runs_of_their_own() -> None:
    run = next(row.published.run for row in of_family("nvidia-dgxc", precision="fp8") if row.published)
    software = load_software("megatron-core")
    narrow, wide = (interval_of(each, H100, software) for each in (run._replace(precision="bf16"), run))
    assert (narrow.kind.endswith("megatron-core"), wide.kind.endswith("megatron-core fp8")) == (True, True)
    assert wide.high - wide.low > narrow.high - narrow.low


@pytest.mark.parametrize("name", ["dgx-b200", "gb200-nvl72", "dgx1-v100"])
def test_a_gpu_that_nobody_measured_gets_an_interval_no_narrower_than_that_of_all(name: str) -> None:
    run = next(row.published.run for row in of_family("nvidia-dgxc", precision="bf16") if row.published)
    core = load_software("megatron-core")
    measured, new, other = (
        interval_of(run, load_cluster(cluster), program)
        for cluster, program in (("dgx-h100", core), (name, core), ("dgx-h100", load_software("mtnlg-parallel")))
    )
    assert (new.low, new.high) == (min(measured.low, other.low), max(measured.high, other.high))
    assert new.kind == f"{measured.kind}, none of them on this GPU"


@pytest.mark.parametrize(("name", "known"), [("NVIDIA H100 80GB HBM3", True), ("NVIDIA H100 PCIe", False)])
def test_a_gpu_that_the_driver_names_has_the_interval_of_its_data_sheets_name(name: str, known: bool) -> None:
    """As in a cluster that ``calibrate`` wrote."""
    run = next(row.published.run for row in of_family("nvidia-dgxc", precision="bf16") if row.published)
    here = H100.model_copy(update={"gpu": H100.gpu.model_copy(update={"name": name})})
    ours, shipped = (interval_of(run, each, load_software("megatron-core")) for each in (here, H100))
    assert (ours == shipped) is known


def test_a_row_of_a_gpu_without_bfloat16_that_does_not_say_its_precision_ran_in_fp16(tmp_path: Path) -> None:
    cells = {"hardware": "V100-32GB", "software": "Megatron-LM", "date": "2020", "sequence_parallel": "no"}
    assert described(tmp_path, **cells, precision="").run.precision == "fp16"
    (row,) = rewritten(tmp_path, **cells, precision="bf16")
    assert "no products of bfloat16" in row.why_not


def test_eager_and_compiled_runs_of_torchtitan_err_alike() -> None:
    """Norms and rotary positions of fp32 operations and casts that read twice are what sets them apart."""
    eager, compiled, eight_bit = (
        PREDICTED[f"titan-{name}"]["error"]
        for name in ("t1-bf16 eager", "t3-bf16 torch.compile", "t1-float8 torch.compile")
    )
    assert max(eager, compiled, eight_bit) - min(eager, compiled, eight_bit) <= 0.04


@pytest.mark.parametrize(("family", "bound"), [("bloom-prequel", 0.1), ("torchtitan", 0.06)])
def test_peak_memory_is_predicted_where_it_was_published(family: str, bound: float) -> None:
    """In GB, torchtitan's in GiB, as its metrics print what the allocator reserved."""
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


def described(tmp_path: Path, **cells: str) -> PublishedRun:
    (row,) = rewritten(tmp_path, **cells)
    assert row.published, row.why_not
    return row.published


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
