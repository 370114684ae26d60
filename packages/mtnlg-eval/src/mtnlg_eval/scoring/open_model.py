"""Opens the model that a command names: a checkpoint, the newest of a folder, a Hugging Face folder or a hub id.

A Hugging Face folder is read in place. A model's identity is everything that determines its answers: weights by
content, tokenizer, chat files, dtype and context. Checksums of weights are computed when a model is opened, compared
with the checkpoint's own, and cached as long as a file keeps its path, size, time and inode.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import Field, PositiveInt, model_validator

from mtnlg_eval.hub import fetch_model
from mtnlg_eval.results.result import Model
from mtnlg_model.chat import Chat
from mtnlg_model.checkpoint.chat_files import read_chat_files
from mtnlg_model.checkpoint.manifest import file_checksum, resolve_checkpoint
from mtnlg_model.checkpoint.reader import Checkpoint
from mtnlg_model.checksums import cached_checksums
from mtnlg_model.console import Failure, UsageFailure
from mtnlg_model.convert.config_json import is_huggingface
from mtnlg_model.convert.huggingface import HuggingFaceWeights
from mtnlg_model.settings import Settings, validate
from mtnlg_model.tokenizer import Tokenizer

from .answer_store import AnswerStore
from .decoder_lm import TOKENS_PER_BATCH, DecoderLM, LocalEngine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mtnlg_model.config import ModelConfig
    from mtnlg_model.decoder import Decoder


ADAPTER = "adapter_config.json"
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
MERGE = "adapters are not applied; merge it (PEFT's merge_and_unload), save that model and name its folder"
SMALL_PRODUCT = 1 << 20
"""Elements of a layer's largest matrix up to which one thread is faster than several (docs/packages/eval.md)."""


class ModelOptions(Settings):
    """How to open a model: the options of ``--model-args``, named as in lm-eval's hf backend.

    ``layout`` shards the model; ``store`` is the folder of answers, by default that of the results; ``max_length``
    shortens the context, in tokens; ``revision`` is the hub's. ``enable_thinking`` and those after it are for chats.
    """

    layout: str | None = None
    batch_tokens: PositiveInt = TOKENS_PER_BATCH
    store: str | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    max_length: PositiveInt | None = None
    revision: str | None = None
    enable_thinking: bool | None = None
    think_end_token: str | None = None
    chat_template_args: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_thinking(self) -> ModelOptions:
        if self.enable_thinking and not self.think_end_token:
            raise ValueError("enable_thinking=True: needs think_end_token, such as </think>, as lm-eval's hf does")
        return self

    @classmethod
    def parse(cls, words: Mapping[str, Any]) -> ModelOptions:
        """Parse the options. Raises ``UsageFailure`` for an unknown option or a wrong value."""
        if adapter := next((name for name in ("peft", "delta") if words.get(name)), None):
            raise UsageFailure(f"{adapter}={words[adapter]}: {MERGE}")
        return validate(words, cls, "model arguments")


DEFAULTS = ModelOptions()


@dataclass(frozen=True)
class OpenedModel:
    """A model that can be loaded; ``record`` is the part of its results, without the number of threads."""

    weights: Checkpoint | HuggingFaceWeights
    tokenizer: Tokenizer
    chat: Chat
    dtype: torch.dtype
    record: Model

    @property
    def config(self) -> ModelConfig:
        """The decoder's configuration."""
        return self.weights.config

    def decoder(self) -> Decoder:
        """The decoder in evaluation mode, on a GPU if there is one."""
        return self.weights.decoder(self.dtype, "cuda" if torch.cuda.is_available() else "cpu")


def open_model(source: Path | str, options: ModelOptions = DEFAULTS) -> OpenedModel:
    """Open a checkpoint, the newest of a folder, a Hugging Face folder, or a model of the hub by its id.

    Raises ``Failure`` if ``source`` is none of these, or if a checksum of the weights does not match.
    """
    folder, name = Path(source), ""
    if not folder.exists() and HUB_ID.fullmatch(str(source)):
        folder, name = fetch_model(str(source), options.revision), str(source).rpartition("/")[2]
    elif options.revision:
        raise UsageFailure(f"revision={options.revision}: {folder} is a local folder, not a model on the hub")
    if not folder.is_dir():
        raise Failure(f"{folder}: no such folder")
    if (folder / ADAPTER).exists():
        raise Failure(f"{folder / ADAPTER}: an adapter: {MERGE}")
    weights, weights_digest = _open_weights(folder)
    made, tokenizer_path = weights.progress if isinstance(weights, Checkpoint) else None, weights.tokenizer_path
    tokenizer, place = Tokenizer(tokenizer_path), tokenizer_path.parent
    if tokenizer.vocabulary > weights.config.vocabulary:
        sizes = f"the tokenizer has {tokenizer.vocabulary} tokens, the model {weights.config.vocabulary}"
        raise Failure(f"{folder}: {sizes}: they do not belong together")
    context = options.max_length or weights.config.sequence
    if context > weights.config.sequence:
        raise UsageFailure(f"max_length={context}: {folder} reads at most {weights.config.sequence} tokens")
    stored = weights.dtype("embedding.token.weight") if torch.cuda.is_available() else torch.float32
    dtype = stored if options.dtype == "auto" else getattr(torch, options.dtype)
    chat = Chat.read((folder, place), options.chat_template_args, options.enable_thinking, options.think_end_token)
    files = {name: hashlib.sha256(raw).hexdigest() for name, raw in read_chat_files(place).items()}
    answers = [weights_digest, tokenizer.definition, files, chat.texts, str(dtype), context]
    record = Model(
        checkpoint=str(source) if name else str(weights.directory),
        name=name or weights.directory.resolve().name,
        digest=_digest(answers),
        tokens=made.tokens if made else 0,
        step=made.step if made else 0,
        parameters=weights.config.parameters,
        precision=str(dtype).removeprefix("torch."),
        context=context,
    )
    return OpenedModel(weights, tokenizer, chat, dtype, record)


def _open_weights(folder: Path) -> tuple[Checkpoint | HuggingFaceWeights, str]:
    """The weights in a folder and their digest. Raises ``CheckpointError`` if a checksum does not match."""
    if is_huggingface(folder):
        weights = HuggingFaceWeights(folder)
        files = cached_checksums([(path,) for path in weights.paths], lambda paths: file_checksum(*paths))
        sums = {path.name: checksum for (path,), checksum in files.items()}
        return weights, _digest([weights.config.model_dump(), sums])
    newest = resolve_checkpoint(folder)
    if not (newest / "manifest.json").exists():
        raise Failure(f"{folder}: no checkpoint: neither step-N/manifest.json nor Hugging Face's config.json")
    checkpoint = Checkpoint.open(newest)
    checkpoint.verify_weights()
    return checkpoint, checkpoint.digest


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def choose_threads(config: ModelConfig) -> int:
    """Set and return torch's threads for a model on a CPU: OMP_NUM_THREADS, else 1 for small matrices, else default."""
    largest = config.hidden * config.ffn
    if not os.environ.get("OMP_NUM_THREADS") and not torch.cuda.is_available() and largest <= SMALL_PRODUCT:
        torch.set_num_threads(1)
    return torch.get_num_threads()


def open_lm(model: OpenedModel, store: Path | None = None, batch_tokens: int = TOKENS_PER_BATCH) -> DecoderLM:
    """Load a model into this process, with its answers in the file ``store``, or in memory if None."""
    answers = AnswerStore(answers_identity(model), store)
    return DecoderLM(model, LocalEngine(model.decoder(), model.tokenizer), answers, batch_tokens)


def answers_identity(model: OpenedModel) -> str:
    """Everything that determines a model's answers to the last bit; also sets the number of threads."""
    threads = choose_threads(model.config)
    return f"{model.record.digest} {'cuda' if torch.cuda.is_available() else threads}"
