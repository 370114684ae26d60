"""Text generation for lm-eval: strict parsing of options, and batching of prompts with the same options.

Batches are planned over all prompts by length, whatever the store already has and in whatever order prompts came: a
killed run that resumes meets the same batches, and so generates the same texts.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from mtnlg_model.console import Failure
from mtnlg_model.generation.generate import generate
from mtnlg_model.generation.sampling import Sampling

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mtnlg_model.decoder import Decoder
    from mtnlg_model.tokenizer import Tokenizer

PROMPTS_PER_BATCH = 16
DEFAULT_MAX_TOKENS = 256  # as in lm-eval's own backends
KNOWN_OPTIONS = frozenset({"until", "do_sample", "temperature", "top_k", "top_p"})
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Names of the limit on new tokens: lm-eval's, transformers' and OpenAI's."""
NEUTRAL = {"num_beams": 1, "num_return_sequences": 1, "repetition_penalty": 1.0, "length_penalty": 1.0}
"""transformers' options that are admitted at the value that changes nothing."""


def requested_tokens(options: Mapping[str, Any]) -> int:
    """The limit on new tokens in a request's options, under any of its names."""
    given = (options[name] for name in LENGTHS if options.get(name) is not None)
    return int(next(given, DEFAULT_MAX_TOKENS))


class Options(NamedTuple):
    """How to continue a prompt: at most ``max_tokens`` tokens, up to the first of the ``until`` strings."""

    until: tuple[str, ...]
    max_tokens: int
    sampling: Sampling

    @classmethod
    def parse(cls, options: Mapping[str, Any], max_length: int) -> Options:
        """Parse a request's options for a model of ``max_length`` tokens, half of which are left to the prompt."""
        for name, value in NEUTRAL.items():
            if options.get(name, value) != value:
                raise Failure(f"generation option {name} = {options[name]}: only {value} is supported")
        requested = requested_tokens(options)
        options = {name: value for name, value in options.items() if name not in NEUTRAL and name not in LENGTHS}
        if unknown := sorted(set(options) - KNOWN_OPTIONS):
            raise Failure(
                f"generation option {', '.join(unknown)}: unknown; use {', '.join(sorted({*KNOWN_OPTIONS, *LENGTHS}))}"
            )
        until = options.get("until") or ()
        given = options.get("temperature")
        sampled = options.get("do_sample", bool(given))
        temperature = (1.0 if given is None else float(given)) if sampled else 0.0
        top_k, top_p = options.get("top_k"), float(options.get("top_p", 1.0))
        return cls(
            until=(until,) if isinstance(until, str) else tuple(until),
            max_tokens=min(requested, max_length // 2),
            sampling=Sampling(temperature=temperature, top_k=top_k, top_p=top_p),
        )


class Prompt(NamedTuple):
    """A tokenized prompt, truncated from the left to leave room for the new tokens."""

    context: tuple[int, ...]
    options: Options

    @classmethod
    def parse(cls, context: Sequence[int], options: Mapping[str, Any], max_length: int) -> Prompt:
        """Build the prompt of a request to a model of ``max_length`` tokens."""
        parsed = Options.parse(options, max_length)
        return cls(tuple(context[-(max_length - parsed.max_tokens) :]), parsed)

    @property
    def greedy(self) -> bool:
        """Whether decoding is greedy, so that the same prompt always gives the same text."""
        return self.options.sampling.temperature == 0


class SampleRequest(NamedTuple):
    """Request for ``samples`` sampled continuations of one prompt, each up to the first of the ``stop`` strings."""

    prompt: str
    samples: int
    max_tokens: int
    sampling: Sampling
    stop: tuple[str, ...]


class PromptBatch(NamedTuple):
    """Tokenized prompts generated together, with the same options."""

    contexts: tuple[tuple[int, ...], ...]
    options: Options


def generate_batch(decoder: Decoder, tokenizer: Tokenizer, batch: PromptBatch) -> list[list[int]]:
    """New tokens of each prompt in one batch; each prompt has a random generator of its own."""
    until, max_tokens, sampling = batch.options
    vocabulary, stop_condition = tokenizer.vocabulary, tokenizer.stop_condition(until)
    return generate(decoder, batch.contexts, max_tokens, sampling, vocabulary=vocabulary, stop_condition=stop_condition)


def batch_prompts(prompts: Sequence[Prompt]) -> Iterator[tuple[list[int], PromptBatch]]:
    """Batch prompts by options, longest first; yields each batch with the indices of its prompts."""
    by_options: defaultdict[Options, list[int]] = defaultdict(list)
    for index in sorted(range(len(prompts)), key=lambda n: (-len(prompts[n].context), prompts[n].context)):
        by_options[prompts[index].options].append(index)
    for options, indices in by_options.items():
        for start in range(0, len(indices), PROMPTS_PER_BATCH):
            chunk = indices[start : start + PROMPTS_PER_BATCH]
            seeded = options._replace(sampling=options.sampling.model_copy(update={"seed": start}))
            yield chunk, PromptBatch(tuple(prompts[n].context for n in chunk), seeded)
