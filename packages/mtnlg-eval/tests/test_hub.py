"""Rows of the hub become the same documents as the published files. No network."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasets
import pytest

from mtnlg_eval import hub as hub_module
from mtnlg_eval.results.provenance import provenance
from mtnlg_eval.scoring.cells import TaskOptions
from mtnlg_eval.scoring.harness import Evaluation
from mtnlg_eval.tasks.paper_task import paper_task
from mtnlg_eval.tasks.rows import ROWS
from mtnlg_eval.tasks.sources import open_rows
from mtnlg_model.console import UsageFailure

if TYPE_CHECKING:
    from collections.abc import Callable

# A row of each data set, under its name there, as its features are; labels are numbers or text as the hub has them.
HUB: dict[str, tuple[str, str | None, str, dict[str, Any]]] = json.loads(
    Path(__file__).with_name("hub_rows.json").read_text()
)
POOLS = {"lambada": "test", "race_h": "test", "anli_r2": "train_r2"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """Replace the hub; returns the list of data sets requested."""
    requested: list[tuple[str, str | None]] = []

    def load_dataset(path: str, name: str | None = None, **_: object) -> dict[str, list[dict[str, Any]]]:
        requested.append((path, name))
        for task, (own_path, own_name, split, row) in HUB.items():
            if (own_path, own_name) == (path, name):
                return {split: [row], POOLS.get(task, "train"): [row]}
        raise AssertionError(path)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return requested


@pytest.mark.parametrize("name", ROWS)
def test_a_task_takes_its_rows_from_its_data_set(name: str, hub: list[tuple[str, str | None]]) -> None:
    path, dataset, _, row = HUB[name]
    task = paper_task(name)
    assert hub == [(path, dataset)]
    expected = ROWS[name].model_validate(row).documents()
    assert task.eval_docs == task.rows.shots == expected
    published = open_rows(name, None)
    assert [text for _, text in published.texts()] == list(dict.fromkeys(ROWS[name].model_validate(row).texts()))


def test_a_commit_of_rows_is_asked_for_and_recorded(
    hub: list[tuple[str, str | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    load_dataset, asked = datasets.load_dataset, list[object]()
    commit = "0123456789abcdef0123456789abcdef01234567"

    class Split(list[dict[str, Any]]):
        info = datasets.DatasetInfo(
            download_checksums={
                f"hf://datasets/aps/super_glue@{commit}/boolq/{name}.parquet": {} for name in ("train", "validation")
            }
        )

    def with_addresses(path: str, name: str | None = None, **options: object) -> dict[str, Any]:
        asked.append(options.get("revision"))
        return {split: Split(rows) for split, rows in load_dataset(path, name, **options).items()}

    assert paper_task("boolq").rows.revision is None
    monkeypatch.setattr(datasets, "load_dataset", with_addresses)
    assert paper_task("boolq").rows.revision == commit
    assert provenance(None, 1.0, commit).rows_revision == commit
    Evaluation(["boolq"], ["0"], TaskOptions(revisions={"boolq": commit}))
    assert asked == [None, commit]
    assert hub


@pytest.mark.parametrize(
    ("revisions", "line"),
    [
        (["boolq"], "--revision boolq: needs TASK=COMMIT"),
        (["hans=a"], "--revision hans=a: no such task with a data set on the hub; choose from boolq"),
        (["wic=a"], "--revision wic=a: no such task with a data set on the hub"),
        (["boolq=a", "boolq=b"], "--revision boolq=a, boolq=b: a task is given twice"),
        (["boolq=a", "--data"], "--revision boolq=a: --data gives the rows; use only one of the two"),
    ],
)
def test_a_wrong_revision_is_refused(
    revisions: list[str], line: str, run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for each in revisions for word in (["--revision", each] if each != "--data" else [each, tmp_path])]
    assert run("run", tmp_path, "--out", tmp_path / "out", "--tasks", "boolq,hans", *words) == UsageFailure.exit_status
    assert line in capsys.readouterr().err


def test_unreachable_hub_is_reported_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(hub_module, "SECONDS", 0.01)
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "0")
    stuck = threading.Event()  # as a name whose resolution never ends

    def urlopen(*_: object, **__: object) -> None:
        stuck.wait()
        raise OSError

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
    hub_module.reach_hub.cache_clear()
    assert not hub_module.reach_hub()
    assert not hub_module.reach_hub()
    assert os.environ["HF_HUB_OFFLINE"] == os.environ["HF_DATASETS_OFFLINE"] == "1"
    assert capsys.readouterr().err.count("no answer; only files fetched earlier are used") == 1
    assert datasets.config.HF_HUB_OFFLINE
    stuck.set()
    hub_module.reach_hub.cache_clear()
