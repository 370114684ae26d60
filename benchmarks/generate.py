"""Greedy decoding with a key-value cache: mtnlg_model against transformers' GPT2LMHeadModel on the same weights.

    python benchmarks/generate.py [--rounds 5] [--out FILE]

GPT-2 with 124 million random weights in fp32; prompts of 64 tokens, 64 new ones; a batch of eight, and one row with
column-major weights, as ``mtnlg-model generate`` has them. Every round runs both, in alternating order, and both return
the same tokens; the ratio is the median over rounds. The time includes the prompt's forward pass.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-model", "torch==2.13.0", "transformers==5.23.0"]
# ///

from __future__ import annotations

import statistics
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from mtnlg_model.config import PRESETS
from mtnlg_model.convert.huggingface import gpt2_name, to_gpt2
from mtnlg_model.decoder import Decoder
from mtnlg_model.generation.generate import generate, use_column_major_weights
from record import conditions, exact_ratio, option_parser, ratios, time_rounds, write_result

PROMPT, NEW = 64, 64


def make_models() -> tuple[Decoder, GPT2LMHeadModel]:
    """Return both, with the same weights."""
    config = PRESETS["gpt2"]
    decoder, gpt2 = Decoder(config).eval(), GPT2LMHeadModel(GPT2Config()).eval()
    state = {gpt2_name(name): to_gpt2(name, value, config.heads) for name, value in decoder.state_dict().items()}
    gpt2.load_state_dict({**state, "lm_head.weight": state["transformer.wte.weight"]})
    return decoder, gpt2


def measure(batch: int, rounds: int, decoder: Decoder, gpt2: GPT2LMHeadModel) -> dict[str, object]:
    """Return the new tokens a second of both, medians of ``rounds``."""
    prompts = torch.randint(50_000, (batch, PROMPT), generator=torch.Generator().manual_seed(0))

    def ours() -> list[list[int]]:
        return generate(decoder, prompts.tolist(), NEW)

    def theirs() -> list[list[int]]:
        mask = torch.ones_like(prompts)
        rows = gpt2.generate(
            prompts, attention_mask=mask, max_new_tokens=NEW, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        new: list[list[int]] = rows[:, PROMPT:].tolist()
        return new

    same_tokens = ours() == theirs()
    seconds = time_rounds({"mtnlg_model": ours, "transformers": theirs}, rounds, time.perf_counter)
    return {
        "batch": batch,
        **exact_ratio(ratios(seconds["transformers"], seconds["mtnlg_model"])),
        "same_tokens": same_tokens,
        "tokens_per_second": {name: batch * NEW / statistics.median(each) for name, each in seconds.items()},
        "seconds": seconds,
    }


def main() -> None:
    """Measure; print the result and write it to ``--out``."""
    options = option_parser(__doc__).parse_args()
    about = conditions("mtnlg-model", "torch", "transformers")
    decoder, gpt2 = make_models()
    eight = measure(8, options.rounds, decoder, gpt2)
    use_column_major_weights(decoder)
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
    write_result(result, options.out)


if __name__ == "__main__":
    main()
