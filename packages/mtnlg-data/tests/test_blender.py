"""Which source and which window a sample is: the blend of the sources and the order within an epoch, by arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtnlg_data.stream import (
    Blender,
    Permutation,
    apportion,
    position_in_block,
)
from mtnlg_data.tokens.blend import UNITS

#: paper.md 4.1: weight, printed epochs and tokens (in 1e9) of the fifteen datasets, in the order of the table.
PAPER = {
    "Books3": (0.14336, 1.5, 25.7),
    "OpenWebText2": (0.19336, 3.6, 14.8),
    "Stack Exchange": (0.05689, 1.4, 11.6),
    "PubMed Abstracts": (0.02897, 1.8, 4.4),
    "Wikipedia": (0.04771, 3.2, 4.2),
    "Gutenberg": (0.00873, 0.9, 2.7),
    "BookCorpus2": (0.01007, 1.8, 1.5),
    "NIH ExPorter": (0.00208, 1.8, 0.3),
    "ArXiv": (0.01359, 0.2, 20.8),
    "GitHub": (0.01588, 0.2, 24.3),
    "Pile-CC": (0.09446, 0.5, 49.8),
    "CC-2020-50": (0.13017, 0.5, 68.7),
    "CC-2021-04": (0.15652, 0.5, 82.6),
    "RealNews": (0.08962, 1.1, 21.9),
    "CC-Stories": (0.00859, 0.5, 5.3),
}


weights = st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=15)


# --- the blend -------------------------------------------------------------------------------------------------------


@given(total=st.integers(0, 10**15), shares=st.lists(st.integers(1, 10**12), min_size=1, max_size=20))
def test_an_apportionment_is_whole_and_within_one_of_every_share(total: int, shares: list[int]) -> None:
    parts = apportion(total, shares)
    assert sum(parts) == total
    assert all(abs(part - Fraction(total * share, sum(shares))) < 1 for part, share in zip(parts, shares, strict=True))


@given(quotas=st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any))
def test_block_position_equals_sorted_midpoints(quotas: list[int]) -> None:
    midpoints = [(Fraction(2 * j + 1, 2 * q), k, j) for k, q in enumerate(quotas) for j in range(q)]
    assert [position_in_block(quotas, p) for p in range(sum(quotas))] == [(k, j) for _, k, j in sorted(midpoints)]


@given(shares=weights)
def test_units_sum_to_two_to_the_32_and_blocks_are_never_in_debt(shares: list[float]) -> None:
    blender = Blender(shares)
    assert sum(blender.units) == UNITS
    assert blender.block >= 1024
    assert blender.block.bit_count() == 1
    assert blender.block * min(blender.units) >= UNITS


@settings(max_examples=40)
@given(shares=weights, start=st.integers(0, 10**12), data=st.data())
def test_every_prefix_and_range_follows_the_weights(shares: list[float], start: int, data: st.DataObject) -> None:
    """The bounds of the module's docstring, at any place of an endless stream, by exact arithmetic."""
    blender = Blender(shares)
    first = start - start % blender.block if data.draw(st.booleans()) else start
    length = data.draw(st.integers(1, 1500))
    count, block = len(shares), blender.block
    taken = [-1] * count
    for n in range(first, first + length):
        source, draw = blender.draw(n)
        assert taken[source] in (-1, draw - 1)  # a source's draws are numbered without a gap
        taken[source] = draw
        share = Fraction(blender.units[source], UNITS)
        prefix = Fraction(3, 2) + Fraction(count, 2) * (share + Fraction(2, block))
        assert abs(draw + 1 - (n + 1) * share) < prefix
        assert abs(draw - n * share) < prefix
    before = apportion(first - first % block, blender.units)
    assert all(
        abs(b - (first - first % block) * Fraction(u, UNITS)) < 1 for b, u in zip(before, blender.units, strict=True)
    )


def test_paper_blend_deviation_is_bounded() -> None:
    """Measured over 64 blocks: 1.47 and 2.81; what the docstring promises of any blend is 3.0 and 6.0 here."""
    blender = Blender([weight for weight, _, _ in PAPER.values()])
    sources = np.array([blender.draw(n)[0] for n in range(64 * 1024)])
    for k, unit in enumerate(blender.units):
        drift = np.cumsum(sources == k) - np.arange(1, len(sources) + 1) * (unit / UNITS)
        assert np.abs(drift).max() < 1.5
        assert np.ptp(drift) < 3


def test_the_papers_blend_gives_the_epochs_that_the_paper_prints() -> None:
    """All fifteen at once, at the paper's sizes: to half a unit of the last digit of printed epochs and printed sizes.

    That takes a run of 275.0 to 278.4 B tokens, a little over the 270 B that were trained on (paper.md 4.1): at 270 B
    four of them would have printed less.
    """
    blender = Blender([weight for weight, _, _ in PAPER.values()])

    def wrong(tokens: float) -> list[str]:
        samples = int(tokens) // 2048
        given = apportion(samples - samples % blender.block, blender.units)
        names = []
        for count, (name, (_, printed, billions)) in zip(given, PAPER.items(), strict=True):
            least, most = (count * 2048 / ((billions + half) * 1e9) for half in (0.05, -0.05))
            if most < printed - 0.05 or least > printed + 0.05:
                names.append(name)
        return names

    assert wrong(275.5e9) == wrong(278e9) == []
    assert wrong(270e9) == ["OpenWebText2", "Stack Exchange", "Wikipedia", "CC-Stories"]


def test_paper_position_needs_no_earlier_positions() -> None:
    """270 B tokens are 131,835,937 samples: draws far into it follow on one another as those at its beginning do."""
    blender = Blender([weight for weight, _, _ in PAPER.values()])
    last = 270 * 10**9 // 2048
    far = [blender.draw(n) for n in range(last - 3 * blender.block, last)]
    for source, unit in enumerate(blender.units):
        draws = [draw for k, draw in far if k == source]
        assert draws == list(range(draws[0], draws[0] + len(draws)))
        assert abs(draws[-1] + 1 - last * unit / UNITS) < 3


def test_smallest_weight_gets_one_sample_in_four_billion() -> None:
    blender = Blender([UNITS - 1.0, 1.0])
    assert blender.block == UNITS
    middle = UNITS // 2
    assert [blender.draw(n) for n in (0, middle - 1)] == [(0, 0), (0, middle - 1)]
    assert (1, 0) in [blender.draw(n) for n in range(middle - 1, middle + 1)]
    assert blender.draw(UNITS - 1) == (0, UNITS - 2)


# --- the permutation -------------------------------------------------------------------------------------------------


@given(size=st.integers(1, 3000), seed=st.integers(), source=st.text(), epoch=st.integers(0, 10**6))
def test_a_permutation_visits_everything_once(size: int, seed: int, source: str, epoch: int) -> None:
    permutation = Permutation(size, seed, source, epoch)
    assert sorted(map(permutation, range(size))) == list(range(size))


@given(size=st.integers(1, 1 << 60), position=st.integers(0))
def test_a_permutation_of_any_size_stays_inside(size: int, position: int) -> None:
    assert 0 <= Permutation(size, 1, "a", 0)(position % size) < size


@pytest.mark.parametrize("size", [3, 5, 12])
def test_every_place_goes_everywhere_equally_often(size: int) -> None:
    """Chi-square of place by value over 2,000 epochs: (size - 1)**2 degrees; six standard deviations allowed."""
    epochs = 2000
    table = np.zeros((size, size))
    for epoch in range(epochs):
        permutation = Permutation(size, 0, "a", epoch)
        for position in range(size):
            table[position, permutation(position)] += 1
    chi_square = ((table - epochs / size) ** 2 / (epochs / size)).sum()
    degrees = (size - 1) ** 2
    assert abs(chi_square * (size - 1) / size - degrees) < 6 * np.sqrt(2 * degrees) + degrees * 0.1


def test_neighbours_do_not_stay_neighbours() -> None:
    """|p(i+1) - p(i)| of a random order has mean size / 3; here within four standard errors."""
    size = 10_007
    order = np.array([Permutation(size, 5, "a", 0)(i) for i in range(size)])
    gaps = np.abs(np.diff(order))
    assert abs(gaps.mean() - size / 3) < 4 * size / np.sqrt(18 * size)
    assert (gaps == 1).sum() < 20
