"""The centre: every layout trains as one plain PyTorch loop does, on the same weights and the same samples.

Eight layouts x sequence parallel or not x three kinds of recomputation, 20 steps each, at the smallest shapes that have
two heads to slice, a layer for each of two stages, and steps of one, two and four micro-batches.

The bound is 1e-5 relative, in fp32. Sums over ranks come in another order than sums in one process: a part in 2**24 an
operation, measured 5e-7 at most over these steps. bf16 rounds each product's result to a part in 2**9: losses, means
over many, agree to 2**-8 (measured 1.4e-3), gradient norms, several products deep, to 2**-5 (7.4e-3).
"""

import shutil
from pathlib import Path

import pytest
import torch

from mtnlg_model.checkpoint.manifest import latest
from mtnlg_model.checkpoint.reader import Checkpoint
from mtnlg_model.console import Failure
from mtnlg_model.decoder import Decoder
from mtnlg_parallel.layout import stages
from mtnlg_parallel.recipe import Recipe
from mtnlg_parallel.training.run_dir import prepare
from mtnlg_parallel.training.samples import open_data
from training.plain import FP32, RECIPE, STEPS, Json, Plain, World, assert_alike, plain_loop, recipe_of

BF16_LOSS, BF16_NORM = 2**-8, 2**-5
LAYOUTS = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1), (2, 1, 2), (1, 2, 2), (2, 2, 2)]


def trained(world: World, recipe: Recipe, data: Path, out: Path, **more: object) -> list[Json]:
    """A recipe by itself: each rank's answer."""
    return [answers[0] for answers in world("train", [recipe], data=data, outs=[out], **more)]


@pytest.fixture(scope="module")
def plain(data: Path) -> Plain:
    return plain_loop(recipe_of(), data)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_layout_trains_as_one_process_does(
    layout: tuple[int, int, int],
    plain: Plain,
    world: World,
    data: Path,
    tmp_path: Path,
) -> None:
    kinds = [(r, s) for r in ("none", "selective", "full") for s in ((False, True) if layout[0] > 1 else (True,))]
    micro_batch = 4 if layout == (2, 1, 1) else 2
    recipes = [recipe_of(layout, recompute=r, sequence_parallel=s, micro_batch=micro_batch) for r, s in kinds]
    outs = [tmp_path / f"{recompute}-{cut}" for recompute, cut in kinds]
    ranks = world("train", recipes, data=data, outs=outs)
    for number, recipe in enumerate(recipes):
        steps = ranks[0][number]["steps"]
        assert len(steps) == STEPS
        assert_alike(steps, plain[0])
        cut = stages(recipe.model, recipe.layout, recipe.train.recompute)
        for rank, answers in enumerate(ranks):
            held = cut[recipe.layout.coordinates(rank).pp].parameters
            assert answers[number]["held"] == held, "a rank holds its stage alone"
    assert_holds(latest(outs[-1] / "checkpoints"), plain[1], plain[2])


def test_the_path_that_megatron_core_takes_on_cuda_computes_the_same(
    plain: Plain, world: World, data: Path, tmp_path: Path
) -> None:
    answers = trained(world, recipe_of((2, 2, 1)), data, tmp_path, as_on_cuda=True)
    assert_alike(answers[0]["steps"], plain[0])


def assert_holds(path: Path | None, decoder: Decoder, optimizer: torch.optim.AdamW) -> None:
    """The checkpoint is whole, and holds these weights and moments."""
    assert path
    checkpoint = Checkpoint.open(path)
    checkpoint.verify()
    for name, parameter in decoder.named_parameters():
        state = {"weight": parameter.detach(), **optimizer.state[parameter]}
        for slot in ("weight", "exp_avg", "exp_avg_sq"):
            found, expected = felt(name, checkpoint.tensor(name, slot=slot)), felt(name, state[slot])
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))
    assert checkpoint.optimizer_steps == next(iter(optimizer.state.values()))["step"]


def felt(name: str, value: torch.Tensor) -> torch.Tensor:
    """Leave out the biases of keys: softmax does not feel them, so rounding alone decides where Adam takes them."""
    if not name.endswith("qkv.bias"):
        return value
    return value.view(RECIPE["model"]["heads"], 3, -1)[:, ::2]


def test_a_run_goes_on_in_another_layout_and_another(plain: Plain, world: World, data: Path, tmp_path: Path) -> None:
    steps: list[Json] = []
    for layout, samples, micro_batch in (((2, 2, 1), 24, 1), ((1, 1, 2), 60, 2), ((1, 2, 2), 84, 2)):
        recipe = recipe_of(layout, samples=samples, micro_batch=micro_batch)
        steps += trained(world, recipe, data, tmp_path)[0]["steps"]
    assert_alike(steps, plain[0])
    assert_holds(latest(tmp_path / "checkpoints"), plain[1], plain[2])
    progress = Checkpoint.open(tmp_path / "checkpoints" / f"step-{len(steps)}").progress
    assert (progress.samples, progress.layout.model_dump()) == (84, {"tp": 1, "pp": 2, "dp": 2})


def test_bf16_follows_fp32_and_resumes_to_the_last_bit(plain: Plain, world: World, data: Path, tmp_path: Path) -> None:
    parts = [recipe_of((2, 1, 2), precision="bf16", samples=samples) for samples in (40, 16, 40)]
    outs = [tmp_path / "whole", tmp_path / "halves", tmp_path / "halves"]
    whole, first, second = (answer["steps"] for answer in world("train", parts, data=data, outs=outs)[0])
    for step, reference in zip(whole, plain[0][: len(whole)], strict=True):
        assert step["loss"] == pytest.approx(reference["loss"], rel=BF16_LOSS)
        assert step["grad_norm"] == pytest.approx(reference["grad_norm"], rel=BF16_NORM)
    assert felt_losses([*first, *second]) == felt_losses(whole)


def test_a_run_goes_on_in_another_precision(plain: Plain, world: World, data: Path, tmp_path: Path) -> None:
    parts = [recipe_of(precision=p, samples=samples) for p, samples in (("fp32", 12), ("bf16", 24), ("fp32", 40))]
    answers = world("train", parts, data=data, outs=[tmp_path] * len(parts))[0]
    losses = [step["loss"] for answer in answers for step in answer["steps"]]
    assert losses == pytest.approx([step["loss"] for step in plain[0][: len(losses)]], rel=BF16_LOSS)


def felt_losses(steps: list[Json]) -> list[float]:
    """Loss and gradient norm of every step, in one list."""
    return [step[key] for step in steps for key in ("loss", "grad_norm")]


@pytest.mark.parametrize("cut", [True, False], ids=["sequence parallel", "copies"])
def test_dropout_is_deterministic_recomputed_alike_and_goes_on_to_the_last_bit(
    world: World, data: Path, tmp_path: Path, cut: bool
) -> None:
    dropped = {"dropout": 0.2, "attention_dropout": 0.2}
    kinds = {"one": "none", "again": "none", "core again": "selective", "all again": "full"}
    runs = [(name, kind, 32) for name, kind in kinds.items()] + [("halves", "none", samples) for samples in (16, 32)]
    recipes = [recipe_of((2, 2, 1), dropped, sequence_parallel=cut, recompute=r, samples=n) for _, r, n in runs]
    ranks = world("train", recipes, data=data, outs=[tmp_path / name for name, _, _ in runs])
    one, again, core, full, first, second = (felt_losses(answer["steps"]) for answer in ranks[0])
    assert one == again == [*first, *second]
    assert core == pytest.approx(one, rel=FP32)
    assert full == pytest.approx(one, rel=FP32)
    for number in range(len(runs)):
        for left, right in ((ranks[0], ranks[1]), (ranks[2], ranks[3])):
            sums, others = left[number]["sums"], right[number]["sums"]
            whole = [key for key in sums if "norm" in key or key.endswith(("out.bias", "down.bias"))]
            assert whole
            assert all(sums[key] == others[key] for key in whole), "the ranks of a group drifted apart"


def test_tensor_parallel_ranks_drop_other_heads_and_the_same_hidden_units(world: World) -> None:
    one, other = (answer["masks"] for answer in world("attention_masks", [recipe_of((2, 1, 1))]))
    assert (one[0], one[2]) == (other[0], other[2])
    assert one[1] != other[1]


def test_a_checkpoint_of_another_stream_or_model_is_refused(world: World, data: Path, tmp_path: Path) -> None:
    trained(world, recipe_of(samples=4), data, tmp_path / "out")
    other = tmp_path / "data"
    shutil.copytree(data, other)
    blend = (other / "tokens" / "blend.json").read_text()
    (other / "tokens" / "blend.json").write_text(blend.replace('"seed": 1', '"seed": 2'))
    for source, recipe, words in (
        (other, recipe_of(), "give the data of that run, or another --out"),
        (data, recipe_of(model={"layers": 1}), "model.layers was 2 and is 1 now; give another --out"),
    ):
        with pytest.raises(Failure, match=words):
            prepare(tmp_path / "out", recipe, open_data(source, recipe).train.fingerprint, resume=True)
