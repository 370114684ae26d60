"""Health check before training: every rank's arithmetic, and the folder that all nodes share.

    product    a matrix product on the rank's device is compared with its known result; a GPU's rate is measured
    folder     rank 0's file must appear on every node, and every node must be able to write; a checkpoint must fit

All ranks receive every rank's result. A wrong product or a bad folder ends the job, with a line that names rank, node
and GPU or folder. A slow GPU is a warning: each step waits for the slowest rank.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Final

import torch

from mtnlg_model.console import Failure, IoFailure, say
from mtnlg_parallel.engine.process import UnfitNode
from mtnlg_parallel.environment import this_rank
from mtnlg_parallel.training.collectives import all_gather_json, broadcast_from_rank0

from .supervise import PeerFailure

if TYPE_CHECKING:
    from pathlib import Path

    from mtnlg_parallel.recipe import Recipe

SLOW: Final = 2.0
"""Factor below the median rate at which a GPU gets a warning. GPUs of one model differ by a tenth, throttled ones by a
third; more is a fault, such as a GPU at idle clocks."""

MAX_NAMED: Final = 4
VISIBLE_SECONDS: Final = 30.0
"""Seconds that another node's new file may be invisible. It is opened by name, which no network file system caches."""

CHECKPOINT_BYTES: Final = {"bf16": 14, "fp32": 12}
"""Bytes per parameter in a checkpoint: weight, master weight if separate, two moments."""

PRODUCTS: Final = 100
PROBE: Final = ".health-"
HINT: Final = "make room or make it writable, or use another --out"


def check(recipe: Recipe, out: Path, device: torch.device) -> None:
    """Check all ranks, nodes and ``out``; every rank must call this. Rank 0 prints the measurements.

    Raises `UnfitNode` or ``IoFailure`` on the ranks at fault, and `PeerFailure` with the same message on all others.
    """
    rank = this_rank()
    name = f"rank {rank.rank} ({recipe.layout.coordinates(rank.rank)}) on {rank.node}"
    token = broadcast_from_rank0(partial(_begin_probe, recipe, out), device)
    failure: Failure | None = None
    try:
        flops = _check_product(device)
        if rank.local_rank == 0:
            _check_folder(out, token, rank.rank)
    except (UnfitNode, OSError) as error:
        line = f"{out}: {error.strerror}; {HINT}" if isinstance(error, OSError) else str(error)
        failure = (IoFailure if isinstance(error, OSError) else UnfitNode)(f"{name}: {line}")
        flops = 0.0
    except RuntimeError as error:  # of CUDA; after most of them the device takes no more work
        raise UnfitNode(f"{name}: {str(error).splitlines()[0]}; leave that node out") from error
    reports = all_gather_json([str(failure or ""), f"{name}, {_device_name(device)}", flops], device)
    if rank.rank == 0:
        (out / f"{PROBE}{token}").unlink(missing_ok=True)
    if failure:
        raise failure
    if lines := [line for line, _, _ in reports if line]:
        raise PeerFailure(f"rank {rank.rank} stops: {lines[0]}")
    if rank.rank == 0:
        rates = {device: rate / 1e12 for _, device, rate in reports}
        measured = f"{statistics.median(rates.values()):.3g} TFLOP/s per GPU, " if any(rates.values()) else ""
        say(f"checked {len(reports):,} ranks, {measured}{shutil.disk_usage(out).free / 1e9:,.3g} GB free")
        for line in slow_devices(rates)[:MAX_NAMED]:
            say(f"WARNING: slow, and all ranks wait for the slowest: {line}")


def slow_devices(rates: dict[str, float]) -> list[str]:
    """Lines for GPUs that are far slower than the median; ``rates`` are TFLOP/s by name."""
    median = statistics.median(rates.values())
    return [f"{name}: {rate:.3g} of {median:.3g} TFLOP/s" for name, rate in rates.items() if rate * SLOW < median]


def _device_name(device: torch.device) -> str:
    if device.type == "cpu":
        return "CPU"
    properties = torch.cuda.get_device_properties(device)
    return f"{properties.name} GPU-{properties.uuid}"


def _check_product(device: torch.device) -> float:
    """Raise `UnfitNode` unless ``device`` multiplies correctly; returns its FLOP/s over several products, 0 on a CPU.

    Rows of the left factor have n / 16 entries of ±1 and zeros else; the right factor is all ±1. So every sum is an
    integer of at most 256, exact in bf16 in any order. The CPU checks the product times a vector, exact in fp32
    (Freivalds).
    """
    size, dtype = (4096, torch.bfloat16) if device.type == "cuda" else (256, torch.float32)
    numbers, draw = torch.arange(size), torch.Generator().manual_seed(1)
    left, right, vector = (
        (torch.randint(2, shape, generator=draw) * 2 - 1).float() for shape in ((size, size), (size, size), (size,))
    )
    left *= (numbers[:, None] + numbers) % 16 == 0
    here = left.to(device, dtype), right.to(device, dtype)
    product = torch.mm(*here)
    if not torch.equal(product.float().cpu() @ vector, left @ (right @ vector)):
        raise UnfitNode(f"{_device_name(device)} computes wrong products; leave that node out")
    if device.type == "cpu":
        return 0.0
    began = time.perf_counter()
    for _ in range(PRODUCTS):
        torch.mm(*here, out=product)
    torch.cuda.synchronize()
    return PRODUCTS * 2 * size**3 / (time.perf_counter() - began)


def _begin_probe(recipe: Recipe, out: Path) -> str:
    """On rank 0: write a file into ``out``; returns its token. Raises ``IoFailure`` if a checkpoint cannot fit."""
    token = secrets.token_hex(8)
    try:
        for left_over in out.glob(f"{PROBE}*"):
            left_over.unlink()
        _write_probe(out / f"{PROBE}{token}")
    except OSError as error:
        raise IoFailure(f"{out}: {error.strerror}; {HINT}") from None
    needed, free = CHECKPOINT_BYTES[recipe.train.storage] * recipe.model.parameters, shutil.disk_usage(out).free
    if free < needed:
        sizes = f"{free / 1e9:,.3g} GB are free and a checkpoint takes {needed / 1e9:,.3g} GB"
        raise IoFailure(f"{out}: {sizes}; make room, or use another --out")
    return token


def _check_folder(out: Path, token: str, rank: int) -> None:
    """Raise ``OSError`` unless this node sees rank 0's file in ``out`` and can write there."""
    deadline = time.monotonic() + VISIBLE_SECONDS
    while not (out / f"{PROBE}{token}").exists():
        if time.monotonic() > deadline:
            line = f"rank 0's file is not there after {VISIBLE_SECONDS:.0f} s; use an --out that all nodes share"
            raise OSError(errno.ENOENT, line)
        time.sleep(0.05)
    probe = out / f"{PROBE}{token}-{rank}"
    _write_probe(probe)
    probe.unlink()


def _write_probe(path: Path) -> None:
    """Write a small file and fsync it. Raises ``OSError``."""
    try:
        with path.open("xb") as file:
            file.write(bytes(1 << 16))
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        path.unlink(missing_ok=True)
        raise
