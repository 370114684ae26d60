"""``mtnlg-parallel calibrate``: the figures of a rank, and the cluster that they make."""

from pathlib import Path

import pytest

from mtnlg_model.settings import dump
from mtnlg_parallel.launch import calibration
from mtnlg_parallel.launch.preflight import this_machine
from mtnlg_parallel.layout import Layout
from mtnlg_parallel.planner.cluster import load_cluster


def test_a_rank_measures_positive_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PRODUCT", "COPIED", "SUMMED"):
        monkeypatch.setattr(calibration, name, {"cpu": 64})
    monkeypatch.setattr(calibration, "LAUNCHES", 20)
    calibration.measure_rank(0, 1, str(tmp_path), "cpu")
    product, copied, launch, _, latency = calibration._read(tmp_path / "0.txt")
    assert min(product, copied, launch, latency) > 0


def test_a_measured_machine_is_a_cluster_with_these_rates(tmp_path: Path) -> None:
    machine = this_machine(Layout(dp=2), "cpu")
    cluster = calibration.measured_cluster(machine, 2, [30e9, 2e9, 7e-6, 0.8e9, 2e-3])
    path = tmp_path / "here.toml"
    path.write_text(dump(cluster), encoding="utf-8")
    assert load_cluster(str(path)) == cluster
    assert cluster.gpu.peak_flops * cluster.measured.gemm == pytest.approx(30e9)
    assert cluster.gpu.memory_bandwidth * cluster.measured.memory == pytest.approx(2e9)
    assert cluster.node.link_bandwidth * cluster.measured.link == pytest.approx(0.8e9)


def test_a_gpu_keeps_its_data_sheet() -> None:
    sheet = load_cluster("dgx-h100")
    cluster = calibration.measured_cluster(sheet, 1, [700e12, 2.9e12, 5e-6, 0.0, 1e-5])
    assert cluster.gpu == sheet.gpu
    assert cluster.measured.gemm == pytest.approx(700 / 989)
    assert (cluster.node.link_bandwidth, cluster.measured.link) == (sheet.node.link_bandwidth, sheet.measured.link)
