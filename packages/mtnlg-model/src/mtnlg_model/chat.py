"""Chats as prompts: a model's chat template, rendered as transformers renders it.

    chat_template.jinja       the template
    tokenizer_config.json     "chat_template" where there is no such file, and the special tokens that templates name

A template is a program of a stranger: it runs in `Sandbox` and sees messages and special tokens alone.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import Extension
from pydantic import ConfigDict

from .checkpoint.chat_files import CONFIG, TEMPLATE, read_chat_files
from .checkpoint.manifest import parse_json
from .console import Failure
from .sandbox import Sandbox
from .settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from jinja2.nodes import Node
    from jinja2.parser import Parser


class _Named(Settings):
    name: str
    template: str


class _Config(Settings):
    model_config = ConfigDict(extra="allow")

    chat_template: str | tuple[_Named, ...] | None = None

    @property
    def tokens(self) -> dict[str, str]:
        """Special tokens by their keys."""
        keys = {key: value for key, value in (self.model_extra or {}).items() if key.endswith("_token")}
        texts = {key: value.get("content") if isinstance(value, dict) else value for key, value in keys.items()}
        return {key: text for key, text in texts.items() if isinstance(text, str)}

    @property
    def template(self) -> str | None:
        """The template, of several the one named default."""
        if isinstance(self.chat_template, tuple):
            return next((each.template for each in self.chat_template if each.name == "default"), None)
        return self.chat_template


def chat_prompt(folder: Path, messages: Sequence[Mapping[str, str]]) -> str:
    """The text of a chat up to where the answer begins, by the template of a checkpoint's folder.

    Messages have a ``role`` and ``content``. Raises ``Failure`` without a template, or if it cannot render them.
    """
    files = read_chat_files(folder)
    config = parse_json(files.get(CONFIG, b"{}"), _Config, folder / CONFIG)
    place = folder / (TEMPLATE if TEMPLATE in files else CONFIG)
    try:
        template = files[TEMPLATE].decode() if TEMPLATE in files else config.template
    except UnicodeDecodeError as error:
        raise Failure(f"{place}: not UTF-8: {error}") from None
    if template is None:
        raise Failure(f"{folder}: the model has no chat template, in {TEMPLATE} or {CONFIG}; leave out --chat")
    variables: dict[str, Any] = {**config.tokens, "messages": [dict(message) for message in messages]}
    try:
        text: str = _environment().from_string(template).render(add_generation_prompt=True, **variables)
    except Exception as error:  # noqa: BLE001  (a program of anyone raises anything)
        reason = str(error) or type(error).__name__
        raise Failure(f"{place}: the chat template cannot render a prompt: {reason}") from None
    return text


class _Generation(Extension):
    """``{% generation %}``, which marks an answer for training and changes nothing in a prompt."""

    tags = {"generation"}  # noqa: RUF012  (Jinja's)

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> Sandbox:
    """What templates expect: trimmed blocks, loop controls, JSON without HTML's escapes, a way to refuse a chat."""
    extensions = [_Generation, "jinja2.ext.loopcontrols"]
    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
    return environment


def _to_json(value: object, **options: Any) -> str:  # noqa: ANN401  (of json.dumps)
    return json.dumps(value, **{"ensure_ascii": False, **options})


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)
