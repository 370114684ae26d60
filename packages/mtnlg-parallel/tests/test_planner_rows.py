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
        writer = csv.DictWriter(file, list(record))
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
        ("torchtitan", None, 0.08),
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
    ours, theirs = (interval_of(load_software(name)) for name in ("mtnlg-parallel-pipeline", "megatron-core"))
    assert "other programs" in ours.kind
    assert ours.high - ours.low > theirs.high - theirs.low


@pytest.mark.parametrize(("family", "bound"), [("bloom-prequel", 0.12), ("torchtitan", 0.16)])
def test_peak_memory_is_predicted_where_it_was_published(family: str, bound: float) -> None:
    pairs = [(PREDICTED[r.cells["id"]]["predicted_memory_gb"], r.figure("memory_gb")) for r in of_family(family)]
    errors = [predicted / measured - 1 for predicted, measured in pairs if measured]
    assert len(errors) >= 5
    assert max(map(abs, errors)) <= bound
    assert sum(map(abs, errors)) / len(errors) <= 0.07


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
    [("a,b\n1,2\n", "column 'hardware' is missing"), ("hardware,gpus\nA100\n", "column 'layers' is missing")],
)
def test_a_file_without_the_columns_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(Failure, match=words):
        read_rows(path)


def test_a_line_with_too_few_fields_is_refused_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    first, second, *_ = RUNS.read_text(encoding="utf-8").splitlines()
    path.write_text(f"{first}\n{second}\n1,2\n", encoding="utf-8")
    with pytest.raises(Failure, match="line 3"):
        read_rows(path)
