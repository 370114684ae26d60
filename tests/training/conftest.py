"""Tokens to train on, and jobs of several ranks in forked processes."""

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
RunRanks = Callable[..., list[Any]]


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A data folder with two small stores of learnable tokens: each token is the one before plus 0 to 3.

    All tests of a process read it, so a test that changes data copies the folder first.
    """
    folder = tmp_path_factory.mktemp("data")
    make_data(folder, seed=1)
    written = contents(folder)
    yield folder
    assert contents(folder) == written, "a test changed the data of all"


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def make_data(folder: Path, seed: int) -> None:
    """Write ``tokens/`` in mtnlg-data's format."""
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
def run_ranks() -> Iterator[RunRanks]:
    """``run_ranks(scenario, recipes, **request)`` runs a job in the recipes' layout and returns each rank's result.

    With ``fails`` it returns the errors of the ranks instead, of which there must be one.
    """
    with serving_ranks() as run:
        yield run


@pytest.fixture(scope="module")
def run_ranks_interpreted() -> Iterator[RunRanks]:
    """As ``run_ranks``, with the Triton kernels run by its interpreter on the CPU."""
    if find_spec("triton") is None:
        pytest.skip("kernels need Triton: pip install mtnlg-parallel[kernels]")
    with serving_ranks(TRITON_INTERPRET="1") as run:
        yield run


@contextmanager
def serving_ranks(**variables: str) -> Iterator[RunRanks]:
    """A process of ``distributed_runs.py`` with these environment variables."""
    script = Path(__file__).with_name("distributed_runs.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", **variables}
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    ) as process:
        assert process.stdin
        assert process.stdout

        def run(scenario: str, recipes: list[Recipe], fails: bool = False, **more: object) -> list[Any]:
            store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            request: dict[str, Any] = {
                "scenario": scenario,
                "recipes": [recipe.model_dump(mode="json") for recipe in recipes],
            }
            request |= {"port": store.port, "world": recipes[0].layout.world, **more}
            process.stdin.write(json.dumps(request, default=str) + "\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            results: list[Any] = json.loads(process.stdout.readline())  # type: ignore[union-attr]
            errors = [result["error"] for result in results if isinstance(result, dict) and "error" in result]
            assert fails == bool(errors), "\n".join(errors)
            return errors if fails else results

        yield run
        process.stdin.close()
