"""What lm-eval renders the prompts of its YAML with, but in a sandbox: strangers write them."""

from __future__ import annotations

from jinja2 import StrictUndefined
from lm_eval.utils import regex_replace

from mtnlg_model.sandbox import Sandbox

PROMPTS = Sandbox(undefined=StrictUndefined, keep_trailing_newline=True)
PROMPTS.filters["regex_replace"] = regex_replace
