"""Columns of a file of published runs: their names, others' names of them, and what is no such file."""

from pathlib import Path

import pytest

from mtnlg_model.console import Failure
from mtnlg_parallel.planner.published.predicted import predict_row
from mtnlg_parallel.planner.published.rows import read_rows

RUNS = Path(__file__).parent / "data" / "published_runs.csv"


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


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_columns_are_recognized_by_other_names_and_separators(tmp_path: Path, separator: str) -> None:
    path, own = tmp_path / "rows.csv", (tmp_path / "own.csv")
    names = {
        "GPU": "hardware",
        "# of notes": "# of notes",
        "Num GPUs": "gpus",
        "Model": "model",
        "num_layers": "layers",
        "Hidden size": "hidden",
        "Intermediate size": "ffn",
        "Heads": "heads",
        "KV heads": "kv_groups",
        "Vocab size": "vocab",
        "Seq. len.": "seq",
        "TP": "tp",
        "MBS": "micro_batch",
        "GBS": "global_batch",
        "dtype": "precision",
        "Framework": "software",
        "Tokens/s/GPU": "tokens_per_s_per_gpu",
    }
    sizes = map(str, (32, 4096, 14336, 32, 8, 128256, 8192, 1, 1, 128))
    cells = ["H100", "mine", "8", "Llama 3.1 8B", *sizes, "bf16", "torchtitan", "7000"]
    for file, header in ((path, [*names]), (own, [*names.values()])):
        file.write_text(f"{separator.join(header)}\n{separator.join(cells)}\n", encoding="utf-8")
    (row,), (expected,) = read_rows(path), read_rows(own)
    assert row == expected
    assert row.published, row.why_not
    model = row.published.run.model
    assert (model.mlp, model.kv_heads, model.ffn, row.figure("tokens_per_s_per_gpu")) == ("swiglu", 8, 14336, 7000)


def test_of_two_columns_for_one_thing_that_of_its_own_name_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("hardware,gpus,batch size,global_batch,GBS\nA100-80GB,8,1,64,2\n", encoding="utf-8")
    (row,) = read_rows(path)
    assert row.cells == {"hardware": "A100-80GB", "gpus": "8", "batch size": "1", "global_batch": "64", "GBS": "2"}


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
