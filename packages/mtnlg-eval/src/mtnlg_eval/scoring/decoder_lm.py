"""lm-eval's language model over the decoder of a checkpoint.

What lm-eval asks comes as text; it becomes tokens here (lm-eval's own cut between context and continuation), requests
that are known already are answered from the store, and the rest is packed into batches (packing.py) for a `Forward`:
the one place that touches the network, which a sharded engine may take. Logits exist only at the places that are
scored, a few hundred at a time, never [S, V].
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache, partial
from itertools import islice
from math import fsum
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from mtnlg_model.console import Failure
from mtnlg_model.generation.generate import cut
from mtnlg_model.tokenizer import Tokenizer

from .answer_store import Store
from .generation import Options, Portion, Prompt, portions, run
from .packing import Request, plan, tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from lm_eval.api.instance import Instance
    from torch import Tensor

    from mtnlg_eval.sharded.driver import Driver
    from mtnlg_model.checkpoint.reader import Checkpoint
    from mtnlg_model.decoder import Decoder

    from .generation import Draws, Generation
    from .packing import Batch, Row

    Score = tuple[float, bool]  # log P(answer | context), and whether greedy decoding gives the answer

TOKENS_A_BATCH = 8192
PLACES_AT_ONCE = 512
ROWS_A_THREAD = 32
"""A product has a multiple of so many rows for each thread, for a row of few is summed in another order."""


class Forward(Protocol):
    """Runs the network over batches, as many at a time as it likes."""

    def __call__(self, batches: Iterable[Batch]) -> Iterator[tuple[Tensor, Tensor]]:
        """Of each batch in turn log P(target) in fp32 and whether the target is likeliest, [N] each, on the CPU."""


class DecoderForward:
    """The whole decoder in this process."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.device = decoder.embedding.token.weight.device

    def __call__(self, batches: Iterable[Batch]) -> Iterator[tuple[Tensor, Tensor]]:
        """As `Forward`, one batch after the other."""
        return map(self._run, batches)

    @torch.inference_mode()
    def _run(self, batch: Batch) -> tuple[Tensor, Tensor]:
        here = batch.to(self.device)
        paths = here.paths()
        attend = paths.attend(self.decoder.config.layers)
        x_NH, targets_N = self.decoder.hidden(here.tokens[None], paths.depths[None], attend)[:, 0], here.targets
        parts = zip(torch.split(x_NH, PLACES_AT_ONCE), torch.split(targets_N, PLACES_AT_ONCE), strict=True)
        scored = [self._score(*part) for part in parts]
        return torch.cat([logp for logp, _ in scored]).cpu(), torch.cat([greedy for _, greedy in scored]).cpu()

    def _score(self, x_NH: Tensor, target_N: Tensor) -> tuple[Tensor, Tensor]:
        logits_NV = self.decoder.logits(x_NH).float()
        # In the order of a model in slices, whose scores are then these to the last bit.
        aimed_N = logits_NV.gather(1, target_N[:, None])[:, 0]
        top_N, likeliest_N = logits_NV.max(1)
        total_N = logits_NV.sub_(top_N[:, None]).exp_().sum(1)
        return aimed_N - top_N - total_N.log(), likeliest_N == target_N


class DecoderLM(TemplateLM):  # type: ignore[misc]  # lm-eval carries no types
    """A decoder that any lm-eval task can ask; ``scored`` is told of every answered request."""

    def __init__(
        self,
        decoder: Decoder,
        tokenizer: Tokenizer,
        store: Store,
        forward: Forward | None = None,
        generation: Generation | None = None,
    ) -> None:
        super().__init__()
        if tokenizer.vocabulary > decoder.config.vocabulary:
            known, rows = tokenizer.vocabulary, decoder.config.vocabulary
            raise Failure(f"the tokenizer has {known} tokens and the model {rows}: they do not belong together")
        self.decoder, self.store, self.forward = decoder, store, forward or DecoderForward(decoder)
        self.generation: Generation = generation or partial(map, partial(run, decoder, tokenizer))
        self.max_length = decoder.config.sequence
        self.precision = str(decoder.embedding.token.weight.dtype).removeprefix("torch.")
        self.scored: Callable[[int], None] = lambda _: None
        self.batch_tokens = TOKENS_A_BATCH
        self._tokenizer = tokenizer
        self._encode = lru_cache(maxsize=64)(lambda text: tuple(tokenizer.encode(text)))

    @classmethod
    def open(cls, checkpoint: Checkpoint, store: Path | None = None, sharded: Driver | None = None) -> DecoderLM:
        """The decoder of a checkpoint: on a GPU in the precision it is stored in where there is one, else in fp32.

        Answers are kept in ``store``, or in memory alone. With ``sharded`` other processes hold most of it.
        """
        cuda = torch.cuda.is_available()
        dtype = checkpoint.dtype(checkpoint.names[0]) if cuda else torch.float32
        identity = f"{checkpoint.digest} {dtype}"
        tokenizer = Tokenizer(checkpoint.tokenizer_path)
        if sharded is not None:
            # A decoder as far as anything here asks.
            return cls(cast("Decoder", sharded), tokenizer, Store(identity, store), sharded, sharded.generate)
        decoder = checkpoint.decoder(dtype, "cuda" if cuda else "cpu")
        return cls(decoder, tokenizer, Store(identity, store))

    @property
    def eot_token_id(self) -> int:
        """What ends a document, and stands before one that has no context."""
        return self._tokenizer.eod

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: object) -> list[int]:
        """Tokens of a text; nothing is ever added to them."""
        del add_special_tokens
        return list(self._encode(string))

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[Score]:
        """See lm-eval; its progress bar is left out, ours is elsewhere."""
        del disable_tqdm
        scores: list[Score] = super().loglikelihood(requests, disable_tqdm=True)
        return scores

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = True) -> list[float]:
        """Log P of whole texts of any length, each token predicted once with as much context as there is."""
        del disable_tqdm
        totals: list[float] = []
        for (text,) in (request.args for request in requests):
            windows = get_rolling_token_windows(self.tok_encode(text), self.prefix_token_id, self.max_length, 1)
            parts = [Request(*map(tuple, make_disjoint_window(window))) for window in windows]
            totals.append(sum(logp for logp, _ in self.score(parts)))
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> list[str]:
        """Text behind each prompt up to the first of its ``until``; greedy texts are kept in the store."""
        del disable_tqdm
        prompts = [
            Prompt.of(self.tok_encode(text) or [self.eot_token_id], options, self.max_length)
            for text, options in (request.args for request in requests)
        ]
        keys = [self.store.key("generate", prompt.context, *prompt.options[:2]) for prompt in prompts]
        known = self.store.known(keys)
        texts = {n: str(known[key]) for n, key in enumerate(keys) if key in known and prompts[n].greedy}
        self.scored(len(texts))
        planned = [one for one in portions(prompts) if not all(n in texts for n in one[0])]
        for (numbers, portion), new in zip(planned, self.generation(p for _, p in planned), strict=True):
            self.scored(sum(n not in texts for n in numbers))
            texts |= {n: self._text(tokens, portion.options.until) for n, tokens in zip(numbers, new, strict=True)}
            self.store.keep((keys[n], texts[n]) for n in numbers if prompts[n].greedy)
        return [texts[n] for n in range(len(prompts))]

    def samples(self, wanted: Sequence[Draws]) -> Iterator[list[str]]:
        """Of each in turn the texts that are drawn; kept in the store as they come."""
        keys = [self.store.key("samples", *draws[:3], draws.sampling.model_dump(), draws.stop) for draws in wanted]
        known = self.store.known(keys)
        missing = {key: draws for key, draws in zip(keys, wanted, strict=True) if key not in known}
        fresh = self.generation(map(self._portion, missing.values()))
        for key in keys:
            if key not in known:  # the next of the missing ones, which are in the order of the keys
                known[key] = [self._text(tokens, missing[key].stop) for tokens in next(fresh)]
                self.store.keep([(key, known[key])])
            yield list(known[key])

    def _portion(self, draws: Draws) -> Portion:
        context = tuple(self._encode(draws.prompt)) or (self.eot_token_id,)
        return Portion((context,) * draws.texts, Options(draws.stop, draws.tokens, draws.sampling))

    def _text(self, new: Sequence[int], until: Sequence[str]) -> str:
        return cut(self._tokenizer, new, until)

    def _loglikelihood_tokens(self, requests: Iterable[tuple[Any, list[int], list[int]]], **_: object) -> list[Score]:
        return self.score([self._cut(context, answer) for _, context, answer in requests])

    def _cut(self, context: Sequence[int], answer: Sequence[int]) -> Request:
        """The request with the beginning of its context cut off where the model cannot read it all."""
        if not 0 < len(answer) <= self.max_length:
            raise Failure(f"{len(answer)} tokens to score; a continuation has from 1 to {self.max_length}")
        return Request(tuple(context[-(self.max_length + 1 - len(answer)) :]), tuple(answer))

    def score(self, requests: Sequence[Request]) -> list[Score]:
        """Answer requests, each different one once, a batch being kept before the next begins.

        A score does not depend on what else is asked, on what is known already or on ``batch_tokens``.
        """
        times = Counter(requests)
        keys = {request: self.store.key("score", *request) for request in times}
        found = self.store.known(list(keys.values()))
        answers = {request: (found[key][0], bool(found[key][1])) for request, key in keys.items() if key in found}
        self.scored(sum(times[request] for request in answers))
        batches = plan((request for request in times if request not in answers), self.max_length, self.batch_tokens)
        step = ROWS_A_THREAD * torch.get_num_threads()
        for rows, result in zip(batches, self.forward(tensors(rows, step) for rows in batches), strict=True):
            fresh = _answers(rows, *result)
            self.store.keep((keys[request], score) for request, score in fresh.items())
            answers |= fresh
            self.scored(sum(times[request] for request in fresh))
        return [answers[request] for request in requests]


def _answers(rows: Sequence[Row], logp_N: Tensor, greedy_N: Tensor) -> dict[Request, Score]:
    """The scores of requests from those of their tokens, which go row by row, answer by answer."""
    logp, greedy = iter(logp_N.tolist()), iter(greedy_N.tolist())
    lengths = ((request, len(request.answer)) for row in rows for request in row.requests)
    return {request: (fsum(islice(logp, n)), all(list(islice(greedy, n)))) for request, n in lengths}
