"""Tokenize documents into Megatron token stores and their blend.

[bold]--vocabulary 50257[/bold] trains a tokenizer, [bold]--tokenizer[/bold] reads one.
"""

from __future__ import annotations

from datetime import datetime
from math import log
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import PositiveInt, model_validator

from mtnlg_data.fingerprint import file_digest
from mtnlg_data.settings import Settings, setting
from mtnlg_data.sources.corpus import DATASETS
from mtnlg_data.step import Cost, Kind, Step
from mtnlg_data.transfer.urls import location

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from mtnlg_data.job import Job
    from mtnlg_data.planning.corpus_size import CorpusSize
    from mtnlg_data.summary import Summary
    from mtnlg_data.tokens.chat import Chat
    from mtnlg_data.transfer.urls import Location


Library = Literal["auto", "tokenizers"]
MIN_VOCABULARY = 257  # 256 bytes and the end token


class TokenizeSettings(Settings):
    """Which tokenizer to use, and what share of each source is held out for validation."""

    vocabulary: int | None = setting(
        None,
        "Train a tokenizer of this many tokens, the end token included.",
        unit="tokens",
        paper="50257, GPT-2's",
        ge=MIN_VOCABULARY,
        lt=1 << 31,
    )
    tokenizer: str | None = setting(
        None,
        "Read a tokenizer instead: a tokenizer.json, a folder with one or with GPT-2's two files; gpt2 downloads them.",
        paper="gpt2",
        min_length=1,
    )
    eod: str | None = setting(
        None, "Token that ends documents, added if missing; the tokenizer's own if not given.", min_length=1
    )
    bos: str | Literal[True] | None = setting(
        None, "Token that begins documents: its name, or true in a recipe for the tokenizer's own; none if not given."
    )
    date: str | None = setting(None, "Date that a chat template writes as today's, such as 2026-11-27.", keyed=False)
    validation: float = setting(
        0.02, "Documents of each source held out for validation.", unit="share", paper="0.02", ge=0, le=0.5
    )
    seed: int = setting(1234, "Seed of the training sample and of the order of documents.", paper="1234")
    library: Library = setting(
        "auto", "Encoder; auto is gigatoken (an extra; faster, same ids) where it can be used.", keyed=False
    )
    sample_bytes: PositiveInt = setting(100_000_000, "Approximate maximum text to train on.", unit="bytes")

    @model_validator(mode="after")
    def _takes_one_tokenizer(self) -> Self:
        if (self.vocabulary is None) == (self.tokenizer is None):
            raise ValueError("tokenize takes either a vocabulary to train, such as 50257, or a tokenizer to read")
        if self.bos and self.vocabulary:
            raise ValueError("bos needs a tokenizer to read; one that is trained here has no beginning token")
        if self.date:
            datetime.fromisoformat(self.date)
        return self


class TokenizeKeys(Settings):
    """What tokenize reads of a source."""

    weight: float = setting(
        ...,
        "Share of the training samples; default the paper's for the dataset of this name.",
        unit="share",
        gt=0,
        le=1,
    )
    chat: bool = setting(
        False,
        "Its texts are chats of messages, read with message = 'json': tokens are by the chat template beside the "
        "tokenizer, and only those of the assistant's messages are learned.",
        keyed=False,
    )


class Tokenize(Step[TokenizeSettings, TokenizeKeys]):
    """A store per source."""

    number, version = 6, 3
    varies = ()
    gives: ClassVar[Kind] = "tokens"
    kept = ("tokenizers",)

    @classmethod
    def source_defaults(cls, name: str, table: Mapping[str, Any]) -> dict[str, Any]:
        """The paper's weight of a source of this name."""
        del table
        return {"weight": DATASETS[name].weight} if name in DATASETS else {}

    @classmethod
    def localize(cls, values: Mapping[str, Any], local: Callable[[Location], Path]) -> dict[str, Any]:
        """The tokenizer is a path, made local, or the name of GPT-2's."""
        given = values["tokenizer"]
        return {**values, "tokenizer": given if given in {None, "gpt2"} else str(local(location(given)))}

    @property
    def weights(self) -> dict[str, float]:
        """Share of the training samples, by source."""
        return {name: keys.weight for name, keys in self.sources.items()}

    def validate(self) -> None:
        """Check that the weights sum to 1. Raises ``ValueError`` if ``bos`` or the name of a mask would be lost."""
        from mtnlg_data.tokens.blend import check_weights  # noqa: PLC0415

        check_weights(self.weights)
        if self.settings.bos and self.sources and all(keys.chat for keys in self.sources.values()):
            raise ValueError("tokenize.bos is for texts: chats begin as their template says; leave it out")
        masks = {f"{name}.mask": name for name, keys in self.sources.items() if keys.chat}
        if taken := sorted(masks.keys() & self.sources.keys()):
            raise ValueError(f"sources.{taken[0]}: the mask of {masks[taken[0]]} has this name; give it another")

    def check(self) -> None:
        """Read the tokenizer."""
        from mtnlg_data.tokens.tokenizer import check_tokenizer  # noqa: PLC0415

        check_tokenizer(self.settings)
        self.chat()

    def chat(self) -> Chat | None:
        """The chat template, or None if no source has chats. Raises ``Failure`` if it is missing."""
        chats = tuple(name for name, keys in self.sources.items() if keys.chat)
        if not chats:
            return None
        from mtnlg_data.tokens.chat import read_chat  # noqa: PLC0415

        return read_chat(self.settings, chats)

    def cost(self, corpus: CorpusSize) -> Cost:
        """Tokens are on disk encoded, merged for a time, and in the stores.

        English had 4.3 characters per token of GPT-2's 50,257, and 2.8 of 4,096 of its own.
        """
        vocabulary = self.settings.vocabulary or 50_257
        width = 2 if vocabulary <= 1 << 16 else 4
        tokens = int(corpus.text / max(0.6 * log(vocabulary) - 2.18, 1.0)) + corpus.documents
        disk = 2 * width * tokens + 52 * corpus.documents + 70 * vocabulary
        seconds = 0.26 * min(self.settings.sample_bytes, corpus.text) / 1e6 if self.settings.vocabulary else 0.0
        return Cost(0.0263 * corpus.text / 1e6, 390_000_000 + corpus.group, disk, width * tokens, seconds)

    def fingerprint(self, source: str) -> object:
        """What the tokens of a source depend on; the files of the tokenizer count by their content."""
        from mtnlg_data.tokens.tokenizer import tokenizer_files  # noqa: PLC0415

        files = [file_digest(file) for file in tokenizer_files(self.settings)]
        chat = [self.chat()] if self.sources[source].chat else []
        return [self.settings.model_copy(update={"tokenizer": None}), self.sources[source], files, *chat]

    def apply(self, job: Job) -> Summary:
        """Encode, shuffle, write the stores."""
        from mtnlg_data.tokens.encoding import tokenize  # noqa: PLC0415

        return tokenize(self, job)
