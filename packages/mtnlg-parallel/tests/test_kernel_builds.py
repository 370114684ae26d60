"""Building kernels ahead of time: refusals and limits."""

from __future__ import annotations

import inspect
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from mtnlg_model.console import Failure, UsageFailure
from mtnlg_model.families import PRESETS
from mtnlg_parallel import kernels
from mtnlg_parallel.cli import app
from mtnlg_parallel.kernels.aot import build
from mtnlg_parallel.recipe import Recipe

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def recipe() -> Recipe:
    train = {"samples": 1, "batch": 1, "lr": 1.0, "decay": 1, "checkpoint_every": 0, "validation_samples": 1}
    return Recipe.model_validate({"model": PRESETS["tiny"], "train": train})


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("triton", reason="Triton is not installed: nothing can be built")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    return tmp_path


def test_missing_triton_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "find_spec", lambda _: None)
    assert "needs no GPU" in CliRunner().invoke(app, ["build-kernels", "--help"]).output
    with pytest.raises(Failure, match=r"pip install 'mtnlg-parallel\[kernels\]'") as refused:
        build.build_kernels(None, ["sm_80"])
    assert refused.value.exit_status == 1


def test_a_target_must_be_named_where_there_is_no_gpu(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del cache
    monkeypatch.setattr(build, "this_gpu", lambda: None)
    with pytest.raises(UsageFailure, match="no GPU here; name a target, such as --target sm_80"):
        build.build_kernels(None, [])
    with pytest.raises(UsageFailure, match=r"--target sm_70: use sm_80, .*sm_100"):
        build.build_kernels(None, ["sm_70"])


def test_nothing_is_built_for_an_interpreter(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del cache
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(UsageFailure, match="unset it"):
        build.build_kernels(None, ["sm_80"])


def test_a_recipe_in_8_bits_is_not_built_for_a_gpu_without_them(cache: Path, recipe: Recipe) -> None:
    del cache
    train = recipe.train.model_copy(update={"precision": "fp8"})
    in_8_bits = recipe.model_copy(update={"train": train})
    for target in ("sm_80", "sm_86"):
        with pytest.raises(UsageFailure, match=f"--target {target} has no 8-bit products"):
            build.build_kernels(in_8_bits, ["sm_90", target])
    assert all(map(build.converts_to_eight_bits, ("sm_89", "sm_90", "sm_100", "sm_120")))


def test_every_triton_takes_the_defaults_of_kernels() -> None:
    """Triton 3.6 compiles no call of a function whose default is a string; 3.7 takes it for a constant."""
    triton = pytest.importorskip("triton", reason="Triton is not installed: nothing can be built")
    modules = [import_module(f"{kernels.__name__}.{module.name}") for module in iter_modules(kernels.__path__)]
    functions = {f.fn for module in modules for f in vars(module).values() if hasattr(f, "fn")}
    defaults = [p.default for f in functions for p in inspect.signature(f).parameters.values()]
    given = [default for default in defaults if default is not inspect.Parameter.empty]
    assert given
    assert all(isinstance(default, triton.language.constexpr) for default in given)
