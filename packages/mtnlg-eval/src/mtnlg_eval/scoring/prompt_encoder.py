r"""Encode prompts with each piece of text encoded once: an example in many prompts, a context with many choices.

The tokens follow lm-eval's rule: blanks at the end of a context move to the continuation, whose tokens are those of the
whole text after the first n, where n is the number of tokens of the context alone. Encoding the whole text for every
choice takes most of an evaluation's time outside the model. A text may be cut where every tokenization has a boundary:

    GPT-2's pre-tokenizer matches  's 't 're 've 'm 'll 'd |  ?L+ |  ?N+ |  ?[^ blank, L, N]+ | blank+(?!\S) | blank+
    A blank is the first character of a match, or the match is all blanks; so no match has another character before a
    blank: between them one match ends and the next begins. Matches look ahead only after blanks, and never look back.

This holds for a byte-level pre-tokenizer with that pattern, no normalizer, and added tokens that neither contain blanks
nor depend on their neighbours. Any other tokenizer is given whole texts (`cuts_before_blanks`).
"""

from __future__ import annotations

from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mtnlg_model.tokenizer import Tokenizer

    Tokens = tuple[int, ...]

BLANKS = tuple(" \n\r\t")
"""A text is cut before one of these if it follows a non-blank by ``str.isspace``, which has the most blanks."""

SHOT_DELIMITER = "\n\n"
PIECES = 1 << 16
TEXTS = 64
"""Pieces and whole texts whose tokens are cached."""


class PromptEncoder:
    """Encodes prompts with a tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._may_cut = tokenizer, cuts_before_blanks(tokenizer.definition)
        self._numbers: dict[int, int] = {}
        self._piece = lru_cache(maxsize=PIECES if self._may_cut else TEXTS)(self._encode_piece)
        self.encode = lru_cache(maxsize=TEXTS)(self._encode)

    def _encode_piece(self, text: str) -> Tokens:
        # Equal tokens share one object: a prompt then takes 8 bytes per token instead of 36.
        return tuple([self._numbers.setdefault(token, token) for token in self._tokenizer.encode(text)])

    def _encode(self, text: str) -> Tokens:
        """Tokens of a whole text, without those that the tokenizer puts before a prompt."""
        if not self._may_cut:
            return self._piece(text)
        return tuple(chain.from_iterable(map(self._piece, _pieces(text))))

    def encode_prompt(self, text: str) -> Tokens:
        """Tokens of a whole prompt; an empty one begins a document."""
        return (*self._tokenizer.before(text), *self.encode(text)) or (self._tokenizer.bos,)

    def encode_pair(self, context: str, continuation: str) -> tuple[Tokens, Tokens]:
        """Tokens of a context and of its continuation, split as lm-eval splits them."""
        stripped = context.rstrip()
        context, continuation = stripped, context[len(stripped) :] + continuation
        before = tuple(self._tokenizer.before(context))
        cut = _last_cut(context, continuation) if self._may_cut else 0
        if cut == len(context) > 0:
            return before + self.encode(context), self.encode(continuation)
        tail = context[cut:]
        head_tokens, tail_tokens = self.encode(context[:cut]) if cut else (), self.encode(tail)
        return before + head_tokens + tail_tokens, self.encode(tail + continuation)[len(tail_tokens) :]


def _pieces(text: str) -> Iterator[str]:
    """Cut a text before each delimiter of shots that does not follow a blank."""
    piece, *rest = text.split(SHOT_DELIMITER)
    for part in rest:
        if piece and not piece[-1].isspace():
            yield piece
            piece = SHOT_DELIMITER + part
        else:
            piece += SHOT_DELIMITER + part
    yield piece


def _last_cut(context: str, continuation: str) -> int:
    """Last cut in a context that does not end in a blank: its end if the continuation begins with one; 0 if none."""
    if continuation.startswith(BLANKS):
        return len(context)
    blank = max(map(context.rfind, BLANKS))
    cut = len(context[: blank + 1].rstrip())
    return cut if cut and context.startswith(BLANKS, cut) else 0


def cuts_before_blanks(definition: Mapping[str, Any]) -> bool:
    """Whether the tokenizer of this tokenizer.json encodes the texts before and after such a cut independently."""
    pre, model = definition["pre_tokenizer"] or {}, definition["model"]
    return (
        definition["normalizer"] is None
        and pre.get("type") == "ByteLevel"
        and pre.get("use_regex", True)
        and not pre["add_prefix_space"]
        and not model.get("dropout")
        and not any(
            token["lstrip"] or token["rstrip"] or token["single_word"] or any(map(str.isspace, token["content"]))
            for token in definition["added_tokens"]
        )
    )
