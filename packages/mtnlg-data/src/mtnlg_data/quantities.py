"""Kinds of settings that many steps have: shares, text lengths, the alarm of a step that drops too much."""

from __future__ import annotations

from functools import partial
from typing import Any

from .settings import setting

share = partial(setting, unit="share", ge=0, le=1)
per_word = partial(setting, unit="per word", ge=0)
characters = partial(setting, unit="characters", ge=0)
words = partial(setting, unit="words", ge=0)


def alarm_share(default: float, description: str = "Warn where a source loses a larger share.") -> Any:  # noqa: ANN401
    """Setting: a step gives an alarm if it drops more than this share of a source's documents."""
    return share(default, description, keyed=False)
