"""Scores and generates with the decoder of a preset on `stub_gpu`'s GPU.

    python -m training.stub_evaluation LIBRARY PRESET

Prints JSON: what the host has waited for, races (`stub_streams`), and how far the GPU's work was known to the host.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from training import stub_gpu

if TYPE_CHECKING:
    from torch import Tensor

    from mtnlg_eval.scoring.packing import Batch
    from mtnlg_model.config import ModelConfig
    from mtnlg_model.decoder import Decoder

LAYERS = 3
NEW_TOKENS = 5


def main(library: str, preset: str) -> None:
    """Score two batches, and generate from prompts of two lengths."""
    stub_gpu.load(library)
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from mtnlg_model.decoder import Decoder
    from mtnlg_model.families import PRESETS
    from training import stub_parts, stub_streams

    stub_gpu.pretend()
    stub_parts.find_gpu()
    stub_streams.install()
    vars(torch.nn.functional)["scaled_dot_product_attention"] = attention
    config = PRESETS[preset].model_copy(update={"layers": LAYERS})
    batch = full_batch(config)
    with torch.device("meta"):
        decoder = Decoder(config)
    with FakeTensorMode(allow_non_fake_inputs=True):
        decoder.to_empty(device="cuda").bfloat16().requires_grad_(requires_grad=False)
        answer = {"scoring": score(decoder, batch), "receiving": receive()}
        for temperature in (0.0, 0.8):
            answer[f"generation at {temperature}"] = generate(decoder, temperature)
        for rank in (0, 1, 2, 3):
            answer[f"rank {rank}"] = sharded(config, batch, rank)
    sys.stdout.write(json.dumps(answer))


def attention(q: Any, k: Any, v: Any, *, attn_mask: Any = None, **_: object) -> Any:  # noqa: ANN401  (tensors)
    """A kernel that reads all of these and writes the context."""
    context = q * k.sum() * v.sum()
    return context if attn_mask is None else context * attn_mask.sum()


def full_batch(config: ModelConfig) -> Batch:
    """Contexts of many lengths, with answers."""
    from mtnlg_eval.scoring.packing import Request, pack_rows, plan_rows

    draw = Random(1)

    def text(size: int) -> tuple[int, ...]:
        return tuple(draw.randrange(config.vocabulary) for _ in range(size))

    contexts = [text(draw.randrange(20, 1500)) for _ in range(6)]
    requests = [Request(context, text(draw.randrange(1, 30))) for context in contexts for _ in range(3)]
    return pack_rows(plan_rows(requests, config.sequence), 512)


def score(decoder: Decoder, batch: Batch) -> dict[str, Any]:
    """Submit two batches, then collect the first. One before them makes what stays."""
    from mtnlg_eval.scoring.decoder_lm import LocalEngine
    from training.stub_streams import Streams, current

    engine = LocalEngine(decoder, None)  # type: ignore[arg-type]  # nothing is generated
    with Streams():
        engine.submit(batch)
        engine.collect()
    with Streams() as streams:
        engine.submit(batch)
        first = current.stream.act().number
        engine.submit(batch)
        logp_N, greedy_N = engine.collect()
        known = current.host.seen.get(current.stream, 0)
        assert logp_N.shape == greedy_N.shape == batch.scored.shape
    return {"waits": streams.waits, "races": sorted(streams.races), "first": first, "known": known}


class Receiving:
    """As of NCCL's `irecv`: it fills a tensor in a stream of its own, for which the stream of whoever waits waits.

    ``held_up``: that was the stream of whoever began it, so what is computed there waits, too.
    """

    def __init__(self, tensor: Tensor) -> None:
        from training.stub_streams import Stream, current, on

        self._wire, self._asker, self.held_up = Stream(name="NCCL"), current.stream, False
        self._wire.wait_stream(current.stream)
        with on(self._wire):
            tensor.fill_(1.0)

    def wait(self) -> None:
        """As `torch.distributed.Work.wait`."""
        from training.stub_streams import current

        current.stream.wait_stream(self._wire)
        self.held_up |= current.stream is self._asker


def receive() -> dict[str, Any]:
    """Receive scores of another rank."""
    import torch

    from mtnlg_eval.scoring.transfers import Arriving
    from training.stub_streams import Streams

    with Streams() as streams:
        scores_2N = torch.empty(2, 512, device="cuda")
        work = Receiving(scores_2N)
        arriving = Arriving(scores_2N, work)  # type: ignore[arg-type]  # all that is asked of one
        arriving.wait().sum()
    return {"waits": streams.waits, "races": sorted(streams.races), "held_up": work.held_up}


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


def sharded(config: ModelConfig, batch: Batch, rank: int) -> dict[str, Any]:
    """Score, and generate where it leads, as a rank of tp 2 and pp 2; the others are torch's fake process group."""
    import torch
    from torch import distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from mtnlg_eval.scoring.generation import Options, PromptBatch
    from mtnlg_eval.sharded.messages import Channels
    from mtnlg_eval.sharded.replica import Replica
    from mtnlg_model.generation.sampling import GREEDY
    from mtnlg_parallel.inference import DecoderShard
    from mtnlg_parallel.layout import Layout
    from training.stub_streams import Streams

    class Checkpoint:
        """Weights of a config, as `DecoderShard` reads them."""

        def __init__(self) -> None:
            self.config = config

        def tensor(self, _name: str, box: tuple[slice, ...]) -> Tensor:
            """Of the box's shape."""
            return torch.empty([part.stop - part.start for part in box])

    distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)
    with Streams():
        device, tokenizer = torch.device("cuda", 0), SimpleNamespace(vocabulary=None, stop_condition=lambda _: None)
        shard = DecoderShard(Checkpoint(), Layout(tp=2, pp=2), device, torch.bfloat16)  # type: ignore[arg-type]
        replica = Replica(shard, tokenizer, Channels(None, None))  # type: ignore[arg-type]  # all in one group here
        replica.score(batch)
    received, begin = list[Receiving](), replica.receive_result

    def receive_result(b: int) -> tuple[Receiving, Tensor]:
        _, x_1BH = begin(b)
        received.append(Receiving(x_1BH))
        return received[-1], x_1BH

    with Streams() as streams:
        scores_2N = replica.score(batch)
        scored = dict(streams.waits)
        if replica.leads:
            replica.receive_result = receive_result  # type: ignore[method-assign, assignment]
            replica.lead(0, PromptBatch(((1, 2, 3), (4,)), Options((), NEW_TOKENS, GREEDY)))
    distributed.destroy_process_group()
    assert (scores_2N is None) == (rank != 2)
    assert len(received) == (NEW_TOKENS if replica.leads else 0)
    held_up = sum(work.held_up for work in received)
    return {"scored": scored, "waits": streams.waits, "races": sorted(streams.races), "held_up": held_up}


if __name__ == "__main__":
    main(*sys.argv[1:])
