"""The Hugging Face hub: reachability check and model download. lm-eval and tasks/sources.py load data sets.

A hub that does not answer costs a command ten seconds, once: afterwards only cached files are used.
"""

from __future__ import annotations

import os
import sys
import threading
import urllib.error
import urllib.request
from functools import cache
from pathlib import Path

from mtnlg_model.console import Failure, say

SECONDS = 8.0
MODEL_FILES = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt", "chat_templates/*")


@cache
def reach_hub() -> bool:
    """Whether the hub answers; if not, its libraries are set to use only their caches."""
    if os.environ.get("HF_HUB_OFFLINE", "0") not in {"", "0"}:
        return False
    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    errors: list[str] = ["no answer"]

    def ask() -> None:
        request = urllib.request.Request(address, method="HEAD")  # noqa: S310  (the user's own endpoint)
        try:
            urllib.request.urlopen(request, timeout=SECONDS).close()  # noqa: S310
            errors.clear()
        except urllib.error.HTTPError:
            errors.clear()  # it answers
        except OSError as error:
            errors[:] = [str(getattr(error, "reason", error))]

    thread = threading.Thread(target=ask, daemon=True)  # name resolution has no timeout
    thread.start()
    thread.join(1)
    if thread.is_alive():
        say(f"{address}: no answer yet; waiting {SECONDS:g} seconds")
    thread.join(SECONDS - 1)
    if errors:
        say(f"{address}: {errors[0]}; only files fetched earlier are used")
        os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
        for name in ("huggingface_hub.constants", "datasets.config"):  # read when they were imported
            if module := sys.modules.get(name):
                vars(module)["HF_HUB_OFFLINE"] = True
    return not errors


def fetch_model(name: str, revision: str | None) -> Path:
    """Cache folder of a hub model, downloaded if it is missing. Raises ``Failure`` if it cannot be downloaded."""
    reach_hub()
    from huggingface_hub import snapshot_download  # noqa: PLC0415  (reads its settings when it is imported)

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(MODEL_FILES)))
    except Exception as error:  # noqa: BLE001  (the hub's client raises the errors of many libraries)
        reason = str(error).splitlines()[0]
        raise Failure(f"{name}: neither a folder nor a model on the hub: {reason}") from None
