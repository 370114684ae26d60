"""The manifest of the 530B's checkpoint (tp 8 x pp 35 x dp 8, bf16, ZeRO-1): publishing, opening, bytes to resume.

    python benchmarks/checkpoint_manifest.py [--rounds 5] [--out FILE]

The writers' parts are synthetic: every rank's fragments of weights, master weights and two moments, in files cut where
`CheckpointWriter` cuts them. The files are empty, since publishing and opening look at none of them. CPU seconds, of
all threads, in a process that has imported torch.

Bytes to resume are those that `zero.restore` asks of the files, counted where they would be read, for a rank of every
kind of stage and every data-parallel rank, times the ranks that read as much. Beside it, what whole boxes would take.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-model", "mtnlg-parallel", "torch==2.13.0"]
# ///

from __future__ import annotations

import json
import tempfile
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from mtnlg_model.checkpoint import boxes, reader
from mtnlg_model.checkpoint.manifest import MANIFEST, SLOTS, Progress, read_manifest
from mtnlg_model.checkpoint.reader import Checkpoint
from mtnlg_model.checkpoint.writer import FILE_BYTES, publish
from mtnlg_model.families import preset
from mtnlg_parallel.engine import zero
from mtnlg_parallel.layout import Layout, sliced_axis, stages
from record import run, spread, time_rounds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mtnlg_model.checkpoint.boxes import Box
    from mtnlg_model.checkpoint.manifest import FileEntry
    from mtnlg_model.config import ModelConfig

LAYOUT = Layout(tp=8, pp=35, dp=8)
PROGRESS = Progress(step=1, samples=1, tokens=1, loss=1.0, stream="", layout=LAYOUT)


class Local(NamedTuple):
    """A parameter on a rank, and the elements of its flattened box that are the rank's ZeRO fragment, if any are."""

    name: str
    shape: tuple[int, ...]
    box: Box
    is_primary: bool
    flat: tuple[int, int] | None


def local_parameters(config: ModelConfig, parts: Iterable[str], first_stage: bool, tp: int, dp: int) -> list[Local]:
    """Parameters of a rank of a stage with these parts, fragmented as ZeRO-1 does but for its padding."""
    shapes = config.parameter_shapes()
    found = []
    for part in parts:
        tied = part == "head"
        names = [name for name in shapes if name.startswith("embedding.token." if tied else f"{part}.")]
        for name in [] if tied and first_stage else names:
            axis = sliced_axis(name)
            box = [(0, size) for size in shapes[name]]
            if axis is not None:
                width = shapes[name][axis] // LAYOUT.tp
                box[axis] = (tp * width, (tp + 1) * width)
            found.append(Local(name, shapes[name], tuple(box), not tied and (axis is not None or tp == 0), None))
    return [local for axes in (2, 1) for local in fragmented([f for f in found if len(f.shape) == axes], dp)]


def fragmented(group: list[Local], dp: int) -> Iterator[Local]:
    """A group of parameters with the fragments of data-parallel rank ``dp``."""
    ends = list(accumulate(boxes.volume(local.box) for local in group))
    share = -(-ends[-1] // LAYOUT.dp)
    for local, end in zip(group, ends, strict=True):
        begin = end - boxes.volume(local.box)
        start, stop = max(begin, dp * share), min(end, (dp + 1) * share)
        yield local._replace(flat=(start - begin, stop - begin) if start < stop else None)


def writers_part(rank: int, parameters: Iterable[Local]) -> dict[str, Any]:
    """What the writer of this rank hands to `publish`, before it is JSON."""
    files: dict[str, dict[str, Any]] = {}
    tensors: dict[str, dict[str, Any]] = {}
    numbers = {"weights": 0, "optimizer": 0}
    for local in parameters:
        if not (local.is_primary and local.flat):
            continue
        start, stop = local.flat
        for slot in SLOTS:
            kind, item = ("weights", 2) if slot == "weight" else ("optimizer", 4)
            name = f"rank-{rank}.{kind}-{numbers[kind]}.safetensors"
            file = files.setdefault(name, {"bytes": 0, "checksum": f"{hash(name) % (1 << 128):032x}"})
            file["bytes"] += item * (stop - start)
            numbers[kind] += file["bytes"] >= FILE_BYTES
            key = f"{local.name}/{slot}{boxes.show(local.box)}#{start}:{stop}"
            piece = {"file": name, "key": key, "box": local.box, "flat": local.flat}
            entry = tensors.setdefault(local.name, {"shape": local.shape, "slots": {}})
            entry["slots"][slot] = {"dtype": "BF16" if item == 2 else "F32", "pieces": [piece]}
    return {"files": files, "tensors": tensors}


def writers_parts(config: ModelConfig) -> dict[str, bytes]:
    """The part of every rank of the layout, by the writer's name."""
    parts = {}
    for stage in stages(config, LAYOUT, "full"):
        for dp in range(LAYOUT.dp):
            for tp in range(LAYOUT.tp):
                rank = LAYOUT.rank(tp=tp, pp=stage.number, dp=dp)
                parameters = local_parameters(config, stage.parts, stage.number == 0, tp, dp)
                parts[f"rank-{rank}"] = json.dumps(writers_part(rank, parameters)).encode()
    return parts


class CountingFile:
    """In place of a file of tensors: counts the bytes asked of it."""

    total = 0

    def __init__(self, path: Path, listed: FileEntry | None = None, wait: float = 0.0) -> None:
        del path, listed, wait

    def expect(self, *_: object) -> None:
        """Accept any entry."""

    def read(self, key: str, runs: Iterable[tuple[int, int]], out: torch.Tensor) -> None:
        """Count the runs' bytes."""
        del key
        CountingFile.total += out.element_size() * sum(length for _, length in runs)


def resumed_bytes(config: ModelConfig, folder: Path) -> dict[str, float]:
    """Bytes that all ranks read to resume in the same layout; and what they would with fragments out of whole boxes."""
    state = zero.CheckpointState(Checkpoint.open(folder))
    reader.TensorFile = CountingFile  # type: ignore[attr-defined, assignment]  # for the rest of this process
    cut = stages(config, LAYOUT, "full")
    kinds = {stage.parameters: stage for stage in cut}
    totals = {"read": 0, "weights": 0, "from_whole_boxes": 0}
    for stage in kinds.values():
        alike = LAYOUT.tp * sum(other.parameters == stage.parameters for other in cut)
        for dp in range(LAYOUT.dp):
            for local in local_parameters(config, stage.parts, stage.number == 0, 0, dp):
                before, index = CountingFile.total, tuple(slice(*axis) for axis in local.box)
                state.weight(local.name, index, torch.bfloat16)
                totals["weights"] += alike * (CountingFile.total - before)
                for slot in SLOTS[1:]:
                    state.elements(local.name, slot, index, *(local.flat or (0, 0)))
                totals["read"] += alike * (CountingFile.total - before)
                totals["from_whole_boxes"] += alike * boxes.volume(local.box) * (4 + 12 * bool(local.flat))
    return {f"{name}_terabytes": round(total / 1e12, 2) for name, total in totals.items()}


def measure(rounds: int = 5) -> dict[str, Any]:
    """Publish and open in rounds."""
    with tempfile.TemporaryDirectory() as folder:
        return {"rounds": rounds, **publish_and_open(Path(folder), rounds)}


def publish_and_open(scratch: Path, rounds: int) -> dict[str, Any]:
    """Return all figures."""
    config = preset("mt-nlg-530b")
    parts = writers_parts(config)
    tokenizer = scratch / "tokenizer.json"
    tokenizer.write_text("{}")
    for number in range(rounds):
        make_folder(scratch / f"step-{number}.tmp", parts)
    path, steps = scratch / "step-0", iter(range(rounds))
    seconds = time_rounds(
        {"publish": lambda: publish(scratch, next(steps), list(parts), config, PROGRESS, tokenizer)}, rounds
    )
    seconds |= time_rounds({"open": lambda: Checkpoint.open(path)}, rounds)
    manifest = read_manifest(path)
    return {
        "model": "mt-nlg-530b",
        "layout": str(LAYOUT),
        "writers": len(parts),
        "files": len(manifest.files) - 1,
        "pieces": sum(len(slot.pieces) for entry in manifest.tensors.values() for slot in entry.slots.values()),
        "manifest_bytes": (path / MANIFEST).stat().st_size,
        "cpu_seconds": {name: spread(values) for name, values in seconds.items()},
        "resume": resumed_bytes(config, path),
    }


def make_folder(folder: Path, parts: dict[str, bytes]) -> None:
    """What the writers leave, but for the content of the files."""
    folder.mkdir()
    for name, part in parts.items():
        (folder / f"{name}.part.json").write_bytes(part)
        for file in json.loads(part)["files"]:
            (folder / file).touch()


if __name__ == "__main__":
    run(measure, __doc__)
