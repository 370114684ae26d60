"""Decoders of other families train and score in a layout like one plain PyTorch loop, with either engine.

What differs from MT-NLG's GPT on a rank: a gate beside the MLP's first product, kv heads that are fewer than heads, and
perhaps than ranks, no biases, a head that is no copy of the token table, norms of q and k, of which a rank sees its own
heads alone, and rows of a padded vocabulary, which on a rank may be all.
"""

from pathlib import Path

import pytest
import torch

from mtnlg_model.checkpoint.manifest import latest
from mtnlg_model.checkpoint.reader import Checkpoint
from training.reference_loop import (
    FP32,
    STEPS,
    Json,
    Reference,
    RunRanks,
    assert_holds,
    assert_same_steps,
    recipe_of,
    reference_run,
)

ROTARY: Json = {"positions": "rotary", "layers": 2, "hidden": 32, "heads": 4, "scale_attention_by_layer": False}
LLAMA: Json = {**ROTARY, "norm": "rms", "mlp": "swiglu", "bias": False, "qkv_bias": False, "kv_heads": 2, "ffn": 48}
FAMILIES: dict[str, Json] = {
    "llama": {**LLAMA, "tied": False, "vocabulary": 70, "vocabulary_padding": 6},
    "qwen2": {**LLAMA, "qkv_bias": True},
    "qwen3": {**LLAMA, "qk_norm": True, "head_size": 6, "vocabulary": 128, "vocabulary_padding": 64},
    "pythia": {**ROTARY, "rotary_fraction": 0.5, "mlp": "gelu", "parallel_residual": True, "tied": False},
    "gpt-neox": {**ROTARY, "rotary_fraction": 0.25, "tied": False},
}
SHARED: dict[str, Json] = {
    "llama": {**LLAMA, "heads": 8, "tied": False},
    "qwen2": {**LLAMA, "kv_heads": 1, "qkv_bias": True},
    "qwen3": {**LLAMA, "heads": 8, "qk_norm": True, "head_size": 6},
}
ENGINES: list[Json] = [
    {"recompute": "full"},
    {"recompute": "selective", "sequence_parallel": False},
    {"recompute": "none", "schedule": "zero-bubble"},
]


RUNS: dict[tuple[int, int, int], list[tuple[Json, Json]]] = {
    (2, 2, 2): [
        *((FAMILIES[family], ENGINES[0]) for family in ("llama", "qwen2", "qwen3", "pythia")),
        *((FAMILIES[family], ENGINES[1]) for family in ("llama", "qwen3", "gpt-neox")),
        *((FAMILIES[family], ENGINES[2]) for family in ("llama", "qwen3", "pythia")),
    ],
    (4, 2, 1): [*zip(SHARED.values(), ENGINES, strict=True)],
}


@pytest.mark.parametrize("layout", RUNS, ids=["own-kv-heads", "shared-kv-heads"])
def test_every_family_trains_and_scores_in_eight_ranks_like_one_process(
    layout: tuple[int, int, int], run_ranks: RunRanks, data: Path, tmp_path: Path
) -> None:
    recipes = [recipe_of(layout, model, **engine) for model, engine in RUNS[layout]]
    outs = [tmp_path / str(number) for number in range(len(recipes))]
    answers = run_ranks("train", recipes, data=data, outs=outs)[0]
    references: dict[str, Reference] = {}
    for (model, _), answer, out in zip(RUNS[layout], answers, outs, strict=True):
        if str(model) not in references:
            references[str(model)] = reference_run(recipe_of(model=model), data)
        steps, decoder, optimizer = references[str(model)]
        assert len(answer["steps"]) == STEPS
        assert_same_steps(answer["steps"], steps)
        assert_holds(latest(out / "checkpoints"), decoder, optimizer)
    by_model = {
        str(model): Checkpoint.open(out / "checkpoints") for (model, _), out in zip(RUNS[layout], outs, strict=True)
    }
    tokens_BS = torch.randint(64, (3, 8), generator=torch.Generator().manual_seed(1))
    paths = [str(checkpoint.directory) for checkpoint in by_model.values()]
    scored = run_ranks("scores", recipes[:1], checkpoints=paths, tokens=tokens_BS.tolist())[-1]
    for checkpoint, (logp_N, greedy_N) in zip(by_model.values(), scored, strict=True):
        with torch.no_grad():
            logp_SBV = checkpoint.decoder()(tokens_BS)[:, :-1].log_softmax(-1).transpose(0, 1)
        targets_SB = tokens_BS[:, 1:].t()
        expected_SB = logp_SBV.gather(2, targets_SB[..., None])[..., 0]
        torch.testing.assert_close(torch.tensor(logp_N), expected_SB.flatten(), rtol=FP32, atol=FP32)
        assert greedy_N == (logp_SBV.argmax(-1) == targets_SB).flatten().tolist()
