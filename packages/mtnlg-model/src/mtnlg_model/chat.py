"""Chat templates beside a tokenizer, rendered as transformers renders them.

    chat_template.jinja, chat_templates/NAME.jinja      one template per file
    tokenizer_config.json                               "chat_template" and the special tokens that templates name

A template is untrusted code: it runs in `Sandbox` and sees only messages, special tokens and the caller's variables.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from .checkpoint.chat_files import PartOfFile, own_file
from .checkpoint.manifest import parse_json
from .console import Failure, UsageFailure
from .files import read_small
from .sandbox import chat_environment
from .settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from jinja2 import Template

FILE, FOLDER, CONFIG = "chat_template.jinja", "chat_templates", "tokenizer_config.json"
DEFAULT = "default"
END = "THE-LAST-MESSAGE-GOES-ON-HERE "
"""Placeholder appended to a message that the model continues: the rendered chat is cut there. Templates may trim its
last space."""


class _Named(Settings):
    name: str
    template: str


class _Config(PartOfFile):
    chat_template: str | tuple[_Named, ...] | None = None


@dataclass
class Chat:
    """A model's chat templates by name, each with its file, and the tokens that delimit texts and thinking.

    ``begin`` is the token that begins texts, else the one that ends them, or "" if no file names either; ``think_end``
    ends the model's thinking, "" if it does none. ``text`` is the chosen template, read from the file ``place``.
    """

    templates: Mapping[str, tuple[str, Path]] = field(default_factory=dict)
    variables: Mapping[str, object] = field(default_factory=dict)
    begin: str = ""
    think_end: str = ""
    text: str = ""
    _chosen: Template | None = None

    @classmethod
    def read(
        cls,
        folders: Iterable[Path],
        variables: Mapping[str, object] = MappingProxyType({}),
        thinking: bool | None = None,
        think_end: str | None = None,
    ) -> Chat:
        """Read the templates of the first folder that has any, and the special tokens of the first that names any.

        ``variables`` and ``thinking`` (as ``enable_thinking``) are passed to templates. Raises ``Failure`` for a
        malformed file.
        """
        templates: dict[str, tuple[str, Path]] = {}
        tokens: dict[str, str] = {}
        for folder in folders:
            path = folder / CONFIG
            raw = _read(path) if path.is_file() else b"{}"
            config = parse_json(raw, _Config, path)
            tokens = tokens or _special_tokens(json.loads(raw))
            if not templates:
                own = config.chat_template or ()
                named = [(DEFAULT, own)] if isinstance(own, str) else [(each.name, each.template) for each in own]
                templates = {name: (text, path) for name, text in named}
                files = {path.stem: path for path in sorted((folder / FOLDER).glob("*.jinja"))}
                files |= {DEFAULT: folder / FILE} if (folder / FILE).is_file() else {}
                templates |= {name: (_read(path).decode(), path) for name, path in files.items()}
        options = {} if thinking is None else {"enable_thinking": thinking}
        begin = tokens.get("bos_token") or tokens.get("eos_token") or ""
        return cls(templates, {**tokens, **variables, **options}, begin, think_end or "")

    @property
    def texts(self) -> dict[str, str]:
        """The templates by name."""
        return {name: text for name, (text, _) in self.templates.items()}

    def choose(self, name: str | None = None) -> str:
        """Choose template ``name``, or the default one, and return its text. Raises ``Failure`` if it is missing."""
        name = name or DEFAULT
        if not self.templates:
            raise Failure(f"the model has no chat template; put {FILE} beside it")
        if name not in self.templates:
            raise UsageFailure(f"no chat template {name}; choose from {', '.join(self.templates)}")
        self.text, self.place = self.templates[name]
        try:
            self._chosen = chat_environment().from_string(self.text)
        except Exception as error:  # noqa: BLE001  (Jinja's, or Python's of what Jinja makes of it)
            raise Failure(f"{self.place}: not a Jinja template: {error}") from None
        return self.text

    def render(self, messages: Sequence[Mapping[str, str]], *, answer: bool = True) -> str:
        """The prompt of a chat: up to where the answer begins, or, without ``answer``, to the end of the last message.

        A template that rejects a system message gets the chat without it, as in lm-eval. Raises ``Failure`` if it
        cannot be rendered.
        """
        if self._chosen is None:
            self.choose()
        try:
            try:
                return self._render(messages, answer)
            except TemplateError:
                return self._render([message for message in messages if message["role"] != "system"], answer)
        except Exception as error:  # noqa: BLE001  (a program of anyone raises anything)
            reason = str(error) or type(error).__name__
            raise Failure(f"{self.place}: the chat template cannot render a prompt: {reason}") from None

    def _render(self, messages: Sequence[Mapping[str, str]], answer: bool) -> str:
        chat = [dict(message) for message in messages]
        if not answer:
            chat[-1]["content"] += END
        text: str = self._chosen.render(  # type: ignore[union-attr]  # it is chosen
            messages=chat, add_generation_prompt=answer, **self.variables
        )
        if answer:
            return text
        kept, mark, rest = text.rpartition(END.strip())
        if not mark:
            raise ValueError("it omits the last message")
        return kept if rest.startswith(" ") else kept.rstrip()


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens of a tokenizer_config.json by their keys."""
    keys = {key: value for key, value in config.items() if key.endswith("_token")}
    texts = {key: value.get("content") if isinstance(value, dict) else value for key, value in keys.items()}
    return {key: text for key, text in texts.items() if text and isinstance(text, str)}


def _read(path: Path) -> bytes:
    raw = read_small(own_file(path.parent, path.name))
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        raise Failure(f"{path}: not UTF-8: {error}") from None
    return raw
