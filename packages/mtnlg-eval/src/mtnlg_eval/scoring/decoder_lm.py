"""lm-eval's language model interface over an MT-NLG decoder.

Requests are tokenized (prompt_encoder.py, with lm-eval's own split between context and continuation), answered from the
store if it has them, and otherwise packed into batches for an `Engine`, which runs the network, in this process or
sharded. A thread tokenizes the next requests while the network runs; the rows of all tasks wait in one queue, and each
batch is stored as soon as it is scored.

A score depends only on its request (docs/decisions/0085), not on the rest of its batch.
"""

from __future__ import annotations

from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import compress, islice
from math import fsum, isnan
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch
from lm_eval.api.model import LM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from mtnlg_model.console import Failure
from mtnlg_model.generation.sampling import NO_NUMBERS, row_seeds

from .fixed_order import TILE, fixed_order
from .generation import Prompt, batch_prompts, generate_batch
from .packing import Request, pack_rows, plan_rows, take_batch
from .prompt_encoder import PromptEncoder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from lm_eval.api.instance import Instance
    from torch import Tensor

    from mtnlg_model.decoder import Decoder
    from mtnlg_model.tokenizer import Tokenizer

    from .answer_store import AnswerStore
    from .generation import Options
    from .open_model import OpenedModel
    from .packing import Batch, Row

    Tokens = tuple[int, ...]
    Score = tuple[float, bool]  # log P(answer | context), and whether greedy decoding gives the answer

T = TypeVar("T")
R = TypeVar("R")
TOKENS_PER_BATCH = 8192
ROWS_PER_THREAD = 32
"""Matrix products run on a multiple of this many rows per thread: those of few rows are summed in another order."""
REQUESTS_AHEAD = 512
"""Requests that are tokenized and planned into rows at a time."""
FAILED: Score = (float("-inf"), False)


class Engine(Protocol):
    """Runs the network. Answers are yielded in the order of the batches."""

    def score(self, batches: Iterable[Sequence[Row]]) -> Iterator[dict[Request, Score]]:
        """Yield the scores of each batch's requests."""

    def generate(self, batches: Iterable[Sequence[Prompt]]) -> Iterator[list[list[int]]]:
        """Yield for each batch the new tokens of its prompts."""


class Arriving:
    """A result of the current stream on its way from a GPU to the host; on a CPU nothing is copied.

    It arrives once computed: a plain copy would wait for all work queued on the GPU, the next batch too.
    """

    def __init__(self, result: Tensor) -> None:
        self._copied: torch.cuda.Event | None = None
        if result.is_cuda:
            result = result.to("cpu", non_blocking=True)  # into pinned memory
            self._copied = torch.cuda.current_stream().record_event()
        self._host = result

    def wait(self) -> Tensor:
        """Wait for the result and return it, on the host."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._host


class LocalEngine:
    """`Engine` with the whole decoder in this process. On a GPU, the next batch is packed while one is computed."""

    def __init__(self, decoder: Decoder, tokenizer: Tokenizer) -> None:
        self.decoder, self.tokenizer = decoder, tokenizer
        self.device = decoder.embedding.token.weight.device
        self.ahead, self.row_multiple = int(self.device.type == "cuda"), row_multiple(self.device)

    def score(self, batches: Iterable[Sequence[Row]]) -> Iterator[dict[Request, Score]]:
        """Score batches; ``ahead`` further batches are begun before the scores of one are read."""
        for rows, scores in lagging(map(self._begin, batches), self.ahead):
            yield request_scores(rows, scores.wait())

    def _begin(self, rows: Sequence[Row]) -> tuple[Sequence[Row], Arriving]:
        with fixed_order(self.device):
            return rows, Arriving(self._score_batch(pack_rows(rows, self.row_multiple)))

    def generate(self, batches: Iterable[Sequence[Prompt]]) -> Iterator[list[list[int]]]:
        """Generate from batches of prompts."""
        return map(partial(generate_batch, self.decoder, self.tokenizer), batches)

    @torch.inference_mode()
    def _score_batch(self, batch: Batch) -> Tensor:
        """Log P(target) and greedy flags, [2, N] in fp32; logits exist a few hundred positions at a time."""
        inputs, targets_N = batch.on(self.device, self.decoder.config.layers)
        x_NH = self.decoder.hidden(*inputs)[:, 0]
        chunks = zip(*(torch.split(x, TILE) for x in (x_NH, targets_N)), strict=True)
        logps, greedy = zip(*(self._score_positions(*chunk) for chunk in chunks), strict=True)
        logp_N = torch.cat(logps)
        return torch.stack((logp_N, torch.cat(greedy).to(logp_N.dtype)))

    def _score_positions(self, x_NH: Tensor, target_N: Tensor) -> tuple[Tensor, Tensor]:
        logits_NV = self.decoder.fp32_logits(x_NH)
        # Same order of operations as in the sharded model, so that scores are equal to the last bit.
        logit_N = logits_NV.gather(1, target_N[:, None])[:, 0]
        max_N, argmax_N = logits_NV.max(1)
        sum_N = logits_NV.sub_(max_N[:, None]).exp_().sum(1)
        return logit_N - max_N - sum_N.log(), argmax_N == target_N


def request_scores(rows: Sequence[Row], scores_2N: Tensor) -> dict[Request, Score]:
    """Sum token scores, in the order of `pack_rows`' scored positions, to one score per request.

    Raises ``Failure`` if a score is not a number.
    """
    logps, greedy = (iter(x_N.tolist()) for x_N in scores_2N)
    scores = {
        request: (fsum(islice(logps, len(request.answer))), all(list(islice(greedy, len(request.answer)))))
        for row in rows
        for request in row.requests
    }
    if any(isnan(total) for total, _ in scores.values()):
        raise Failure(NO_NUMBERS)
    return scores


def lagging(items: Iterable[T], count: int) -> Iterator[T]:
    """Yield the items, each only when ``count`` more have been produced."""
    made: deque[T] = deque()
    for item in items:
        made.append(item)
        if len(made) > count:
            yield made.popleft()
    yield from made


def row_multiple(device: torch.device) -> int:
    """Multiple to which rows of products and scored positions are padded, so that their number changes no sum."""
    return TILE if device.type == "cuda" else ROWS_PER_THREAD * torch.get_num_threads()


def ahead(items: Iterator[T]) -> Iterator[T]:
    """Yield the items, each produced in a thread while its predecessor is used."""
    with ThreadPoolExecutor(1, "tokenizing") as pool:
        following = pool.submit(next, items, None)
        while (item := following.result()) is not None:
            following = pool.submit(next, items, None)
            yield item


class DecoderLM(LM):  # type: ignore[misc]  # lm-eval carries no types
    """A decoder as lm-eval's model, for any of its tasks.

    ``on_scored(n)`` is called when n more requests are answered, maybe in another thread, and ``on_failed`` for a
    request that cannot be answered, which by default raises. ``cut`` has ``id()`` of each instance whose prompt lost
    its beginning.
    """

    def __init__(
        self, model: OpenedModel, engine: Engine, store: AnswerStore, batch_tokens: int, rank: int = 0
    ) -> None:
        """``engine`` holds the decoder of ``model``, and ``store`` has answers of it alone.

        Every rank scores all requests; lm-eval summarizes them on rank 0.
        """
        super().__init__()
        self._rank = rank
        self.model, self.engine, self.store, self.batch_tokens = model, engine, store, batch_tokens
        self.max_length, self.chat, self._tokenizer = model.record.context, model.chat, model.tokenizer
        self._longest_short_text = model.config.longest_short_text
        self.on_scored: Callable[[int], None] = lambda _: None
        self.on_failed: Callable[[Instance, Failure], None] | None = None
        self.cut: set[int] = set()
        self._prompts = PromptEncoder(self._tokenizer)
        added = self._tokenizer.definition["added_tokens"]
        self._special = {token["id"] for token in added if token["special"]}

    @property
    def prefix_token_id(self) -> int:
        """Token used as an empty context: the one that begins texts, as in lm-eval's own backend."""
        begin = self._prompts.encode(self.chat.begin)
        return begin[0] if len(begin) == 1 else self._tokenizer.bos

    @property
    def tokenizer_name(self) -> str:
        """Key of lm-eval's prompt cache: the chat template, on which prompts depend."""
        return self.chat.text

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Choose the template that ``--apply_chat_template`` names; return its text. Raises ``Failure`` without one."""
        return self.chat.choose(chat_template if isinstance(chat_template, str) else None)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The prompt of a chat."""
        return self.chat.render(chat_history, answer=add_generation_prompt)

    def tok_encode(self, string: str) -> list[int]:
        """Tokenize a text, after the tokenizer's own first tokens."""
        return [*self._tokenizer.before(string), *self._prompts.encode(string)]

    def _encode_pair(self, context: str, continuation: str) -> tuple[Tokens, Tokens]:
        """A request's tokens, split as lm-eval does, with every piece of text encoded once."""
        tokens, answer = self._prompts.encode_pair(context, continuation)
        return tokens or (self.prefix_token_id,), answer  # a context may be blank

    def loglikelihood(self, requests: Sequence[Instance], disable_tqdm: bool = True) -> list[Score]:
        """Score continuations; lm-eval's progress bar stays off, ``on_scored`` reports instead."""
        del disable_tqdm
        return [scores[0] if scores else FAILED for scores in self._score(requests, self._encode_request)]

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = True) -> list[float]:
        """Log P, in nats, of whole texts of any length; each token is predicted once, with as much context as fits."""
        del disable_tqdm
        return [sum(logp for logp, _ in scores) for scores in self._score(requests, self._encode_windows)]

    def _encode_request(self, instance: Instance) -> list[Request]:
        """The request, tokenized as by lm-eval; a context that is too long for the model loses its beginning."""
        context, continuation = instance.args
        if context:
            tokens, answer = self._encode_pair(context, continuation)
        else:
            tokens, answer = (self.prefix_token_id,), self._prompts.encode(continuation)
            answer = answer[1:] if answer[:1] == tokens else answer
        if not 0 < len(answer) <= self.max_length:
            raise Failure(f"{len(answer)} tokens to score; a continuation has from 1 to {self.max_length}")
        room = self.max_length + 1 - len(answer)  # the last token is predicted, never read
        if len(tokens) > room:
            self.cut.add(id(instance))
        return [Request(tokens[-room:], answer)]

    def _encode_windows(self, instance: Instance) -> list[Request]:
        (text,) = instance.args
        windows = get_rolling_token_windows(self.tok_encode(text), self.prefix_token_id, self.max_length, 1)
        return [Request(*map(tuple, make_disjoint_window(window))) for window in windows]

    def score(self, requests: Sequence[Request]) -> list[Score]:
        """Score tokenized requests."""
        return [scores[0] for scores in self._score(requests, lambda request: [request])]

    def _score(self, items: Sequence[T], encode: Callable[[T], Sequence[Request]]) -> list[Sequence[Score]]:
        """Scores of each item's requests; [] for a failed item. Equal requests run once; batches are stored at once."""
        keys: dict[Request, bytes] = {}
        scores: dict[Request, Score] = {}
        encoded: list[Sequence[Request]] = []
        completes: Counter[Request] = Counter()  # number of items that a request's score completes

        def plan() -> Iterator[list[Row]]:
            for start in range(0, len(items), REQUESTS_AHEAD):
                chunk = [self._attempt(encode, item) for item in items[start : start + REQUESTS_AHEAD]]
                encoded.extend(chunk)
                new = {each: self.store.key("score", *each) for own in chunk for each in own if each not in keys}
                keys.update(new)
                stored = self.store.lookup(list(new.values()))
                scores.update(
                    (each, (stored[key][0], bool(stored[key][1]))) for each, key in new.items() if key in stored
                )
                missing = [each for each, key in new.items() if key not in stored]
                last = Counter(own[-1] for own in chunk if own) & Counter(dict.fromkeys(missing, len(chunk)))
                completes.update(last)
                self.on_scored(len(chunk) - last.total())
                yield plan_rows(missing, self.max_length, self._longest_short_text)

        for new in self.engine.score(self._batches(ahead(plan()))):
            self.store.save((keys[request], score) for request, score in new.items())
            scores |= new
            self.on_scored(sum(completes[request] for request in new))
        return [[scores[request] for request in own] for own in encoded]

    def _batches(self, planned: Iterator[list[Row]]) -> Iterator[list[Row]]:
        """Yield full batches of rows in planned order; only the last may be small."""
        waiting: deque[Row] = deque()
        for rows in planned:
            waiting.extend(rows)
            while sum(row.length for row in waiting) >= self.batch_tokens:
                yield take_batch(waiting, self.batch_tokens)
        while waiting:
            yield take_batch(waiting, self.batch_tokens)

    def _attempt(self, encode: Callable[[T], Sequence[R]], item: T) -> Sequence[R]:
        try:
            return encode(item)
        except Failure as failure:
            if self.on_failed is None:
                raise
            self.on_failed(item, failure)
            return []

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = True) -> list[str]:
        """Continue each prompt up to the first of its ``until`` strings; the text omits special tokens."""
        del disable_tqdm
        prompts: dict[int, Prompt] = {}
        repeats: Counter[int] = Counter()
        for n, request in enumerate(requests):
            sample = str(repeats[id(request)])  # lm-eval lists a request once for each of its samples
            repeats[id(request)] += 1
            for prompt in self._attempt(partial(self._parse, sample=sample), request):
                prompts[n] = prompt
        self.on_scored(len(requests) - len(prompts))
        batches, texts = list(batch_prompts(prompts)), dict[int, str]()
        for numbers, found in zip(batches, self._texts([[prompts[n] for n in each] for each in batches]), strict=True):
            texts.update(zip(numbers, found, strict=True))
            self.on_scored(len(numbers))
        return [texts.get(n, "") for n in range(len(requests))]

    def _parse(self, request: Instance, sample: str) -> list[Prompt]:
        text, options = request.args
        prompt = Prompt.parse(self._prompts.encode_prompt(text), options, self.max_length, sample)
        if prompt.cut:
            self.cut.add(id(request))
        return [prompt]

    def sample(self, requests: Sequence[tuple[str, int, Options]]) -> Iterator[list[str]]:
        """Yield the sampled texts of each (prompt, count, options), in order; they are stored as they are generated."""
        return self._texts(
            [
                [
                    Prompt(self._prompts.encode_prompt(text), options, seed)
                    for seed in row_seeds(options.sampling.seed, n)
                ]
                for text, n, options in requests
            ]
        )

    def _texts(self, batches: Sequence[Sequence[Prompt]]) -> Iterator[list[str]]:
        """Yield each batch's texts. If one is missing, the whole batch runs, so texts do not depend on the store."""
        keys = [[self._text_key(prompt) for prompt in batch] for batch in batches]
        stored = self.store.lookup([key for own in keys for key in own])
        missing = [not stored.keys() >= set(own) for own in keys]
        generated = self.engine.generate(compress(batches, missing))
        for batch, own, lacking in zip(batches, keys, missing, strict=True):
            if lacking:
                texts = [self._decode(tokens, batch[0].options.until) for tokens in next(generated)]
                self.store.save(zip(own, texts, strict=True))
            yield texts if lacking else [str(stored[key]) for key in own]

    def _text_key(self, prompt: Prompt) -> bytes:
        until, max_tokens, sampling = prompt.options
        drawn = (sampling.model_dump(), prompt.seed) if sampling.temperature else ()
        thinking = [self.chat.think_end] * bool(self.chat.think_end)
        return self.store.key("text", prompt.context, until, max_tokens, *drawn, *thinking)

    def _decode(self, tokens: Sequence[int], until: Sequence[str]) -> str:
        """Text before the end token, without special tokens and the model's thinking, up to the first stop string."""
        ended = tokens[:-1] if tokens and tokens[-1] in self._tokenizer.ends else tokens
        text = self._tokenizer.decode([token for token in ended if token not in self._special])
        if self.chat.think_end:
            text = text.rpartition(self.chat.think_end)[2].lstrip()
        return text[: min((text.find(end) for end in until if end and end in text), default=len(text))]
