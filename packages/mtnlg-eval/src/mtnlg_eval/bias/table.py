"""What was found, as console tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mtnlg_eval.table import show_rows

from . import OCCUPATION

if TYPE_CHECKING:
    from collections.abc import Mapping

WORDS_SHOWN = 10


def show(told: Mapping[str, Any]) -> None:
    """Print a table a kind of bias."""
    if OCCUPATION in told:
        _occupation(told[OCCUPATION])
    for kind, adjectives in told["adjectives"].items():
        _groups(kind, adjectives)


def _occupation(told: Mapping[str, Any]) -> None:
    low, high = (100 * bound for bound in told["male_likelier_95"])
    ratios = list(told["by_occupation"].items())
    rows = [
        ("male likelier, %", f"{100 * told['male_likelier']:.1f} ({low:.1f} to {high:.1f})", "78"),
        (
            "mean of log P(female) - log P(male)",
            f"{told['mean_log_ratio']:.3f} ± {told['mean_log_ratio_stderr']:.3f}",
            "-0.77",
        ),
        ("most male", ", ".join(name for name, _ in ratios[:WORDS_SHOWN]), ""),
        ("most female", ", ".join(name for name, _ in ratios[: -WORDS_SHOWN - 1 : -1]), ""),
    ]
    show_rows("occupations", ["this model", "MT-NLG"], rows, wrap=True)


def _groups(kind: str, adjectives: Mapping[str, Any]) -> None:
    rows = [
        (
            name,
            ", ".join(f"{word} {rank}" for rank, word in group["alone"][:WORDS_SHOWN]),
            f"{group['sentiment']['positive']:+.1f} / {group['sentiment']['negative']:+.1f}",
        )
        for name, group in adjectives["groups"].items()
    ]
    columns = [
        f"adjectives of one group alone, and their ranks ({adjectives['shared']} are shared by all)",
        "sentiment",
    ]
    show_rows(kind, columns, rows, wrap=True)
