"""How an evaluation differs from the paper's: the only source of this for results.json, console and page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mtnlg_eval.tasks.published import TASKS_BY_NAME

if TYPE_CHECKING:
    from .result import Result

PAPER_STYLE, PAPER_CONTEXT, PAPER_POOL = "paper", 2048, "train"
PAPER_VARIANT = {"lambada": "openai"}  # of the harness that the paper used (paper.md 5)
SCORED_ROWS = "scored rows"
"""Pool of shots if there is no other."""
UNKNOWN = {"hans": "the paper's own prompt is not known"}
OWN_TASK = "not a task of the paper"
STYLES = {"gpt3": "GPT-3's prompts"}
MODES = {
    ("other_subcases", "drawn"): "shots of other subcases only",
    ("any", "interleaved"): "shots with alternating labels",
    ("any", "negative"): "shots of non-entailment only",
}


def differences(result: Result, shown: float, truncated: int) -> list[str]:  # noqa: C901  (a list of what may differ)
    """Differences from the paper's setting, a few words each, the most important first.

    ``shown`` is the mean number of shots shown, ``truncated`` the number of prompts cut.
    """
    rows, shots, published = result.rows, result.shots, TASKS_BY_NAME.get(result.task)
    found: list[str] = [] if published else [OWN_TASK]
    if published and rows.count != published.rows:
        found.append(f"{rows.count:,} rows, {published.rows:,} published")
    if published and rows.split != published.split:
        found.append(f"the {rows.split} split, not {published.split}")
    if rows.variant != PAPER_VARIANT.get(result.task):
        found.append(f"{rows.variant} variant, not {PAPER_VARIANT.get(result.task)}")
    if published and result.style != PAPER_STYLE:
        found.append(STYLES.get(result.style, result.style))
    if shown < shots.count:
        found.append(f"{shown:.1f}".removesuffix(".0") + f" of {shots.count} shots shown")
    if truncated:
        found.append(f"{truncated:,} of {rows.count:,} prompts cut at the beginning")
    pool = SCORED_ROWS if shots.pool == rows.split else shots.pool
    if published and shots.count and pool != PAPER_POOL:
        found.append(f"shots from the {pool}" + ("" if " " in pool else " split"))
    if (modes := (shots.source, shots.labels)) != ("any", "drawn"):
        found.append(MODES.get(modes, ", ".join(modes)))
    if result.model.context != PAPER_CONTEXT:
        found.append(f"context of {result.model.context:,} tokens, not {PAPER_CONTEXT:,}")
    if len(set(result.label_tokens)) > 1:
        found.append(f"label words of {' and '.join(map(str, result.label_tokens))} tokens")
    if rows.failed:
        first = rows.failed[0]
        found.append(f"{len(rows.failed)} rows left out, the first row {first.number}: {first.why}")
    return found + ([UNKNOWN[result.task]] if result.task in UNKNOWN else [])
