"""Text generation for lm-eval: strict parsing of options, and batching of prompts with the same options.

A sampled text depends on its prompt, its options, the seed and its number among the prompt's samples: every row of a
batch has its own random generator. Batches are planned over all prompts by length, regardless of what the store already
has, so a killed run resumes with the same batches.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from lm_eval.models.utils import normalize_gen_kwargs

from mtnlg_model.console import Failure
from mtnlg_model.generation.generate import generate
from mtnlg_model.generation.sampling import Sampling

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mtnlg_model.decoder import Decoder
    from mtnlg_model.tokenizer import Tokenizer

PROMPTS_PER_BATCH = 16
LENGTHS = {"max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens"}
"""Names of the limit on new tokens: lm-eval's, transformers' and OpenAI's."""
KNOWN_OPTIONS = {"until", "do_sample", "temperature", "top_k", "top_p", "seed"} | LENGTHS
NEUTRAL = {"num_beams": 1, "num_return_sequences": 1, "repetition_penalty": 1.0, "length_penalty": 1.0}
"""Options of transformers that are accepted only at the value that has no effect."""


class Options(NamedTuple):
    """How to continue a prompt: at most ``max_tokens`` tokens, up to the first of the ``until`` strings."""

    until: tuple[str, ...]
    max_tokens: int
    sampling: Sampling

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> Options:
        """Parse a request's options, by lm-eval's rules. Raises ``Failure`` for an unknown or unsupported one."""
        for name, value in NEUTRAL.items():
            if options.get(name, value) != value:
                raise Failure(f"generation option {name} = {options[name]}: only {value} is supported")
        if unknown := sorted(options.keys() - KNOWN_OPTIONS - NEUTRAL.keys()):
            known = ", ".join(sorted(KNOWN_OPTIONS))
            raise Failure(f"generation option {', '.join(unknown)}: unknown; use {known}")
        plain = normalize_gen_kwargs({name: value for name, value in options.items() if value is not None})
        temperature, top_p = (float(plain.get(name, 1.0)) for name in ("temperature", "top_p"))
        temperature = temperature if plain["do_sample"] else 0.0
        sampling = Sampling(temperature=temperature, top_k=plain.get("top_k"), top_p=top_p)
        return cls(tuple(plain["until"]), plain["max_gen_toks"], sampling)


class Prompt(NamedTuple):
    """A tokenized prompt and the seed of its random generator; ``cut`` is whether it lost its beginning."""

    context: tuple[int, ...]
    options: Options
    seed: int = 0
    cut: bool = False

    @classmethod
    def parse(cls, context: Sequence[int], options: Mapping[str, Any], max_length: int, sample: str = "") -> Prompt:
        """Build the prompt of a request to a model of ``max_length`` tokens, cut from the left as lm-eval's hf does.

        ``sample`` distinguishes samples of one prompt. Raises ``Failure`` if the new tokens leave no room for a prompt.
        """
        parsed = Options.parse(options)
        room = max_length - parsed.max_tokens
        if room < 1:
            raise Failure(f"max_gen_toks = {parsed.max_tokens}: no room for a prompt in {max_length} tokens of context")
        kept, seed = tuple(context[-room:]), 0
        if parsed.sampling.temperature:
            identity = repr((options.get("seed"), sample, kept, parsed.until, parsed.max_tokens, parsed.sampling))
            seed = int.from_bytes(hashlib.sha256(identity.encode()).digest()[:7])
        return cls(kept, parsed, seed, len(kept) < len(context))


def generate_batch(decoder: Decoder, tokenizer: Tokenizer, batch: Sequence[Prompt]) -> list[list[int]]:
    """New tokens of each prompt; all have the options of the first."""
    until, max_tokens, sampling = batch[0].options
    contexts, seeds = [prompt.context for prompt in batch], [prompt.seed for prompt in batch]
    vocabulary, stop = tokenizer.vocabulary, tokenizer.stop_condition(until)
    return generate(decoder, contexts, max_tokens, sampling, vocabulary=vocabulary, stop_condition=stop, seeds=seeds)


def batch_prompts(prompts: Mapping[int, Prompt]) -> Iterator[list[int]]:
    """Batch prompts with the same options, longest first; yields the keys of each batch."""
    by_options: defaultdict[Options, list[int]] = defaultdict(list)
    for key in sorted(prompts, key=lambda n: (-len(prompts[n].context), prompts[n].context, prompts[n].seed)):
        by_options[prompts[key].options].append(key)
    for keys in by_options.values():
        for start in range(0, len(keys), PROMPTS_PER_BATCH):
            yield keys[start : start + PROMPTS_PER_BATCH]
