"""A sandboxed replacement of the environment in which lm-eval renders the prompts of YAML, which is untrusted."""

from __future__ import annotations

from jinja2 import StrictUndefined
from lm_eval.utils import regex_replace

from mtnlg_model.sandbox import Sandbox

PROMPTS = Sandbox(undefined=StrictUndefined, keep_trailing_newline=True)
PROMPTS.filters["regex_replace"] = regex_replace
