"""The manifests of docs/how-to/kubernetes.md fit one another, the layout, our commands' options and statuses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from typer.main import get_command

from mtnlg_parallel.cli import app
from mtnlg_parallel.layout import Layout, parse_layout
from mtnlg_parallel.statuses import Exit

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "kubernetes.md"
MANIFESTS = {
    name: yaml.safe_load(text)
    for name, text in re.findall(r"yaml\n:caption: (\S+)\n\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
}
JOB_SET = MANIFESTS["jobset.yaml"]["spec"]
JOBS = {"spot.yaml": MANIFESTS["spot.yaml"]["spec"], "jobset.yaml": JOB_SET["replicatedJobs"][0]["template"]["spec"]}


def container(job: dict[str, Any]) -> dict[str, Any]:
    (only,) = job["template"]["spec"]["containers"]
    assert isinstance(only, dict)
    return only


def layout_of(words: list[str]) -> Layout:
    """The layout of a train command, whose options are all ours."""
    arguments = words[words.index("train") + 1 :]
    command = get_command(app).commands["train"]  # type: ignore[attr-defined]
    parsed = command.make_context("train", list(arguments)).params
    assert all(str(parsed[name]).startswith("/mnt/train/") for name in ("recipe", "data", "out"))
    return Layout(**parse_layout(parsed["layout"]))


@pytest.mark.parametrize("name", JOBS)
def test_pod_has_gpus_memory_volume_and_time(name: str) -> None:
    job = JOBS[name]
    pod, train = job["template"]["spec"], container(job)
    world = layout_of(train["command"]).world
    assert train["resources"]["limits"]["nvidia.com/gpu"] * job.get("completions", 1) == world
    assert job.get("parallelism") == job.get("completions")
    assert {mount["name"] for mount in train["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert "/dev/shm" in {mount["mountPath"] for mount in train["volumeMounts"]}  # noqa: S108  (a mount of the pod)
    assert (pod["restartPolicy"], pod["terminationGracePeriodSeconds"] >= 60) == ("Never", True)


def test_torchrun_ranks_match_the_layout() -> None:
    job = JOBS["jobset.yaml"]
    words = container(job)["command"]
    options = dict(word.removeprefix("--").split("=", 1) for word in words[1 : words.index("-m")])
    assert int(options["nnodes"]) == job["completions"]
    assert int(options["nproc-per-node"]) == container(job)["resources"]["limits"]["nvidia.com/gpu"]
    name, replicated = MANIFESTS["jobset.yaml"]["metadata"]["name"], JOB_SET["replicatedJobs"][0]["name"]
    assert options["rdzv-endpoint"].startswith(f"{name}-{replicated}-0-0.{JOB_SET['network']['subdomain']}:")
    variables = {variable["name"] for variable in container(job)["env"]}
    assert variables == {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "MTNLG_SECRET"}


def test_the_job_ends_for_mistakes_and_goes_on_after_a_stop() -> None:
    rules = {
        status: rule["action"]
        for rule in JOBS["spot.yaml"]["podFailurePolicy"]["rules"]
        for status in rule.get("onExitCodes", {"values": []})["values"]
    }
    expected = {"person": "FailJob", "stop": "Ignore"}
    assert rules == {status.value: expected[status.cause] for status in Exit if status.cause in expected}
