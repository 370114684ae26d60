"""A sandbox in which lm-eval renders the templates of YAML, which is untrusted, while our call of it lasts."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import lm_eval.utils
from jinja2 import StrictUndefined

from mtnlg_model.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator

PROMPTS = Sandbox(undefined=StrictUndefined, keep_trailing_newline=True)
PROMPTS.filters["regex_replace"] = lm_eval.utils.regex_replace


@contextmanager
def sandboxed_templates() -> Iterator[None]:
    """Make lm-eval, whose templates have no other hook, render them in `PROMPTS` during the block or function."""
    own, lm_eval.utils.env = lm_eval.utils.env, PROMPTS
    try:
        yield
    finally:
        lm_eval.utils.env = own
