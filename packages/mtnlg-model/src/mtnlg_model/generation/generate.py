"""Batched text generation with a key-value cache: every step adds one token to every unfinished row.

Prompts of different lengths are left-padded. The padding is masked, and each row's positions count from its own first
token, as learned position embeddings require. Finished rows leave the batch; a row whose context is full is finished.
"""

from __future__ import annotations

from contextlib import contextmanager
from itertools import takewhile
from typing import TYPE_CHECKING

import torch

from mtnlg_model.console import Failure
from mtnlg_model.functional import causal_mask

from .sampling import GREEDY, draw_tokens, penalize, row_generators, to_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import Tensor

    from mtnlg_model.config import ModelConfig
    from mtnlg_model.decoder import Decoder
    from mtnlg_model.tokenizer import Tokenizer

    from .cache import Cache
    from .sampling import Sampling

REPLACEMENT = "\ufffd"
"""What an incomplete character is decoded to."""


def stream_tokens(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    sampling: Sampling = GREEDY,
    *,
    vocabulary: int | None = None,
    stop_condition: Callable[[Sequence[int]], bool] | None = None,
    seeds: Sequence[int] | None = None,
) -> Iterator[tuple[int, int]]:
    """Yield (row, token) as tokens are drawn: at most ``max_new_tokens`` per row, fewer if its context is full.

    A row finishes with the token that makes ``stop_condition`` of its new tokens true; that token is yielded too. Only
    the first ``vocabulary`` entries are drawn from, which excludes padding of the vocabulary. ``seeds`` seed the rows'
    random generators; by default they derive from the sampling's seed (`row_generators`). Where rotary positions depend
    on the length of the text, each token is that of a pass over its whole text. Raises ``Failure`` for an empty or too
    long prompt.
    """
    if not prompts:
        return
    check_prompts(prompts, decoder.config)
    longest = max(len(prompt) for prompt in prompts)
    limits = [min(max_new_tokens, decoder.config.sequence - len(prompt) + 1) for prompt in prompts]
    device = decoder.embedding.token.weight.device
    generators = row_generators(sampling, len(prompts), seeds)
    padding = [longest - len(prompt) for prompt in prompts]
    cache = decoder.cache(longest + max(limits) - 1)
    rows = list(range(len(prompts)))
    # Padding is a token that the row has, for the repetition penalty.
    texts = [[prompt[0]] * n + list(prompt) for n, prompt in zip(padding, prompts, strict=True)]
    tokens_BS, seen_BV = to_device(torch.tensor(texts), device), None
    if sampling.repetition_penalty != 1:
        seen_BV = torch.zeros(len(prompts), decoder.config.tokens, dtype=torch.bool, device=device)
    for count in range(1, max(limits) + 1):
        with torch.inference_mode(), eval_mode(decoder):
            logits_BV = _next_logits(decoder, tokens_BS, padding, cache)[:, :vocabulary]
            if seen_BV is not None:
                seen_BV.scatter_(1, tokens_BS, value=True)
                logits_BV = penalize(logits_BV, seen_BV[:, :vocabulary], sampling.repetition_penalty)
            drawn = draw_tokens(logits_BV, sampling, [generators[row] for row in rows])
        for row, token in zip(rows, drawn, strict=True):
            texts[row].append(token)
            yield row, token
        within = [n for n, row in enumerate(rows) if count < limits[row]]
        unfinished = [n for n in within if stop_condition is None or not stop_condition(texts[rows[n]][longest:])]
        if not unfinished:
            return
        if len(unfinished) < len(rows):
            kept = to_device(torch.tensor(unfinished), device)
            cache.keep(kept)
            seen_BV = None if seen_BV is None else seen_BV[kept]
            rows, padding = [rows[n] for n in unfinished], [padding[n] for n in unfinished]
        first = -1
        if cache.length - (decoder.config.longest_short_text or -1) in padding:  # now long: all its keys change
            cache, first = decoder.cache(longest + max(limits) - 1), 0
        tokens_BS = to_device(torch.tensor([texts[row][first:] for row in rows]), device)


def use_column_major_weights(decoder: Decoder) -> None:
    """Store the wide weights in column-major order, in place; values stay the same, sums run in another order.

    A CPU multiplies one row by them 1.06 to 1.2 times as fast (benchmarks/generate.py), and several rows no faster.
    """
    for name, weight in decoder.named_parameters():
        if name.endswith(("token.weight", "qkv.weight", "gate.weight", "up.weight", "head.weight")):
            weight.data = weight.data.t().contiguous().t()


def check_prompts(prompts: Sequence[Sequence[int]], config: ModelConfig) -> None:
    """Raise ``Failure`` for a prompt that is empty, longer than the context, or has a token outside the vocabulary."""
    for row, prompt in enumerate(prompts):
        if not prompt:
            raise Failure(f"prompt {row} is empty; begin it with the end-of-document token")
        if len(prompt) > config.sequence:
            raise Failure(f"prompt {row} has {len(prompt)} tokens; the model reads {config.sequence}")
        if not 0 <= min(prompt) <= max(prompt) < config.vocabulary:
            raise Failure(f"prompt {row} has a token outside the vocabulary of {config.vocabulary}")


def _next_logits(decoder: Decoder, tokens_BS: Tensor, padding: Sequence[int], cache: Cache) -> Tensor:
    s, cached = tokens_BS.shape[1], cache.length
    if not any(padding):
        return decoder.logits(decoder.hidden(tokens_BS, cache.positions(tokens_BS), cache.attend())[-1])
    padding_B = to_device(torch.tensor(padding), tokens_BS.device)
    columns_S = torch.arange(cached, cached + s, device=tokens_BS.device)
    columns_T = torch.arange(cached + s, device=tokens_BS.device)
    positions_BS = (columns_S - padding_B[:, None]).clamp(min=0)
    unpadded_B1T = columns_T >= padding_B[:, None, None]
    causal_ST = causal_mask(s, cached + s, tokens_BS.device)
    # Padding attends to itself: softmax over no key at all is undefined.
    self_ST = columns_S[:, None] == columns_T
    mask_B1ST = ((causal_ST & unpadded_B1T) | self_ST)[:, None]
    return decoder.logits(decoder.hidden(tokens_BS, positions_BS, cache.attend(mask_B1ST))[-1])


@contextmanager
def eval_mode(decoder: Decoder) -> Iterator[None]:
    """Switch dropout off, and back on afterwards if it was on."""
    if not decoder.training:
        yield
        return
    decoder.eval()
    try:
        yield
    finally:
        decoder.train()


def generate(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    sampling: Sampling = GREEDY,
    *,
    vocabulary: int | None = None,
    stop_condition: Callable[[Sequence[int]], bool] | None = None,
    seeds: Sequence[int] | None = None,
) -> list[list[int]]:
    """The new tokens of every prompt. Arguments as for `stream_tokens`."""
    new: list[list[int]] = [[] for _ in prompts]
    for row, token in stream_tokens(
        decoder, prompts, max_new_tokens, sampling, vocabulary=vocabulary, stop_condition=stop_condition, seeds=seeds
    ):
        new[row].append(token)
    return new


def complete(  # noqa: PLR0917  (the options of a completion)
    decoder: Decoder,
    tokenizer: Tokenizer,
    prompts: Sequence[str | Sequence[int]],
    max_new_tokens: int,
    sampling: Sampling = GREEDY,
    stop: str | Sequence[str] = (),
    seeds: Sequence[int] | None = None,
) -> list[str]:
    """The continuation of each prompt up to the end of the document or answer, or the first ``stop`` text, excluded.

    A prompt is a text, where "" begins a new document, or its tokens. ``seeds`` are as for `stream_tokens`.
    """
    stop = [stop] if isinstance(stop, str) else stop
    encoded = [_encoded(tokenizer, prompt) for prompt in prompts]
    vocabulary, condition = tokenizer.vocabulary, tokenizer.stop_condition(stop)
    completions = generate(
        decoder, encoded, max_new_tokens, sampling, vocabulary=vocabulary, stop_condition=condition, seeds=seeds
    )
    texts = (new[:-1] if new and new[-1] in tokenizer.ends else new for new in completions)
    return [_before_stop(tokenizer.decode_behind(text), stop) for text in texts]


def stream_text(  # noqa: PLR0917  (as complete)
    decoder: Decoder,
    tokenizer: Tokenizer,
    prompt: str | Sequence[int],
    max_new_tokens: int,
    sampling: Sampling = GREEDY,
    stop: str | Sequence[str] = (),
) -> Iterator[str]:
    """Yield the text of `complete` for one prompt in pieces as it is drawn; no piece is ever taken back.

    Its work is linear in the number of tokens.
    """
    stop = [stop] if isinstance(stop, str) else stop
    lookahead = max((len(text) for text in stop), default=1) - 1
    encoded, pending = _encoded(tokenizer, prompt), ""
    vocabulary, condition = tokenizer.vocabulary, tokenizer.stop_condition(stop)
    drawn = stream_tokens(decoder, [encoded], max_new_tokens, sampling, vocabulary=vocabulary, stop_condition=condition)
    tokens = takewhile(lambda token: token not in tokenizer.ends, (token for _, token in drawn))
    for piece in _text_pieces(tokenizer, tokens):
        text = pending + piece
        pending = _before_stop(text, stop)
        if pending != text:
            break
        # Hold back what may be the beginning of a stop text.
        if (final := len(pending) - lookahead) > 0:
            yield pending[:final]
            pending = pending[final:]
    yield pending


def _text_pieces(tokenizer: Tokenizer, tokens: Iterable[int]) -> Iterator[str]:
    """Yield the text of tokens that continue a text, in whole characters; at the end also an incomplete character.

    Each token is decoded together with the tokens of the previous piece, since decoders join and trim neighbours.
    """
    recent: list[int] = []
    previous, text, length = 0, "", 0
    for token in tokens:
        recent.append(token)
        text = tokenizer.decode_behind(recent)
        length = len(tokenizer.decode_behind(recent[:previous]))
        if not 0 < len(text) - len(text.rstrip(REPLACEMENT)) < 4:  # a character has four bytes at most
            yield text[length:]
            recent, previous, length = recent[previous:], len(recent) - previous, len(text)
    yield text[length:]


def _encoded(tokenizer: Tokenizer, prompt: str | Sequence[int]) -> Sequence[int]:
    return tokenizer.encode_prompt(prompt) if isinstance(prompt, str) else prompt


def _before_stop(text: str, stop: Sequence[str]) -> str:
    return text[: min((text.find(end) for end in stop if end and end in text), default=len(text))]
