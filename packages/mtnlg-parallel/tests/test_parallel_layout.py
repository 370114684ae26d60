"""Ranks, groups and stage bounds of any layout, and of the paper's."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtnlg_model.config import ModelConfig
from mtnlg_model.console import UsageFailure
from mtnlg_model.families import PRESETS
from mtnlg_parallel.layout import (
    SLICED_AXES,
    Axis,
    Layout,
    balanced_cuts,
    evaluation_error,
    layout_error,
    parse_layout,
    stages,
)

MT_NLG = Layout(tp=8, pp=35, dp=8)
AXES: tuple[Axis, ...] = ("tp", "cp", "pp", "dp")
layouts = st.builds(Layout, **{axis: st.integers(1, 5) for axis in AXES})


@given(layouts)
def test_ranks_and_coordinates_are_one_to_one(layout: Layout) -> None:
    places = [layout.coordinates(rank) for rank in range(layout.world)]
    assert len(set(places)) == layout.world
    assert [layout.rank(*place) for place in places] == list(range(layout.world))


@given(layouts)
def test_groups_partition_ranks_by_axis(layout: Layout) -> None:
    for axis in AXES:
        groups = layout.groups(axis)
        assert sorted(rank for group in groups for rank in group) == list(range(layout.world))
        for group in groups:
            others = {layout.coordinates(rank)._replace(**{axis: 0}) for rank in group}
            assert len(others) == 1
            assert len(group) == getattr(layout, axis)


@given(layouts)
def test_replicas_hold_the_same_weights(layout: Layout) -> None:
    slices = [layout.replicas(tp, pp) for tp in range(layout.tp) for pp in range(layout.pp)]
    assert sorted(rank for ranks in slices for rank in ranks) == list(range(layout.world))
    assert all(len({layout.coordinates(rank)[:2] for rank in ranks}) == 1 for ranks in slices)
    assert all([layout.copy_number(rank) for rank in ranks] == [*range(layout.copies)] for ranks in slices)


def test_cp_is_between_tp_and_dp() -> None:
    layout = Layout(tp=2, cp=3, pp=2, dp=2)
    assert [layout.groups(axis)[0] for axis in layout.axes] == [[0, 1], [0, 2, 4], [0, 6], [0, 12]]


def test_only_a_layout_with_cp_writes_it() -> None:
    assert str(Layout(tp=2)) == "tp=2,pp=1,dp=1"
    assert str(Layout(tp=2, cp=4)) == "tp=2,cp=4,pp=1,dp=1"
    assert Layout().model_dump_json() == '{"tp":1,"pp":1,"dp":1}'


def test_tp_is_innermost_and_pp_outermost() -> None:
    assert MT_NLG.world == 2240
    assert MT_NLG.groups("tp")[0] == list(range(8))
    assert MT_NLG.groups("dp")[0] == list(range(0, 64, 8))
    assert MT_NLG.groups("pp")[0] == list(range(0, 2240, 64))


def test_paper_has_three_layers_per_stage() -> None:
    cut = stages(PRESETS["mt-nlg-530b"], MT_NLG, recompute="full")
    assert [len(stage.layers) for stage in cut] == [3] * 35
    assert cut[17].parameters == pytest.approx(1.887e9, rel=1e-3)
    assert cut[0].parameters - cut[17].parameters == pytest.approx(131e6 + 42e6, rel=0.01)


@pytest.mark.parametrize("pp", [1, 2, 4])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_stages_hold_the_whole_decoder(tp: int, pp: int) -> None:
    config = ModelConfig(layers=6, hidden=48, heads=4, sequence=32, vocabulary=64)
    cut = stages(config, Layout(tp=tp, pp=pp), recompute="none")
    parts = [part for stage in cut for part in stage.parts]
    assert parts == ["embedding", *(f"layers.{n}" for n in range(6)), "final_norm", "head"]
    assert sum(stage.cost for stage in cut) == pytest.approx(1.0)
    if tp == 1:
        copies = config.vocabulary * config.hidden if pp > 1 else 0
        assert sum(stage.parameters for stage in cut) == config.parameters + copies


def test_costly_head_reduces_layers_of_the_last_stage() -> None:
    small = ModelConfig(layers=8, hidden=64, heads=4, sequence=128, vocabulary=8192)
    cut = stages(small, Layout(pp=2), recompute="none")
    assert len(cut[0].layers) > len(cut[1].layers)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=9), st.data())
def test_no_other_cut_has_a_cheaper_slowest_stage(costs: list[int], data: st.DataObject) -> None:
    parts = data.draw(st.integers(1, len(costs)))

    def costliest(inner: tuple[int, ...]) -> float:
        return max(sum(costs[a:b]) for a, b in pairwise((0, *inner, len(costs))))

    bounds = balanced_cuts(tuple(map(float, costs)), parts)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, len(costs), parts + 1)
    assert all(a < b for a, b in pairwise(bounds))
    assert costliest(bounds[1:-1]) == min(map(costliest, combinations(range(1, len(costs)), parts - 1)))


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (Layout(tp=3), "layout.tp = 3 does not divide model.heads = 16; use 1, 2, 4, 8 or 16"),
        (Layout(pp=25), "layout.pp = 25 stages for model.layers = 24; use 1 to 24"),
        (Layout(tp=16, pp=24), None),
        (Layout(cp=3), "layout.cp = 3 x 2 does not divide model.sequence = 2048; use 2 or 4, or model.sequence = 2052"),
        (Layout(cp=1024), None),
        (Layout(cp=1 << 40), "layout tp=1,cp=1099511627776,pp=1,dp=1 has 1099511627776 ranks; use at most 1048576"),
    ],
)
def test_an_impossible_layout_is_refused_with_the_valid_choices(layout: Layout, message: str | None) -> None:
    assert layout_error(layout, PRESETS["dense-350m"].model_copy(update={"attention_dropout": 0.0})) == message


def test_evaluation_refuses_cp() -> None:
    assert evaluation_error(Layout(tp=2), PRESETS["tiny"]) is None
    assert evaluation_error(Layout(cp=2), PRESETS["tiny"]) == "layout.cp = 2 is for training; use 1"


def test_cp_and_sequence_parallelism_cut_the_same_tokens() -> None:
    short = PRESETS["dense-350m"].model_copy(update={"sequence": 36, "attention_dropout": 0.0})
    assert layout_error(Layout(tp=8, cp=3), short) is None
    assert "layout.cp = 3 x 8" in (layout_error(Layout(tp=8, cp=3), short, sequence_parallel=True) or "")
    assert "model.attention_dropout" in (
        layout_error(Layout(cp=2), short.model_copy(update={"attention_dropout": 0.1})) or ""
    )


def test_a_vocabulary_that_was_not_padded_is_refused() -> None:
    config = ModelConfig(layers=2, hidden=64, heads=4, sequence=32, vocabulary=50257)
    assert layout_error(Layout(tp=2), config) == (
        "layout.tp = 2 does not divide model.vocabulary = 50257; use 1, or pad it: mtnlg-model import "
        "--vocabulary-multiple, or model.vocabulary_padding"
    )
    padded = config.model_copy(update={"vocabulary": 50304, "vocabulary_padding": 47})
    assert layout_error(Layout(tp=2), padded) is None


def test_kv_heads_that_can_be_neither_cut_nor_shared_are_refused() -> None:
    sizes = {"layers": 2, "hidden": 96, "heads": 6, "kv_heads": 2, "sequence": 32, "vocabulary": 510}
    config = ModelConfig.model_validate(sizes)
    assert layout_error(Layout(tp=2), config) is None
    assert layout_error(Layout(tp=3), config) == "layout.tp = 3 does not divide model.kv_heads = 2; use 1 or 2"
    assert layout_error(Layout(tp=6), config) == "layout.tp = 6 does not divide model.kv_heads = 2; use 1 or 2"
    assert layout_error(Layout(tp=6), config.model_copy(update={"head_size": 12})) is None
    assert layout_error(Layout(tp=2), config.model_copy(update={"kv_heads": 1})) is None


def test_every_sliced_parameter_is_one_of_the_decoders() -> None:
    config = PRESETS["tiny"].model_copy(update={"mlp": "swiglu", "tied": False, "head_bias": True})
    names = {*config.outer_shapes(), *config.layer_shapes()}
    assert set(SLICED_AXES) <= names


def test_a_layout_is_parsed_as_it_is_printed() -> None:
    assert parse_layout(str(MT_NLG)) == MT_NLG.model_dump()
    assert parse_layout("pp=2") == {"pp": 2}
    for wrong in ("tp", "tp=two", "xp=2", "", "tp=2,tp=4", "tp=2, tp=2"):
        with pytest.raises(UsageFailure, match="tp=2,pp=2,dp=1"):
            parse_layout(wrong)


def test_a_rank_outside_the_world_is_refused() -> None:
    with pytest.raises(ValueError, match="rank 4"):
        Layout(tp=2, pp=2).coordinates(4)
