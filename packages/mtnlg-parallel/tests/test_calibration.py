"""``mtnlg-parallel calibrate``: the figures of a rank, and the cluster that they make."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from mtnlg_model.config import ModelConfig
from mtnlg_model.settings import dump
from mtnlg_parallel.launch import calibration
from mtnlg_parallel.launch.preflight import this_machine
from mtnlg_parallel.layout import Layout
from mtnlg_parallel.planner.cluster import load_cluster
from mtnlg_parallel.planner.costs.products import gemm_seconds
from mtnlg_parallel.planner.programs import load_software
from mtnlg_parallel.planner.run import Run
from mtnlg_parallel.planner.step import predict


def test_a_rank_measures_positive_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PRODUCT", "COPIED", "SUMMED"):
        monkeypatch.setattr(calibration, name, {"cpu": 64})
    monkeypatch.setattr(calibration, "LAYERS", 1)
    calibration.measure_rank(0, 1, str(tmp_path), "cpu")
    product, copied, launch, _, latency = map(float, (tmp_path / "0.txt").read_text().split())
    assert min(product, copied, launch, latency) > 0


def test_calibration_writes_a_cluster_with_measured_rates(tmp_path: Path) -> None:
    machine = this_machine(Layout(dp=2), "cpu")
    cluster = calibration.measured_cluster(machine, 2, [30e9, 2e9, 7e-6, 0.8e9, 2e-3])
    path = tmp_path / "here.toml"
    path.write_text(dump(cluster), encoding="utf-8")
    assert load_cluster(str(path)) == cluster
    assert cluster.gpu.memory_bandwidth * cluster.measured.memory == pytest.approx(2e9)
    assert cluster.node.link_bandwidth * cluster.measured.link == pytest.approx(0.8e9)


def test_calibration_keeps_data_sheet_figures_of_the_gpu() -> None:
    sheet = load_cluster("dgx-h100")
    cluster = calibration.measured_cluster(sheet, 1, [700e12, 2.9e12, 5e-6, 0.0, 1e-5])
    assert cluster.gpu == sheet.gpu
    assert (cluster.node.link_bandwidth, cluster.measured.link) == (sheet.node.link_bandwidth, sheet.measured.link)


@pytest.mark.parametrize(
    ("device", "rate", "copied"), [("cuda", 700e12, 2.9e12), ("cuda", 820e12, 3e12), ("cpu", 9e10, 2e9)]
)
def test_measured_product_is_priced_as_measured(device: str, rate: float, copied: float) -> None:
    machine = this_machine(Layout(dp=2), "cpu") if device == "cpu" else load_cluster("dgx-h100")
    cluster = calibration.measured_cluster(machine, 2, [rate, copied, 5e-6, 1e9, 1e-5])
    size = calibration.PRODUCT[device]
    seconds = gemm_seconds(cluster, size, size, size, width=4 if device == "cpu" else 2)
    assert seconds == pytest.approx(2 * size**3 / rate, rel=1e-6)


def test_ranks_sharing_a_processor_take_turns() -> None:
    """Stages of one micro-batch never compute at once, and share a processor for nothing; of many they take turns."""
    cluster = load_cluster("dgx-a100")
    shared = cluster.model_copy(update={"node": cluster.node.model_copy(update={"processors": 1})})
    model = ModelConfig(layers=8, hidden=4096, heads=32, sequence=2048, vocabulary=8192)
    program = load_software("megatron-lm")
    for batch, ratio in ((1, 1.0), (64, 2.0)):
        run = Run(model, Layout(pp=2), batch)
        alone, together = (predict(run._replace(cluster=each, software=program)).seconds for each in (cluster, shared))
        assert together / alone == pytest.approx(ratio, rel=0.1)


def test_cpu_ranks_share_the_cores_in_turns() -> None:
    few, many = (this_machine(Layout(dp=ranks), "cpu") for ranks in (1, 64))
    assert (few.node.processors, many.node.gpus) == (1, 64)
    assert many.node.processors
    assert many.node.processors <= few.gpu.peak_flops / many.gpu.peak_flops


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
    machine = this_machine(Layout(dp=2))
    assert (machine.name, machine.gpu.name, machine.gpu.memory_bytes) == (cluster, name, float(1 << 36))
