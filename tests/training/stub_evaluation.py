"""Scores and generates with the decoder of a preset on `stub_gpu`'s GPU.

    python -m training.stub_evaluation LIBRARY PRESET

Prints JSON: what the host has waited for, races (`stub_streams`), and how far the GPU's work was known to the host.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

from training import stub_gpu

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mtnlg_eval.scoring.packing import Row
    from mtnlg_model.config import ModelConfig
    from mtnlg_model.decoder import Decoder

LAYERS = 3
NEW_TOKENS = 5


def main(library: str, preset: str) -> None:
    """Score two batches, and generate from prompts of two lengths."""
    stub_gpu.install(library)
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from mtnlg_model.decoder import Decoder
    from mtnlg_model.families import PRESETS

    vars(torch.nn.functional)["scaled_dot_product_attention"] = attention
    config = PRESETS[preset].model_copy(update={"layers": LAYERS})
    rows = full_batch(config)
    with torch.device("meta"):
        decoder = Decoder(config)
    with FakeTensorMode(allow_non_fake_inputs=True):
        decoder.to_empty(device="cuda").bfloat16().requires_grad_(requires_grad=False)
        answer = {"scoring": score(decoder, rows)}
        for temperature in (0.0, 0.8):
            answer[f"generation at {temperature}"] = generate(decoder, temperature)
    sys.stdout.write(json.dumps(answer))


def attention(q: Any, k: Any, v: Any, *, attn_mask: Any = None, **_: object) -> Any:  # noqa: ANN401  (tensors)
    """A kernel that reads all of these and writes the context."""
    context = q * k.sum() * v.sum()
    return context if attn_mask is None else context * attn_mask.sum()


def full_batch(config: ModelConfig) -> list[Row]:
    """Contexts of many lengths, with answers."""
    from mtnlg_eval.scoring.packing import Request, plan_rows

    draw = Random(1)

    def text(size: int) -> tuple[int, ...]:
        return tuple(draw.randrange(config.vocabulary) for _ in range(size))

    contexts = [text(draw.randrange(20, 1500)) for _ in range(6)]
    requests = [Request(context, text(draw.randrange(1, 30))) for context in contexts for _ in range(3)]
    return plan_rows(requests, config.sequence)


def score(decoder: Decoder, rows: list[Row]) -> dict[str, Any]:
    """Score two batches; the first is collected when the second is begun. One before them makes what stays."""
    from mtnlg_eval.scoring.decoder_lm import LocalEngine
    from training.stub_streams import Streams, current

    engine = LocalEngine(decoder, None)  # type: ignore[arg-type]  # nothing is generated
    numbers: list[int] = []
    with Streams():
        list(engine.score([rows]))

    def batches() -> Iterator[list[Row]]:
        for _ in range(2):
            yield rows
            numbers.append(current.stream.act().number)

    with Streams() as streams:
        collected = engine.score(batches())
        next(collected)
        known = current.host.seen.get(current.stream, 0)
    return {"waits": streams.waits, "races": sorted(streams.races), "first": numbers[0], "known": known}


def generate(decoder: Decoder, temperature: float) -> dict[str, Any]:
    """Draw tokens after two prompts, of which the longer one ends first."""
    from mtnlg_model.generation.generate import stream_tokens
    from mtnlg_model.generation.sampling import Sampling
    from training.stub_streams import Streams

    sampling = Sampling(temperature=temperature, top_k=50, top_p=0.9)
    with Streams() as streams:
        drawn = Counter(row for row, _ in stream_tokens(decoder, [(1, 2, 3), (4,)], NEW_TOKENS, sampling))
    assert drawn == {0: NEW_TOKENS, 1: NEW_TOKENS}
    return {"waits": streams.waits, "races": sorted(streams.races)}


if __name__ == "__main__":
    main(*sys.argv[1:])
