"""Packed attention: each text gets the attention it has alone, to the last bit, whatever it is packed with."""

from __future__ import annotations

from random import Random

import pytest
import torch
from torch import Tensor

from mtnlg_eval.scoring.packed_attention import AttentionPlan, Span
from mtnlg_model.config import ModelConfig
from mtnlg_model.decoder import Decoder

Text = tuple[int, ...]
CPU = torch.device("cpu")
STEP = 32  # rows of a product, on one thread


BLOOM = {"positions": "alibi", "embedding_norm": True}
GPTJ = {"positions": "rotary", "parallel_residual": True, "shared_norm": True, "head_bias": True, "tied": False}
LLAMA = {"positions": "rotary", "kv_heads": 1, "norm": "rms", "mlp": "swiglu", "bias": False, "tied": False}


@pytest.fixture(scope="module", params=[{}, LLAMA, BLOOM, GPTJ], ids=["gpt", "llama", "bloom", "gptj"])
def decoder(request: pytest.FixtureRequest) -> Decoder:
    """With heads of 64, whose sums over keys a BLAS cuts up, and a context of several blocks of keys."""
    gpt = ModelConfig(layers=2, hidden=128, heads=2, sequence=1100, vocabulary=100)
    return Decoder(gpt.model_copy(update=request.param), seed=1).eval()


def line(texts: list[tuple[Text, list[Text]]], cut: int = 0) -> tuple[Tensor, list[Span], list[list[int]]]:
    """Tokens and spans of contexts (cut in two) and answers, and the positions of the last span of each path."""
    tokens: list[int] = []
    spans: list[Span] = []
    positions: list[list[int]] = []

    def add(part: Text, parent: int) -> int:
        spans.append(Span(len(tokens), len(part), parent))
        tokens.extend(part)
        return len(spans) - 1

    for context, answers in texts:
        last = add(context[:cut] or context, -1)
        if context[:cut]:
            last = add(context[cut:], last)
        positions.append([spans[last].start + spans[last].length - 1])
        for answer in answers:
            span = spans[add(answer, last)]
            positions.append(list(range(span.start, span.start + span.length)))
    tokens += [0] * (-len(tokens) % STEP)
    return torch.tensor(tokens), spans, positions


@torch.inference_mode()
def hidden(decoder: Decoder, texts: list[tuple[Text, list[Text]]], cut: int = 0) -> list[Tensor]:
    tokens, spans, positions = line(texts, cut)
    scored = [position for group in positions for position in group]
    plan = AttentionPlan.build(spans, len(tokens), torch.tensor(scored + [0] * (-len(scored) % STEP)), CPU)
    x_N1H = decoder.hidden(tokens[None], plan.position_ids[None], plan.attend(decoder.config.layers))
    return list(torch.split(x_N1H[: len(scored), 0], [len(group) for group in positions]))


def drawn(draw: Random, size: int) -> Text:
    return tuple(draw.randrange(100) for _ in range(size))


@pytest.mark.parametrize("size", [5, 100, 128, 129, 255, 256, 300, 512, 513, 700, 1024])
def test_packed_text_scores_as_alone(size: int, decoder: Decoder) -> None:
    draw = Random(size)
    context, answers = drawn(draw, size), [drawn(draw, length) for length in (1, 3, 40)]
    together = hidden(decoder, [(context, answers)])
    with torch.inference_mode():
        alone = [
            decoder.hidden(torch.tensor([context + answer]))[size - 1 if not answer else size :, 0]
            for answer in ((), *answers)
        ]
    for mine, other in zip(together, alone, strict=True):
        assert torch.allclose(mine, other, atol=1e-5, rtol=0)
    beside = (drawn(draw, 70), [drawn(draw, 9)])
    for company in (
        hidden(decoder, [beside, (context, answers[::-1])], cut=max(1, size // 3))[2:],
        hidden(decoder, [(context, answers[::-1]), beside, (drawn(draw, 300), [])], cut=size - 1)[:4],
    ):
        assert all(map(torch.equal, [company[0], *company[:0:-1]], together))


def test_another_number_of_threads_changes_no_bit(decoder: Decoder) -> None:
    draw = Random(0)
    texts = [(drawn(draw, size), [drawn(draw, 5)]) for size in (20, 200, 600)]
    first, threads = hidden(decoder, texts), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert all(map(torch.equal, hidden(decoder, texts), first))
    finally:
        torch.set_num_threads(threads)
