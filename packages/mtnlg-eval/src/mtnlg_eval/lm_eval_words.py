"""Translate the command line of ``lm-eval run``, read by lm-eval's own parser, to arguments of `evaluate`.

lm-eval splits model arguments at commas, so the parts of a layout arrive as separate arguments.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm_eval._cli import HarnessCLI
from lm_eval.config.evaluate_config import EvaluatorConfig

from mtnlg_eval.scoring.cells import OF_LM_EVAL
from mtnlg_model.console import Failure, UsageFailure

if TYPE_CHECKING:
    from collections.abc import Sequence

DEGREES = ("tp", "pp", "dp")
REFUSED = {
    "use_cache": "returns answers of other models; --model_args store=DIR keeps this model's",
    **dict.fromkeys(("wandb_args", "trackio_args", "hf_hub_log_args", "check_integrity"), "there is none here"),
}


def parse_lm_eval(words: Sequence[str]) -> dict[str, Any]:
    """Arguments of `evaluate` for these command-line words. Raises ``UsageFailure`` for an unsupported option."""
    if named := [word for word in words if word.partition("=")[0] in {"--model", "-M"}]:
        raise UsageFailure(f"{named[0]}: give the model as --model_args checkpoint=MODEL")
    parser = HarnessCLI()._parser  # noqa: SLF001  (lm-eval has no public parser)
    try:
        config = EvaluatorConfig.from_cli(parser.parse_args(["run", *words]))
    except ValueError as error:
        raise Failure(f"lm-eval: {error}") from error
    for name, why in REFUSED.items():
        if getattr(config, name):
            raise UsageFailure(f"--{name}: {why}")
    given = {name: value for name, value in config.model_args.items() if name != "trust_remote_code"}
    checkpoint = given.pop("checkpoint", None) or given.pop("pretrained", None)
    if checkpoint is None:
        raise UsageFailure("--model_args: checkpoint=MODEL is missing")
    first = given.pop("layout", None)
    others = [f"{axis}={given.pop(axis)}" for axis in DEGREES if axis in given]
    if first is None and others:
        raise UsageFailure(f"--model_args: {','.join(others)}: write layout=tp=2,pp=2,dp=1")
    if first is not None:
        given["layout"] = ",".join([str(first), *others])
    if not (out := config.output_path or given.get("store")):
        raise UsageFailure("--output_path DIR: needed for the results")
    tasks = config.tasks.split(",") if isinstance(config.tasks, str) else config.tasks
    _, _, torch_seed, shots_seed = config.seed
    seed = shots_seed if shots_seed is not None else 1234
    return {
        "checkpoint": str(checkpoint),
        "out": Path(out).parent if out.endswith(".json") else Path(out),
        "tasks": [f"{OF_LM_EVAL}{name}" for name in tasks],
        "shots": None if config.num_fewshot is None else [str(config.num_fewshot)],
        "seeds": (seed,),
        "include_path": config.include_path,
        "model_args": given,
        "limit": config.limit,
        "lm_eval": {
            "first": True,
            "rows": config.samples or {},
            "gen_kwargs": {"seed": torch_seed, **config.gen_kwargs},
            "apply_chat_template": config.apply_chat_template,
            "system_instruction": config.system_instruction,
            "fewshot_as_multiturn": config.fewshot_as_multiturn is not False,
            "unsafe_code": config.confirm_run_unsafe_code,
        },
    }
