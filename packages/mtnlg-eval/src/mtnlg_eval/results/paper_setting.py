"""What of an evaluation differs from the paper's: the one place where results.json, console and page take it from."""

from __future__ import annotations

from mtnlg_eval.tasks.published import TASKS_BY_NAME

PAPER_STYLE, PAPER_CONTEXT, PAPER_POOL = "paper", 2048, "train"
PAPER_VARIANT = {"lambada": "openai"}  # of the harness that the paper used (paper.md 5)
UNKNOWN = {"hans": "the paper's own prompt is not known"}
OWN_TASK = "not a task of the paper"
STYLES = {"gpt3": "GPT-3's prompts", "lm_eval": "stock lm-eval's prompts, shots and scores"}
MODES = {
    ("other_subcases", "drawn"): "shots of other subcases only",
    ("any", "interleaved"): "shots with alternating labels",
    ("any", "negative"): "shots of non-entailment only",
}


def differences(  # noqa: C901  (a list of what may differ)
    task: str,
    *,
    style: str,
    rows: int,
    split: str,
    variant: str | None,
    asked: int,
    shown: float,
    pool: str,
    modes: tuple[str, str],
    truncated: int,
    context: int,
    failed: list[str],
    label_tokens: list[int],
) -> list[str]:
    """What differs from the paper's setting, a few words each, what matters most first.

    ``asked`` and ``shown`` are examples in a prompt, ``modes`` the source and labels of HANS's, ``truncated`` prompts
    that lost their beginning, ``context`` the longest prompt in tokens, ``failed`` rows left out,
    ``label_tokens`` the tokens of each label word.
    """
    published = TASKS_BY_NAME.get(task)
    found: list[str] = [] if published else [OWN_TASK]
    if published and rows != published.rows:
        found.append(f"{rows:,} rows, {published.rows:,} published")
    if published and split != published.split:
        found.append(f"the {split} split, not {published.split}")
    if variant != PAPER_VARIANT.get(task):
        found.append(f"{variant} variant, not {PAPER_VARIANT.get(task)}")
    if published and style != PAPER_STYLE:
        found.append(STYLES.get(style, style))
    if shown < asked:
        found.append(f"{shown:.1f}".removesuffix(".0") + f" of {asked} shots shown")
    if truncated:
        found.append(f"{truncated:,} of {rows:,} prompts cut at the beginning")
    if published and pool != PAPER_POOL:
        found.append(f"shots from the {pool}" + ("" if " " in pool else " split"))
    if modes != ("any", "drawn"):
        found.append(MODES.get(modes, ", ".join(modes)))
    if context != PAPER_CONTEXT:
        found.append(f"context of {context:,} tokens, not {PAPER_CONTEXT:,}")
    if len(set(label_tokens)) > 1:
        found.append(f"label words of {' and '.join(map(str, label_tokens))} tokens")
    if failed:
        found.append(f"{len(failed)} rows left out, the first {failed[0]}")
    return found + ([UNKNOWN[task]] if task in UNKNOWN else [])
