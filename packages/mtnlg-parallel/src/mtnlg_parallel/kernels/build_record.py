"""What was built, beside Triton's cache: a record of each target and of all that a recipe's kernels depend on.

Its name holds a digest of these, so that a record that is there is true, unless the cache has lost a kernel since.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from mtnlg_model.files import write_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mtnlg_parallel.recipe import Recipe


SOURCES: Final = Path(__file__).parent
"""Where the kernels are written."""


class Kernel(NamedTuple):
    """A compiled kernel: which one, for which arguments, what it takes, and its folder in Triton's cache."""

    name: str
    variant: str
    registers: int  # a thread
    shared: int  # bytes a block
    local: int  # bytes a thread: arrays and spilled registers, which lie in the GPU's memory
    spills: int  # instructions that load or store those
    instructions: int  # with padding
    folder: str


def read(target: str, recipe: Recipe | None) -> list[Kernel] | None:
    """The kernels of this recipe, or all variants, as built for ``target``; None where they are not all there."""
    path = _path(target, recipe)
    if not path.exists():
        return None
    kernels = [Kernel(**kernel) for kernel in json.loads(path.read_text(encoding="utf-8"))["kernels"]]
    return kernels if all((cache() / kernel.folder).is_dir() for kernel in kernels) else None


def write(target: str, recipe: Recipe | None, kernels: Sequence[Kernel]) -> None:
    """Keep what `read` returns."""
    write_json(_path(target, recipe), _facts(target, recipe) | {"kernels": [kernel._asdict() for kernel in kernels]})


def cache() -> Path:
    """Triton's cache: ``TRITON_CACHE_DIR``, or ``.triton/cache`` at home."""
    from triton import knobs  # noqa: PLC0415  (the extra `kernels`)

    return Path(knobs.cache.dir)


def _path(target: str, recipe: Recipe | None) -> Path:
    digest = hashlib.sha256(json.dumps(_facts(target, recipe), sort_keys=True).encode()).hexdigest()
    return cache() / "mtnlg-parallel" / f"{target}-{digest[:16]}.json"


def _facts(target: str, recipe: Recipe | None) -> dict[str, object]:
    import triton  # noqa: PLC0415  (as above)

    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(SOURCES.glob("*.py")))).hexdigest()
    return {"target": target, "triton": triton.__version__, "sources": digest, "recipe": recipe and _asked(recipe)}


def _asked(recipe: Recipe) -> dict[str, object]:
    """Of a recipe, what its kernels depend on."""
    train = recipe.train
    return {
        "model": recipe.model.model_dump(mode="json", exclude={"layers", "init_std"}),
        "tp": recipe.layout.tp,
        "sequence_parallel": train.sequence_parallel,
        "micro_batch": train.micro_batch,
        "precision": train.precision,
    }
