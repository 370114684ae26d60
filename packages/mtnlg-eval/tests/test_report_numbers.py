"""Downsampling of curves, and the formats of numbers and layer names."""

from __future__ import annotations

import numpy as np
import pytest

from mtnlg_eval.report.charts.training_charts import MAX_POINTS, abbreviate_layers, downsample
from mtnlg_eval.report.markup import count, duration, percent, short


def test_downsampled_curve_keeps_its_spike_and_its_ends() -> None:
    x = np.arange(80_000.0)
    y = np.sin(x / 5000)
    y[41_234] = 9.0
    y[5] = np.nan
    few_x, few_y = downsample(x, y)
    assert len(few_x) <= MAX_POINTS + 2
    assert few_y[few_x == 41_234] == 9.0
    assert few_x[0] == 0
    assert few_x[-1] == 79_999
    assert (np.diff(few_x) > 0).all()


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (count(-1234567), "\N{MINUS SIGN}1,234,567"),
        (short(999.6), "1.00_k"),
        (short(338_600_000_000), "339_B"),
        (short(12_345), "12.3_k"),
        (short(7), "7"),
        (percent(1, 3), "33.3_%"),
        (percent(1, 0), "\N{EN DASH}"),
        (duration(59.96), "1_min 00_s"),
        (duration(41.26), "41.3_s"),
        (duration(3 * 3600 + 59), "3_h 01_min"),
        (duration(46 * 86400 + 7 * 3600), "46_d 07_h"),
        (
            abbreviate_layers(["embedding", "layers.0", "layers.1", "final_norm"]),
            "embedding, layers 0\N{EN DASH}1, final norm",
        ),
        (abbreviate_layers(["layers.7"]), "layer 7"),
        (abbreviate_layers([]), ""),
    ],
)
def test_numbers_are_formatted_for_reading(written: str, expected: str) -> None:
    assert written.replace("\N{NARROW NO-BREAK SPACE}", "_") == expected
