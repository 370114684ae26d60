"""Tokens to train on, and jobs of several ranks."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from mtnlg_data.tokens.store import TokenStore, writing_store
from mtnlg_parallel.recipe import Recipe

VOCABULARY = 64
World = Callable[..., list[Any]]


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder of two small stores of tokens that can be learnt: each is mostly the last one plus a few."""
    folder = tmp_path_factory.mktemp("data")
    make_data(folder, seed=1)
    return folder


def make_data(folder: Path, seed: int) -> None:
    """Write ``tokens/`` as mtnlg-data does."""
    tokens = folder / "tokens"
    tokens.mkdir()
    draw = np.random.default_rng(seed)
    sources = []
    for name, weight in (("prose", 0.7), ("code", 0.3)):
        with writing_store(tokens / name, VOCABULARY) as store:
            for _ in range(60):
                store.add(np.cumsum(draw.integers(0, 4, draw.integers(40, 120))) % VOCABULARY)
        written = TokenStore(tokens / name)
        figures = {"documents": written.documents, "tokens": written.tokens, "sha256": written.checksum()}
        sources.append({"name": name, "prefix": name, "weight": weight, **figures})
    blend = {"seed": seed, "vocabulary": VOCABULARY, "eod": 0, "validation": 0.1, "sources": sources}
    (tokens / "blend.json").write_text(json.dumps(blend))
    (tokens / "tokenizer.json").write_text("{}")


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    """``world(scenario, recipes, **more)`` runs a job of the recipes' layout and returns each rank's answer.

    With ``fails`` it returns what each rank's error was, and there must be one.
    """
    with world_with() as ask:
        yield ask


@pytest.fixture(scope="module")
def interpreting() -> Iterator[World]:
    """Such a world, in which Triton runs kernels on the CPU."""
    if find_spec("triton") is None:
        pytest.skip("kernels need Triton: pip install mtnlg-parallel[kernels]")
    with world_with(TRITON_INTERPRET="1") as ask:
        yield ask


@contextmanager
def world_with(**variables: str) -> Iterator[World]:
    """A world with more in its environment."""
    script = Path(__file__).with_name("worlds.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", **variables}
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    ) as process:
        assert process.stdin
        assert process.stdout

        def ask(scenario: str, recipes: list[Recipe], fails: bool = False, **more: object) -> list[Any]:
            store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            request = {"scenario": scenario, "recipes": [r.model_dump(mode="json") for r in recipes]}
            where = {"port": store.port, "world": recipes[0].layout.world}
            line = json.dumps({**request, **where, **more}, default=str)
            process.stdin.write(line + "\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            answers: list[Any] = json.loads(process.stdout.readline())  # type: ignore[union-attr]
            errors = [answer["error"] for answer in answers if isinstance(answer, dict) and "error" in answer]
            assert fails == bool(errors), "\n".join(errors)
            return errors if fails else answers

        yield ask
        process.stdin.close()
