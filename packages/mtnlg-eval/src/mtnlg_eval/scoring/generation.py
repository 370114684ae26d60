"""lm-eval's requests to generate: options read strictly, prompts of like options put together, and what runs them.

Prompts that run together are a `Portion`. Portions are planned over all prompts by length, whatever is known already
and in whatever order they came: a killed run that goes on meets the same portions, and with them the same texts.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from mtnlg_model.console import Failure
from mtnlg_model.generation.generate import Sampling, generate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from mtnlg_model.decoder import Decoder
    from mtnlg_model.tokenizer import Tokenizer

PROMPTS_AT_ONCE = 16
NEW_TOKENS = 256  # where a request does not say, as in lm-eval's own backends
OPTIONS = frozenset({"until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p"})


class Options(NamedTuple):
    """How to go on from a prompt: at most ``tokens`` tokens, up to the first of the ``until`` texts."""

    until: tuple[str, ...]
    tokens: int
    sampling: Sampling

    @classmethod
    def of(cls, given: Mapping[str, Any], longest: int) -> Options:
        """The options of a request; half the model's ``longest`` sequence is the prompt's."""
        if unknown := sorted(set(given) - OPTIONS):
            raise Failure(f"generation option {', '.join(unknown)}: unknown; there are {', '.join(sorted(OPTIONS))}")
        until = given.get("until") or ()
        temperature = float(given.get("temperature", 1.0)) if given.get("do_sample", False) else 0.0
        return cls(
            until=(until,) if isinstance(until, str) else tuple(until),
            tokens=min(int(given.get("max_gen_toks", NEW_TOKENS)), longest // 2),
            sampling=Sampling(temperature=temperature, top_k=given.get("top_k"), top_p=float(given.get("top_p", 1.0))),
        )


class Prompt(NamedTuple):
    """A prompt in tokens, cut at its beginning to leave room for what is to come."""

    context: tuple[int, ...]
    options: Options

    @classmethod
    def of(cls, context: Sequence[int], given: Mapping[str, Any], longest: int) -> Prompt:
        """The prompt of a request to a model that reads ``longest`` tokens."""
        options = Options.of(given, longest)
        return cls(tuple(context[-(longest - options.tokens) :]), options)

    @property
    def greedy(self) -> bool:
        """Whether the same prompt always gives the same text."""
        return self.options.sampling.temperature == 0


class Draws(NamedTuple):
    """So many texts to be drawn behind one prompt, each up to the first of the ``stop`` texts."""

    prompt: str
    texts: int
    tokens: int
    sampling: Sampling
    stop: tuple[str, ...]


class Portion(NamedTuple):
    """Contexts that run together, and how to go on from each."""

    contexts: tuple[tuple[int, ...], ...]
    options: Options


class Generation(Protocol):
    """Runs the network over portions, as many at a time as it likes."""

    def __call__(self, portions: Iterable[Portion]) -> Iterator[list[list[int]]]:
        """Of each portion in turn the new tokens of its contexts."""


def run(decoder: Decoder, tokenizer: Tokenizer, portion: Portion) -> list[list[int]]:
    """The new tokens of one portion; each context draws random numbers of its own."""
    until, tokens, sampling = portion.options
    vocabulary, ended = tokenizer.vocabulary, tokenizer.ends(until)
    return generate(decoder, portion.contexts, tokens, sampling, vocabulary=vocabulary, ended=ended)


def portions(prompts: Sequence[Prompt]) -> Iterator[tuple[list[int], Portion]]:
    """The prompts in portions, each with the numbers of its prompts: those of like options together, longest first."""
    alike: defaultdict[Options, list[int]] = defaultdict(list)
    for number, prompt in sorted(enumerate(prompts), key=lambda one: (-len(one[1].context), one[1].context)):
        alike[prompt.options].append(number)
    for options, numbers in alike.items():
        for start in range(0, len(numbers), PROMPTS_AT_ONCE):
            part = numbers[start : start + PROMPTS_AT_ONCE]
            seeded = options._replace(sampling=options.sampling.model_copy(update={"seed": start}))
            yield part, Portion(tuple(prompts[n].context for n in part), seeded)
