"""lm-eval's own command with a checkpoint as its model, named ``mtnlg``.

    --model_args checkpoint=DIR[,layout=tp=2,pp=2,dp=1][,store=DIR][,batch_tokens=N]

lm-eval splits the arguments at commas, so the parts of a layout arrive as arguments of their own.
"""

from __future__ import annotations

import atexit
import hashlib
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import lm_eval.models  # noqa: F401  (fills the registry, which lm-eval does only while it is empty)
import torch
from lm_eval import evaluator
from lm_eval.__main__ import cli_evaluate
from lm_eval.api.registry import model_registry
from lm_eval.utils import simple_parse_args_string

from mtnlg_eval.evaluation import MOST
from mtnlg_eval.tasks.chat_template import CONFIG, DEFAULT, FILE, read_chat_templates, read_special_tokens
from mtnlg_model.console import Failure, UsageFailure, say

from .decoder_lm import TOKENS_PER_BATCH, DecoderLM
from .open_model import open_checkpoint, open_lm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lm_eval.api.instance import Instance

    from mtnlg_eval.tasks.chat_template import ChatTemplate

MODEL = "mtnlg"
DEGREES = ("tp", "pp", "dp")
LM_EVALS_OWN = ("trust_remote_code",)
"""Arguments that lm-eval adds for its data sets."""


class CheckpointLM(DecoderLM):
    """Opens checkpoints for lm-eval's registry, and renders chats with the template beside the tokenizer.

    ``special_tokens`` are those of tokenizer_config.json, where there is one: lm-eval's own backend goes by them.
    """

    template_folders: tuple[Path, ...] = ()
    special_tokens: Mapping[str, str] = MappingProxyType({})
    _chat: ChatTemplate | None = None

    @property
    def prefix_token_id(self) -> int:
        """Token that stands in for an empty context: the one that begins texts, or where there is none, ends them."""
        names = filter(None, map(self.special_tokens.get, ("bos_token", "eos_token")))
        tokens = self._prompts.encode(next(names, ""))
        return tokens[0] if len(tokens) == 1 else super().prefix_token_id

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Choose the template that ``--apply_chat_template`` names, and return its text; ``Failure`` without one."""
        return self._choose(chat_template if isinstance(chat_template, str) else DEFAULT).text

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The prompt of a chat."""
        return (self._chat or self._choose(DEFAULT)).render(chat_history, answer=add_generation_prompt)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> list[str]:
        """Continue each prompt, up to the token that ends texts or a chat's answers too."""
        if end := self.special_tokens.get("eos_token"):
            requests = [_ending(request, end) for request in requests]
        return super().generate_until(requests, disable_tqdm)

    def _choose(self, name: str) -> ChatTemplate:
        templates = read_chat_templates(self.template_folders)
        if not templates:
            where = f"put {FILE} or {CONFIG} into {self.template_folders[0]}"
            raise Failure(f"--apply_chat_template: the checkpoint has no chat template; {where}")
        if name not in templates:
            raise UsageFailure(f"--apply_chat_template: no template {name}; there are {', '.join(templates)}")
        self._chat = templates[name]
        return self._chat

    @property
    def tokenizer_name(self) -> str:
        """A name for lm-eval's cache of prompts, which depend on the template."""
        return hashlib.sha256((self._chat or self._choose(DEFAULT)).text.encode()).hexdigest()

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: Mapping[str, Any] | None = None) -> DecoderLM:
        """The model of ``checkpoint=DIR,…``."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: Mapping[str, Any], additional_config: Mapping[str, Any] | None = None
    ) -> DecoderLM:
        """The model of these arguments; it is closed when the process ends.

        lm-eval's batch size has no meaning here: scores do not depend on batches, and ``batch_tokens`` sets their size.
        """
        arguments = {key: value for key, value in arg_dict.items() if key not in LM_EVALS_OWN}
        layout = _layout(arguments)
        checkpoint, store = arguments.pop("checkpoint", None), arguments.pop("store", None)
        batch_tokens = arguments.pop("batch_tokens", TOKENS_PER_BATCH)
        if arguments or checkpoint is None:
            given = f"no argument {', '.join(arguments)}" if arguments else "checkpoint=DIR is missing"
            raise UsageFailure(f"--model_args: {given}; there are checkpoint, layout, store, batch_tokens")
        if not isinstance(batch_tokens, int) or not 1 <= batch_tokens <= MOST:
            raise UsageFailure(f"--model_args: batch_tokens={batch_tokens}: needs a number of tokens")
        if (additional_config or {}).get("device") == "cpu" and torch.cuda.is_available():
            raise UsageFailure("--device cpu: the model runs on the GPU; hide it with CUDA_VISIBLE_DEVICES=")
        path = Path(str(checkpoint))
        out = Path(str(store)) if store is not None else Path(mkdtemp(prefix="mtnlg-eval-"))
        if store is None:
            say(f"answers and logs go to {out}; with --model_args store=DIR the same command resumes")
        with ExitStack() as stack:
            opened = open_checkpoint(path, out)
            lm = stack.enter_context(open_lm(opened, out, layout, cls))
            atexit.register(stack.pop_all().close)
        if not isinstance(lm, CheckpointLM):  # a rank of torchrun other than 0 has served until the end
            sys.exit(0)
        lm.batch_tokens, lm.template_folders = batch_tokens, (path, opened.directory)
        lm.special_tokens = read_special_tokens(lm.template_folders)
        return lm


def _ending(request: Instance, end: str) -> Instance:
    """The request with one more text to stop at."""
    text, options = request.args
    until = options.get("until") or ()
    stops = [*([until] if isinstance(until, str) else until), end]
    return replace(request, arguments=(text, {**options, "until": stops}))


def _layout(arguments: dict[str, Any]) -> str | None:
    """Take the layout out of the arguments: tp=2, with pp and dp beside it."""
    first = arguments.pop("layout", None)
    others = [f"{axis}={arguments.pop(axis)}" for axis in DEGREES if axis in arguments]
    if first is None and others:
        raise UsageFailure(f"--model_args: {','.join(others)}: write layout=tp=2,pp=2,dp=1")
    return None if first is None else ",".join([str(first), *others])


def run_lm_eval(words: Sequence[str]) -> None:
    """Run ``lm-eval run`` with these words and our model."""
    if named := [word for word in words if word.partition("=")[0] in {"--model", "-M"}]:
        raise UsageFailure(f"{named[0]}: the model is a checkpoint: --model_args checkpoint=DIR")
    if MODEL not in model_registry:
        model_registry.register(MODEL, target=CheckpointLM)
    evaluator.get_git_commit_hash = _commit
    sys.argv = ["lm-eval", "run", "--model", MODEL, *words]
    try:
        cli_evaluate()
    except ValueError as error:
        raise Failure(f"lm-eval: {error}") from error


def _commit() -> str | None:
    """Commit of the working folder for lm-eval's results; lm-eval's own lets git complain where there is none."""
    try:
        done = subprocess.run(["git", "describe", "--always"], capture_output=True, text=True, check=False)  # noqa: S607
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None
