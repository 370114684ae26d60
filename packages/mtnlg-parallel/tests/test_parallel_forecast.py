"""The cluster that stands for this machine in a forecast."""

from types import SimpleNamespace

import pytest
import torch
from small_runs import recipe_of

from mtnlg_model.console import UsageFailure
from mtnlg_parallel.launch import preflight
from mtnlg_parallel.launch.preflight import forecast, this_machine
from mtnlg_parallel.layout import Layout


@pytest.mark.parametrize(
    ("name", "cluster"),
    [
        ("NVIDIA H100 80GB HBM3", "dgx-h100"),
        ("NVIDIA H200", "hgx-h200"),
        ("NVIDIA B300 SXM6 AC", "dgx-b300"),
        ("NVIDIA GB300", "gb300-nvl72"),
        ("NVIDIA B200", "dgx-b200"),
        ("NVIDIA GB200", "gb200-nvl72"),
        ("NVIDIA A100-SXM4-80GB", "dgx-a100"),
        ("NVIDIA A100-SXM4-40GB", "dgx-a100-40gb"),
        ("Tesla V100-SXM2-32GB", "dgx1-v100"),
        ("NVIDIA H100 PCIe", "dgx-a100"),
        ("NVIDIA H100 NVL", "dgx-a100"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("AMD Instinct MI300X", "mi300x"),
        ("AMD Instinct MI355X", "mi355x"),
        ("NVIDIA L40S", "dgx-a100"),
    ],
)
def test_gpu_is_planned_as_its_cluster_or_dgx_a100(name: str, cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=1 << 36))
    _, machine = this_machine(Layout(dp=2))
    assert (machine.name, machine.gpu.name, machine.gpu.memory_bytes) == (cluster, name, float(1 << 36))
    known = cluster != "dgx-a100" or "A100" in name
    expected = str(forecast(recipe_of(), None, force=False))
    assert " s per step and " in expected
    assert expected.endswith(f" on {cluster if known else f'{name}, which it does not know and treats as dgx-a100'}")


def test_ranks_on_a_cpu_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "memory_bytes", lambda: 1 << 33)
    monkeypatch.setattr(preflight, "cores", lambda: 2)
    expected = forecast(recipe_of(), None, force=False, device="cpu")
    assert (expected.cluster, expected.seconds) == ("this machine's 2 cores", None)
    line = r"needs .* on each rank's share of 2 cores, .*of its 0\.1 GB a run may use .*train\.shard = \"parameters\""
    with pytest.raises(UsageFailure, match=line):
        forecast(recipe_of({"dp": 64}, batch=64), None, force=False, device="cpu")
    for settings in ({"shard": "parameters"}, {"engine": "deepspeed"}):  # which cannot follow that advice
        with pytest.raises(UsageFailure) as refused:
            forecast(recipe_of({"dp": 64}, batch=64, **settings), None, force=False, device="cpu")
        assert "train.shard" not in str(refused.value)
