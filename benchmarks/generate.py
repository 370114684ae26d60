"""Greedy decoding with a key-value cache: mtnlg_model against transformers' GPT2LMHeadModel on the same weights.

    python benchmarks/generate.py [--rounds 5] [--out FILE]

GPT-2 of 124 million random weights in fp32; prompts of 64 tokens, 64 new ones; a batch of eight, and one row with the
weights laid out for it, as ``mtnlg-model generate`` does. Every round runs both, in turn first, and both give the same
tokens; the ratio is the median of the rounds' own. The prompt's own pass is part of the time.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-model", "torch==2.13.0", "transformers==5.23.0"]
# ///

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from mtnlg_model.config import PRESETS
from mtnlg_model.convert.huggingface import gpt2_name, to_gpt2
from mtnlg_model.decoder import Decoder
from mtnlg_model.generation.generate import generate, lay_out_for_one_row
from record import conditions, keep

PROMPT, NEW = 64, 64


def models() -> tuple[Decoder, GPT2LMHeadModel]:
    """Both on the same weights."""
    config = PRESETS["gpt2"]
    decoder, gpt2 = Decoder(config).eval(), GPT2LMHeadModel(GPT2Config()).eval()
    state = {gpt2_name(name): to_gpt2(name, value, config.heads) for name, value in decoder.state_dict().items()}
    gpt2.load_state_dict({**state, "lm_head.weight": state["transformer.wte.weight"]})
    return decoder, gpt2


def measure(batch: int, rounds: int, decoder: Decoder, gpt2: GPT2LMHeadModel) -> dict[str, object]:
    """New tokens a second of both, medians of ``rounds``."""
    prompts = torch.randint(50_000, (batch, PROMPT), generator=torch.Generator().manual_seed(0))

    def ours() -> list[list[int]]:
        return generate(decoder, prompts.tolist(), NEW)

    def theirs() -> list[list[int]]:
        mask = torch.ones_like(prompts)
        found = gpt2.generate(
            prompts, attention_mask=mask, max_new_tokens=NEW, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        new: list[list[int]] = found[:, PROMPT:].tolist()
        return new

    ways = {"mtnlg_model": ours, "transformers": theirs}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    tokens = {name: way() for name, way in ways.items()}
    for number in range(rounds):
        for name in sorted(ways, reverse=bool(number % 2)):
            started = time.perf_counter()
            ways[name]()
            seconds[name].append(time.perf_counter() - started)
    rates = {name: batch * NEW / statistics.median(found) for name, found in seconds.items()}
    ratios = [theirs / ours for ours, theirs in zip(seconds["mtnlg_model"], seconds["transformers"], strict=True)]
    return {
        "batch": batch,
        "ratio": statistics.median(ratios),
        "ratio_least": min(ratios),
        "ratio_most": max(ratios),
        "same_tokens": tokens["mtnlg_model"] == tokens["transformers"],
        "tokens_per_second": rates,
        "seconds": seconds,
    }


def main() -> None:
    """Run and print, and write to ``--out``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    about = conditions("mtnlg-model", "torch", "transformers")
    decoder, gpt2 = models()
    eight = measure(8, options.rounds, decoder, gpt2)
    lay_out_for_one_row(decoder)
    one = measure(1, options.rounds, decoder, gpt2)
    result = {
        **about,
        "threads": torch.get_num_threads(),
        "model": "gpt2, fp32",
        "prompt": PROMPT,
        "new": NEW,
        "rounds": options.rounds,
        "results": [one, eight],
    }
    keep(result, options.out)


if __name__ == "__main__":
    main()
