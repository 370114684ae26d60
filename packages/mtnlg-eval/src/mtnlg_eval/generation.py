"""lm-eval's requests to generate: its options read strictly, prompts of like options run together."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from mtnlg_model.console import Failure
from mtnlg_model.generate import Sampling, cut, generate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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


def completions(decoder: Decoder, tokenizer: Tokenizer, prompts: Sequence[Prompt]) -> Iterator[tuple[int, str]]:
    """Number of a prompt and its text, as they are ready. Each prompt draws its own random numbers."""
    alike: defaultdict[Options, list[int]] = defaultdict(list)
    for number, prompt in enumerate(prompts):
        alike[prompt.options].append(number)
    for (until, tokens, sampling), numbers in alike.items():
        for start in range(0, len(numbers), PROMPTS_AT_ONCE):
            part = numbers[start : start + PROMPTS_AT_ONCE]
            contexts, seeded = [prompts[n].context for n in part], sampling.model_copy(update={"seed": part[0]})
            ended = tokenizer.ends(until)
            new = generate(decoder, contexts, tokens, seeded, vocabulary=tokenizer.vocabulary, ended=ended)
            yield from ((n, cut(tokenizer, text, until)) for n, text in zip(part, new, strict=True))
