"""Greedy decoding with a key-value cache: mtnlg_model's Llama against transformers' on the same weights.

    python benchmarks/generate.py [--rounds 5] [--out FILE]

Two layers of Llama 3.2 1B in fp32 with random weights; prompts of 64 tokens, 64 new ones; a batch of eight, and one row
with column-major weights, as ``mtnlg-model generate`` has it.
Every round runs both, in alternating order, and both return the same tokens; the ratio is the median over rounds. Times
are CPU time of one thread, so that other work on the machine costs neither side, and include the prompt's forward pass.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-model", "torch==2.13.0", "transformers==5.23.0"]
# ///

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from mtnlg_model.convert.config_json import to_config_json
from mtnlg_model.convert.family_tensors import to_theirs
from mtnlg_model.decoder import Decoder
from mtnlg_model.families import PRESETS
from mtnlg_model.generation.generate import generate, use_column_major_weights
from record import ratios, run, spread, time_rounds

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from mtnlg_model.config import ModelConfig

PROMPT, NEW = 64, 64
CONFIG = PRESETS["llama-3.2-1b"].model_copy(update={"layers": 2, "vocabulary": 32_000})


def make_models(config: ModelConfig) -> tuple[Decoder, PreTrainedModel]:
    """Return both, with the same weights."""
    family, content = to_config_json(config)
    theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**content)).eval()
    decoder = Decoder(config).eval()
    state = {
        key: tensor
        for name, value in decoder.state_dict().items()
        for key, tensor in to_theirs(family, config, name, value).items()
    }
    head = theirs.get_output_embeddings().weight
    with torch.no_grad():
        head.copy_(decoder.head_weight)
    theirs.load_state_dict({name: state.get(name, head) for name in theirs.state_dict()})
    return decoder, theirs


def compare(batch: int, rounds: int, decoder: Decoder, other: PreTrainedModel) -> dict[str, object]:
    """Return the new tokens a second of both, medians of ``rounds``."""
    prompts = torch.randint(30_000, (batch, PROMPT), generator=torch.Generator().manual_seed(0))

    def ours() -> list[list[int]]:
        return generate(decoder, prompts.tolist(), NEW)

    def theirs() -> list[list[int]]:
        mask = torch.ones_like(prompts)
        rows = other.generate(
            prompts, attention_mask=mask, max_new_tokens=NEW, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        new: list[list[int]] = rows[:, PROMPT:].tolist()
        return new

    same_tokens = ours() == theirs()
    seconds = time_rounds({"mtnlg_model": ours, "transformers": theirs}, rounds)
    return {
        "batch": batch,
        "ratio": spread(ratios(seconds["transformers"], seconds["mtnlg_model"])),
        "same_tokens": same_tokens,
        "tokens_per_second": {name: batch * NEW / statistics.median(each) for name, each in seconds.items()},
        "seconds": seconds,
    }


def measure(rounds: int = 5) -> dict[str, Any]:
    """Generate one row and eight rows at once."""
    torch.set_num_threads(1)
    decoder, other = make_models(CONFIG)
    eight = compare(8, rounds, decoder, other)
    use_column_major_weights(decoder)
    one = compare(1, rounds, decoder, other)
    return {"parameters": CONFIG.parameters, "prompt": PROMPT, "new": NEW, "results": [one, eight]}


if __name__ == "__main__":
    run(measure, __doc__)
