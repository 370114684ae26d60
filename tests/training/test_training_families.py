"""Decoders of other families train in a layout like one plain PyTorch loop, with either engine.

What differs from MT-NLG's GPT on a rank: a gate beside the MLP's first product, kv heads that are fewer than heads, no
biases, a head that is no copy of the token table, and norms of q and k, of which a rank sees its own heads alone.
"""

from pathlib import Path

from mtnlg_model.checkpoint.manifest import latest
from training.reference_loop import (
    STEPS,
    Json,
    RunRanks,
    assert_holds,
    assert_same_steps,
    recipe_of,
    reference_run,
)

ROTARY: Json = {"positions": "rotary", "layers": 2, "hidden": 32, "heads": 4, "scale_attention_by_layer": False}
LLAMA: Json = {**ROTARY, "norm": "rms", "mlp": "swiglu", "bias": False, "qkv_bias": False, "kv_heads": 2, "ffn": 48}
FAMILIES: dict[str, Json] = {
    "llama": {**LLAMA, "tied": False},
    "qwen3": {**LLAMA, "qk_norm": True, "head_size": 6},
    "pythia": {**ROTARY, "rotary_fraction": 0.5, "mlp": "gelu", "parallel_residual": True, "tied": False},
}
ENGINES: list[Json] = [
    {"recompute": "full"},
    {"recompute": "selective", "sequence_parallel": False},
    {"recompute": "none", "schedule": "zero-bubble"},
]


def test_every_family_trains_in_eight_ranks_like_one_process(run_ranks: RunRanks, data: Path, tmp_path: Path) -> None:
    runs = [(family, engine) for family in FAMILIES for engine in ENGINES]
    recipes = [recipe_of((2, 2, 2), FAMILIES[family], **engine) for family, engine in runs]
    outs = [tmp_path / str(number) for number in range(len(recipes))]
    answers = run_ranks("train", recipes, data=data, outs=outs)[0]
    references = {family: reference_run(recipe_of(model=model), data) for family, model in FAMILIES.items()}
    for (family, _), answer, out in zip(runs, answers, outs, strict=True):
        assert len(answer["steps"]) == STEPS
        steps, decoder, optimizer = references[family]
        assert_same_steps(answer["steps"], steps)
        assert_holds(latest(out / "checkpoints"), decoder, optimizer)
