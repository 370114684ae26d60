"""lm-eval and its libraries keep their bars and log lines to themselves; progress and errors are told by us."""

from __future__ import annotations

import logging
import os
import warnings

SWITCHES = {
    "TQDM_DISABLE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_VERBOSITY": "critical",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "DATASETS_VERBOSITY": "critical",
}


def quiet() -> None:
    """Call before lm_eval or datasets is imported: they read their switches when they are."""
    os.environ.update(SWITCHES)
    logging.getLogger("lm_eval").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", message="Transformer Engine and Apex are not installed")  # nor are they needed
