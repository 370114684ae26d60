"""Chats to tokens and their mask, by the chat template beside the model's tokenizer.

    text      JSON messages, as a reader with ``message = "json"`` has written them
    tokens    ids of the chat as the template renders it, special tokens included, and of the end token if it is missing
    mask      1 for the tokens of answers: those within the template's ``{% generation %}``, or else what an assistant's
              message adds to the prompt of the messages before it

An answer with ``weight: 0`` or ``train: false`` is not learned.

A prompt's tokens must be a prefix of the whole chat's, as the model will see them. A chat for which this does not hold
is dropped, as are chats that the template refuses and chats whose messages spell a special token. Nothing is guessed.
"""

from __future__ import annotations

import json
from datetime import datetime
from functools import lru_cache
from itertools import chain, compress
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2 import TemplateError
from tokenizers import Tokenizer

from mtnlg_data.console import Failure
from mtnlg_data.files import read_small
from mtnlg_data.sandbox import MARKS, chat_environment

from .tokenizer import tokenizer_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from jinja2 import Template

    from mtnlg_data.steps.tokenize import TokenizeSettings

TEMPLATE, CONFIG = "chat_template.jinja", "tokenizer_config.json"
VERSION = 2


class Chat(NamedTuple):
    """A chat template, the special tokens that it may name, the sources of chats, and the date that it is told."""

    template: str
    tokens: dict[str, str]
    sources: tuple[str, ...]
    date: str | None = None

    def fingerprint(self) -> object:
        """What tokens and masks depend on, this module's version included."""
        return [VERSION, self.template, self.tokens, *([self.date] if self.date else [])]


def read_chat(settings: TokenizeSettings, sources: tuple[str, ...]) -> Chat:
    """The template of the tokenizer's folder. Raises ``Failure`` if it is missing or cannot be read."""
    files = tokenizer_files(settings)
    if not files:
        raise Failure(f"sources.{sources[0]}.chat needs tokenize.tokenizer, the folder of a model with a chat template")
    folder, config, template = files[0].parent, dict[str, Any](), None
    try:
        if (folder / CONFIG).is_file():
            config = json.loads(read_small(folder / CONFIG, follow=True))
        template = config.get("chat_template")
        if isinstance(template, list):
            template = {each["name"]: each["template"] for each in template}.get("default")
        if (folder / TEMPLATE).is_file():
            template = read_small(folder / TEMPLATE, follow=True).decode()
        if not isinstance(template, str):
            raise Failure(f"{folder}: no chat template for sources.{sources[0]}; put {TEMPLATE} there")
        if "strftime_now" in template and not settings.date:
            raise Failure(f'{folder}: the chat template writes the date; set tokenize.date, such as "2026-11-27"')
        chat_environment().from_string(template)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, TemplateError) as error:
        raise Failure(f"{folder}: no chat template that can be read: {error}") from None
    given = {key: value for key, value in config.items() if key.endswith("_token")}
    texts = {key: value.get("content") if isinstance(value, dict) else value for key, value in given.items()}
    return Chat(template, {key: text for key, text in texts.items() if isinstance(text, str)}, sources, settings.date)


class UnusableChat(Exception):  # noqa: N818  (no error: a document is dropped)
    """A chat that cannot be encoded; the message is the reason for which it is dropped."""


class ChatEncoder:
    """Encodes chats by a tokenizer.json and a template; ``eod`` is the token that ends documents."""

    def __init__(self, tokenizer: Path, chat: Chat, eod: int) -> None:
        self._tokenizer = _open(tokenizer, tokenizer.stat().st_mtime_ns)
        environment = chat_environment(marked=True)
        if chat.date:
            environment.globals["strftime_now"] = datetime.fromisoformat(chat.date).strftime
        self._template: Template = environment.from_string(chat.template)
        self._marks_answers = "generation" in chat.template and "endgeneration" in chat.template
        self._calls_tools = "tool_calls" in chat.template
        self._variables, self._eod = chat.tokens, eod
        added = self._tokenizer.get_added_tokens_decoder().values()
        self._reserved = [token.content for token in added if token.special] + [*MARKS]

    def __call__(self, text: str) -> tuple[list[int], list[int]]:
        """The ids of a chat, end token included, and for each 1 if it is to be learned. Raises ``UnusableChat``."""
        messages = self._messages(text)
        rendered = self._render(messages)
        pieces = [piece.split(MARKS[1]) for piece in rendered.split(MARKS[0])]
        whole = "".join(chain.from_iterable(pieces))
        spans = self._marked(pieces) if self._marks_answers else self._added(messages, whole)
        ids = self._encode(whole)
        learned = [0] * len(ids)
        weights = [_weight(message) for message in messages]
        answers = [weight for weight, message in zip(weights, messages, strict=True) if message["role"] == "assistant"]
        if not all(answers) and len(answers) != len(spans):
            raise UnusableChat("unstable_template")
        for begin, end in compress(spans, answers) if not all(answers) else spans:
            first, last = (self._count(whole[:place], ids) for place in (begin, end))
            learned[first:last] = [1] * (last - first)
        if not any(learned):
            raise UnusableChat("no_answer")
        if ids[-1] != self._eod:
            ids, learned = [*ids, self._eod], [*learned, learned[-1]]
        return ids, learned

    def _messages(self, text: str) -> list[dict[str, Any]]:
        try:
            messages = json.loads(text)
            are_named = all(isinstance(message["role"], str) for message in messages)
            are_texts = all(self._is_text(**message) for message in messages)
            texts = [*_texts(messages)]
        except (ValueError, LookupError, TypeError, RecursionError):
            raise UnusableChat("not_a_chat") from None
        if not (are_named and are_texts):
            raise UnusableChat("content_not_text" if are_named else "not_a_chat")
        if any(token in text for token in self._reserved for text in texts):
            raise UnusableChat("spells_special_token")
        return list(messages)

    def _is_text(self, content: object, tool_calls: object = None, **_: object) -> bool:
        """Whether the content is a text, or only calls tools, in a template that writes these calls."""
        return isinstance(content, str) or (content is None and bool(tool_calls) and self._calls_tools)

    def _render(self, messages: Sequence[dict[str, Any]], prompt: bool = False) -> str:
        try:
            text = self._template.render(messages=messages, add_generation_prompt=prompt, **self._variables)
            text.encode()  # half of a surrogate pair is no text
        except Exception:  # noqa: BLE001  (a program of anyone raises anything)
            raise UnusableChat("not_rendered") from None
        return text

    @staticmethod
    def _marked(pieces: Sequence[Sequence[str]]) -> list[tuple[int, int]]:
        """(begin, end) of the answers in the joined text of these pieces, of which the first is before any answer."""
        spans, place = list[tuple[int, int]](), len(pieces[0][0])
        for answer, *rest in pieces[1:]:
            spans.append((place, place + len(answer)))
            place += len(answer) + sum(map(len, rest))
        return spans

    def _added(self, messages: Sequence[dict[str, Any]], whole: str) -> list[tuple[int, int]]:
        """(begin, end) of the assistant's messages in the whole text."""
        spans = []
        for number, message in enumerate(messages):
            if message["role"] == "assistant":
                before, after = self._render(messages[:number], prompt=True), self._render(messages[: number + 1])
                if not (whole.startswith(after) and after.startswith(before)):
                    raise UnusableChat("unstable_template")
                spans.append((len(before), len(after)))
        return spans

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _count(self, text: str, ids: Sequence[int]) -> int:
        """Number of the ids that encode ``text``, a beginning of their text. Raises ``UnusableChat`` if others do."""
        beginning = self._encode(text)
        if list(ids[: len(beginning)]) != beginning:
            raise UnusableChat("unstable_tokens")
        return len(beginning)


def _weight(message: dict[str, Any]) -> bool:
    """Whether a message is learned if it is an answer: its ``train`` or else its ``weight``, 0, 1 or a bool."""
    weight = message.get("weight") if message.get("train") is None else message["train"]
    if weight not in (None, 0, 1) or (weight and message["role"] != "assistant"):
        raise UnusableChat("unknown_weight")
    return weight is None or bool(weight)


def _texts(value: object) -> Iterator[str]:
    """All texts in a value, of which a template may write any."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in chain.from_iterable(value.items()) if isinstance(value, dict) else value:
            yield from _texts(each)


@lru_cache(maxsize=1)
def _open(path: Path, _changed: int) -> Tokenizer:
    tokenizer = Tokenizer.from_str(read_small(path, follow=True).decode())
    if hasattr(tokenizer.model, "dropout"):
        tokenizer.model.dropout = None
    return tokenizer
