"""How fast a step was, in floating-point operations: of the model, and of the hardware, which are not the same.

MFU counts what the model needs, forward and backward; HFU also what was computed again to save memory (paper.md section
1). Both are shares of a device's dense 16-bit peak, where that is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .planner.hardware import load_cluster, names

if TYPE_CHECKING:
    from .metrics import Step
    from .recipe import Recipe


def peak_of(device: str) -> float | None:
    """Operations a second of a GPU by CUDA's name for it, such as NVIDIA A100-SXM4-80GB; None where unknown."""
    gpus = [load_cluster(name).gpu for name in names()]
    return next((gpu.peak_flops for gpu in gpus if gpu.name.partition("-")[0] in device), None)


def hardware_flops(recipe: Recipe, batch: int) -> float:
    """Operations of a step over ``batch`` samples, those done again included: 4 s² h a layer for an attention core."""
    config, recompute = recipe.model, recipe.train.recompute
    if recompute == "full":
        return config.hardware_flops(batch)
    again = 4 * batch * config.layers * config.sequence**2 * config.hidden if recompute == "selective" else 0
    return config.model_flops(batch) + again


def speed(recipe: Recipe, batch: int, seconds: float, peak: float | None) -> Step:
    """Figures of a step of these seconds; operations are those of one rank."""
    ranks = recipe.layout.world
    model, hardware = (
        flops / seconds / ranks for flops in (recipe.model.model_flops(batch), hardware_flops(recipe, batch))
    )
    found: Step = {
        "seconds": seconds,
        "tokens_per_second": batch * recipe.model.sequence / seconds,
        "model_tflops": model / 1e12,
        "hardware_tflops": hardware / 1e12,
    }
    if peak:
        found |= {"mfu": model / peak, "hfu": hardware / peak}
    return found
