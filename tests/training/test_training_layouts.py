"""Runs that change layout, engine and precision on the way, and what must not depend on these: bits, masks, dtypes.

That every layout, schedule and precision trains like one plain loop, `test_conformance` shows for the engines.
"""

from pathlib import Path

import pytest

from mtnlg_model.checkpoint.manifest import latest
from mtnlg_model.checkpoint.reader import Checkpoint
from mtnlg_parallel.layout import stages
from mtnlg_parallel.recipe import Recipe
from training.reference_loop import (
    FP32,
    Json,
    Reference,
    RunRanks,
    assert_holds,
    assert_same_steps,
    recipe_of,
    reference_run,
)

BF16_LOSS = 2**-8


def trained(run_ranks: RunRanks, recipe: Recipe, data: Path, out: Path, **more: object) -> list[Json]:
    """Train one recipe; each rank's result."""
    return [answers[0] for answers in run_ranks("train", [recipe], data=data, outs=[out], **more)]


FOUR_LAYERS = {"layers": 4}


@pytest.fixture(scope="module")
def four_layers(data: Path) -> Reference:
    return reference_run(recipe_of(model=FOUR_LAYERS), data)


def test_a_run_goes_from_one_engine_and_schedule_to_another(
    four_layers: Reference, run_ranks: RunRanks, data: Path, tmp_path: Path
) -> None:
    steps: list[Json] = []
    parts: list[tuple[tuple[int, ...], int, Json]] = [
        ((2, 1, 1), 24, {"engine": "deepspeed"}),
        ((1, 1, 1, 2), 32, {}),
        ((1, 2, 1), 40, {"schedule": "zero-bubble", "chunks": 2}),
        ((1, 1, 2), 52, {"engine": "deepspeed", "sequence_parallel": False}),
        ((2, 2, 1), 68, {"schedule": "interleaved", "chunks": 2}),
        ((1, 1, 2), 72, {"shard": "parameters"}),
        ((1, 2, 1, 2), 76, {}),
        ((1, 2, 2), 84, {}),
    ]
    for layout, samples, changes in parts:
        recipe = recipe_of(layout, FOUR_LAYERS, samples=samples, **changes)
        ranks = trained(run_ranks, recipe, data, tmp_path)
        steps += ranks[0]["steps"]
        if "chunks" not in changes:
            cut = stages(recipe.model, recipe.layout, recipe.train.recompute)
            held = [cut[recipe.layout.coordinates(rank).pp].parameters for rank in range(recipe.layout.world)]
            assert [rank["parameters"] for rank in ranks] == held, "a rank holds only its own stage"
    assert_same_steps(steps, four_layers[0])
    assert_holds(latest(tmp_path / "checkpoints"), four_layers[1])
    progress = Checkpoint.open(tmp_path / "checkpoints" / f"step-{len(steps)}").progress
    assert (progress.samples, progress.layout.model_dump()) == (84, {"tp": 1, "pp": 2, "dp": 2})


def test_activations_kept_on_the_host_change_no_bit(run_ranks: RunRanks, data: Path, tmp_path: Path) -> None:
    """With dropout, each kind of recomputation, and weight gradients that wait."""
    model = {**FOUR_LAYERS, "dropout": 0.1, "attention_dropout": 0.1}
    same: Json = {"schedule": "zero-bubble", "chunks": 2, "samples": 24}
    kinds = [(r, offload) for r in ("none", "selective", "full") for offload in (False, True)]
    recipes = [recipe_of((2, 2, 1), model, recompute=r, offload_activations=o, **same) for r, o in kinds]
    outs = [tmp_path / str(number) for number in range(len(recipes))]
    answers = run_ranks("train", recipes, data=data, outs=outs)[0]
    kept, moved = ([losses_and_norms(answer["steps"]) for answer in answers[first::2]] for first in (0, 1))
    assert moved == kept
    assert all(answer["passes_moved_out"] > 10 for answer in answers[1::2])


@pytest.mark.parametrize(
    ("layout", "changes"),
    [
        ((2, 1, 2), {"precision": "bf16"}),
        ((2, 1, 2), {"precision": "bf16", "engine": "deepspeed"}),
        ((1, 2, 2), {"precision": "bf16", "schedule": "zero-bubble", "chunks": 2}),
        ((2, 1, 2), {"precision": "bf16", "gradients": "bf16"}),
        ((2, 1, 2), {"precision": "fp8", "engine": "deepspeed"}),
        ((2, 2, 1), {"precision": "fp8", "schedule": "interleaved", "chunks": 2, "recompute": "none"}),
    ],
    ids=["bf16", "bf16-deepspeed", "bf16-zero-bubble", "bf16-sums", "fp8-deepspeed", "fp8-interleaved"],
)
def test_resumes_to_the_last_bit(
    layout: tuple[int, int, int], changes: Json, run_ranks: RunRanks, data: Path, tmp_path: Path
) -> None:
    model = {"layers": 4, "hidden": 32}  # of 16 columns a head, the fewest that 8-bit products take
    parts = [recipe_of(layout, model, samples=samples, **changes) for samples in (40, 16, 40)]
    outs = [tmp_path / "whole", tmp_path / "halves", tmp_path / "halves"]
    whole, first, second = (answer["steps"] for answer in run_ranks("train", parts, data=data, outs=outs)[0])
    assert losses_and_norms([*first, *second]) == losses_and_norms(whole)


@pytest.mark.parametrize(
    ("layout", "changes", "summed"),
    [
        ((1, 1, 2), {"engine": "deepspeed", "sequence_parallel": False}, ["allreduce_bucket"]),
        ((1, 2, 1), {"engine": "deepspeed", "sequence_parallel": False}, ["_exec_reduce_tied_grads"]),
        ((2, 1, 1), {"engine": "deepspeed", "sequence_parallel": False}, ["get_global_norm_of_tensors"]),
        ((2, 1, 1), {"engine": "deepspeed"}, ["_exec_reduce_tied_grads"]),
        ((2, 2, 2), {}, ["_start_reduce", "reduce"]),
    ],
    ids=["dp", "tied table", "tp", "sequence", "our engine"],
)
def test_gradients_norms_and_losses_of_bf16_cross_ranks_in_fp32(  # noqa: PLR0917  (a case is three of them)
    run_ranks: RunRanks,
    data: Path,
    tmp_path: Path,
    layout: tuple[int, int, int],
    changes: Json,
    summed: list[str],
) -> None:
    """Activations and their gradients are summed over tp in the model's dtype, as Megatron-LM does."""
    recipe = recipe_of(layout, precision="bf16", samples=8, **changes)
    for dtypes in run_ranks("reduced_dtypes", [recipe], data=data, outs=[tmp_path]):
        assert dtypes["layers"] == (["torch.bfloat16"] if layout[0] > 1 else [])
        for figures in ("_loss_and_grad_norm",) if "engine" in changes else ("train_batch", "evaluate"):
            assert dtypes["others"].pop(figures) == ["torch.float64"]
        assert set(summed) <= set(dtypes["others"])
        assert all(found == ["torch.float32"] for found in dtypes["others"].values())


SHARDS = ("state", "gradients", "parameters")
UNTIED = {"layers": 3, "tied": False, "positions": "rotary", "mlp": "swiglu", "kv_heads": 1}


@pytest.mark.parametrize("dp", [2, 4])
@pytest.mark.parametrize(
    ("precision", "model", "recompute"),
    [("fp32", {}, "none"), ("fp32", UNTIED, "full"), ("bf16", {}, "full"), ("bf16", UNTIED, "selective")],
    ids=["fp32-tied", "fp32-untied", "bf16-tied", "bf16-untied"],
)
def test_sharding_changes_only_the_order_of_sums(  # noqa: PLR0917  (a case is four of them)
    run_ranks: RunRanks, data: Path, tmp_path: Path, dp: int, precision: str, model: Json, recompute: str
) -> None:
    """Ranks' gradients are summed per micro-batch: with one of two ranks each bit is the same, also after a resume."""
    same: Json = {"precision": precision, "recompute": recompute, "ramp": None, "clip": 100.0, "micro_batch": 1}
    parts = [(shard, batch, 16 * dp) for batch in (dp, 4 * dp) for shard in SHARDS]
    outs = [tmp_path / f"{shard} {batch}" for shard, batch, _ in parts]
    parts += [(shard, dp, samples * dp) for shard, samples in zip((*SHARDS, "state"), (4, 8, 12, 16), strict=True)]
    recipes = [
        recipe_of((1, 1, dp), model, shard=shard, batch=batch, samples=samples, **same)
        for shard, batch, samples in parts
    ]
    answers = run_ranks("train", recipes, data=data, outs=[*outs, *[tmp_path / "resumed"] * 4])[0]
    runs = [answer["steps"] for answer in answers]
    resumed = [step for run in runs[6:] for step in run]
    exact = None if precision == "fp32" else 2  # figures, of step 1; later ones are within bf16's rounding
    for state, gradients, parameters in (runs[:3], runs[3:6], (runs[0], resumed, resumed)):
        assert losses_and_norms(gradients) == losses_and_norms(parameters)
        assert losses_and_norms(gradients)[:exact] == pytest.approx(losses_and_norms(state)[:exact], rel=FP32)
        assert losses(gradients) == pytest.approx(losses(state), rel=BF16_LOSS)
    if dp == 2:
        assert losses(runs[0]) == losses(runs[1]) == losses(resumed)


def test_a_run_resumes_in_another_precision(run_ranks: RunRanks, data: Path, tmp_path: Path) -> None:
    reference = reference_run(recipe_of(), data)
    parts = [recipe_of(precision=p, samples=samples) for p, samples in (("fp32", 12), ("bf16", 24), ("fp32", 40))]
    answers = run_ranks("train", parts, data=data, outs=[tmp_path] * len(parts))[0]
    found = losses([step for answer in answers for step in answer["steps"]])
    assert found == pytest.approx(losses(reference[0][: len(found)]), rel=BF16_LOSS)


def losses(steps: list[Json]) -> list[float]:
    """Loss of every step."""
    return [step["loss"] for step in steps]


def losses_and_norms(steps: list[Json]) -> list[float]:
    """Loss and gradient norm of every step, in one list."""
    return [step[key] for step in steps for key in ("loss", "grad_norm")]


@pytest.mark.parametrize("sequence_parallel", [True, False], ids=["sequence parallel", "copies"])
def test_dropout_is_reproducible_and_resumes_exactly(
    run_ranks: RunRanks, data: Path, tmp_path: Path, sequence_parallel: bool
) -> None:
    dropped = {"dropout": 0.2, "attention_dropout": 0.2}
    kinds = {"one": "none", "again": "none", "core again": "selective", "all again": "full"}
    runs = [(name, kind, 32) for name, kind in kinds.items()] + [("halves", "none", samples) for samples in (16, 32)]
    recipes = [
        recipe_of((2, 2, 1), dropped, sequence_parallel=sequence_parallel, recompute=recompute, samples=samples)
        for _, recompute, samples in runs
    ]
    ranks = run_ranks("train", recipes, data=data, outs=[tmp_path / name for name, _, _ in runs])
    one, again, core, full, first, second = (losses_and_norms(answer["steps"]) for answer in ranks[0])
    assert one == again == [*first, *second]
    assert core == pytest.approx(one, rel=FP32)
    assert full == pytest.approx(one, rel=FP32)
    for number in range(len(runs)):
        for left, right in ((ranks[0], ranks[1]), (ranks[2], ranks[3])):
            sums, others = left[number]["sums"], right[number]["sums"]
            copies = [key for key in sums if "norm" in key or key.endswith(("out.bias", "down.bias"))]
            assert copies
            assert all(sums[key] == others[key] for key in copies), "the ranks of a group drifted apart"


def test_dropout_seeds_differ_by_replica_stage_and_step(run_ranks: RunRanks, data: Path, tmp_path: Path) -> None:
    """Under sequence parallelism tensor-parallel ranks hold parts of the hidden state, otherwise copies of it."""
    recipes = [recipe_of((2, 2, 2), samples=16, ramp=None, sequence_parallel=parts) for parts in (False, True)]
    ranks = run_ranks("dropout_seeds", recipes, data=data, outs=[tmp_path / "copies", tmp_path / "parts"])
    layout = recipes[0].layout
    copies = {layout.coordinates(rank): seeds[:2] for rank, seeds in enumerate(ranks)}
    assert all(seeds == copies[place._replace(tp=0)] for place, seeds in copies.items())
    assert len({seed for seeds in copies.values() for seed in seeds}) == 2 * 2 * 2  # pp x dp x steps
    assert len({seed for seeds in ranks for seed in seeds[2:]}) == 2 * 2 * 2 * 2


def test_tp_ranks_share_hidden_and_differ_in_heads(run_ranks: RunRanks) -> None:
    one, other = (answer["masks"] for answer in run_ranks("attention_masks", [recipe_of((2, 1, 1))]))
    assert (one[0], one[2]) == (other[0], other[2])
    assert one[1] != other[1]
