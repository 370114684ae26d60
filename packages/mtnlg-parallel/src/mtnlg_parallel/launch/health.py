"""The check before training: every rank's arithmetic, the links between ranks, the folder that all nodes share.

    product    a matrix product on the rank's device against its known result; on a GPU also its rate
    links      all ranks send to the next of a ring at once, within their nodes and then between nodes
    folder     rank 0's file must appear on every node, and every node must write there; a checkpoint must fit

All ranks gather all findings and judge alike. A wrong product or a folder that fails ends the job, with a line that
names rank, node and GPU or folder. What is slow is a warning: a step waits for the slowest rank and link.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import statistics
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import torch
from torch import distributed

from mtnlg_model.console import Failure, IoFailure, say
from mtnlg_parallel.engine.process import UnfitNode
from mtnlg_parallel.environment import this_rank

from .local import PeerFailure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mtnlg_parallel.layout import Layout
    from mtnlg_parallel.recipe import Recipe

SLOW: Final = 2.0
"""A rate below the median by this factor is worth a warning. GPUs of one kind differ by a tenth, throttled ones by a
third; links under load by more. What is beyond is a fault: a GPU at idle clocks, a link that lost half its lanes."""

SHOWN: Final = 4
VISIBLE_SECONDS: Final = 30.0
"""How long another node's new file may stay invisible. It is opened by name, which no network file system caches."""

CHECKPOINT_BYTES: Final = {"bf16": 14, "fp32": 12}
"""Bytes a parameter in a checkpoint: weight, master weight if that is another, two moments."""

PRODUCTS: Final = 100
ROUNDS: Final = 4
RECORD: Final = 1024
TEXT: Final = 200
PROBE: Final = ".health-"
WAY_OUT: Final = "make room or make it writable, or use another --out"


class Finding(NamedTuple):
    """What one rank found. Rates are per second, 0 where none was measured; ``folder`` says what is wrong with it."""

    node: str
    device: str
    product_is_right: bool = True
    flops: float = 0.0
    inside: float = 0.0  # bytes from and to the neighbours on this node
    between: float = 0.0  # and on others
    folder: str = ""
    free: int = -1  # bytes, on rank 0; -1: not measured


def check(recipe: Recipe, out: Path, device: torch.device) -> None:
    """Check all ranks, nodes and ``out``; every rank must call it. Rank 0 prints what was measured.

    Raises `UnfitNode` or ``IoFailure`` on the ranks at fault, `PeerFailure` with the same words on all others.
    """
    rank, layout = distributed.get_rank(), recipe.layout
    token, ranks_per_node, problem = _share_probe(out, device)
    finding = Finding(this_rank().node[:TEXT], _device_name(device)[:TEXT])
    try:
        right, flops = _multiply(device)
    except RuntimeError as error:  # of CUDA; after most of them the device takes no more work
        reason = str(error).splitlines()[0]
        raise UnfitNode(f"{_place(rank, layout, finding)}: {reason}; leave that node out") from error
    inside, between = rings(layout.world, ranks_per_node)
    if rank and this_rank().local_rank == 0:
        problem = _folder_problem(out, token, rank)
    free = shutil.disk_usage(out).free if rank == 0 and not problem else -1
    finding = finding._replace(product_is_right=right, flops=flops, folder=problem[:TEXT], free=free)
    if inside and device.type == "cuda":  # on a CPU, ranks of a node share its cores and memory
        finding = finding._replace(inside=_link_rate(inside[rank], device))
    if between:
        finding = finding._replace(between=_link_rate(between[rank], device))
    findings = _gather(finding, device)
    if rank == 0:
        (out / f"{PROBE}{token}").unlink(missing_ok=True)
    failures = find_failures(findings, recipe, out)
    if rank in failures:
        raise failures[rank]
    if failures:
        raise PeerFailure(f"rank {rank} stops: {next(iter(failures.values()))}")
    if rank == 0:
        say(summary_line(findings))
        if slow := [*slow_devices(findings, layout), *slow_links(findings, layout, ranks_per_node)]:
            more = f"; and {len(slow) - SHOWN} more" if len(slow) > SHOWN else ""
            say(f"slow, and all ranks wait for the slowest: {'; '.join(slow[:SHOWN])}{more}")


def find_failures(findings: Sequence[Finding], recipe: Recipe, out: Path) -> dict[int, Failure]:
    """The failure of each rank whose findings forbid training."""
    failures: dict[int, Failure] = {}
    for rank, finding in enumerate(findings):
        place = _place(rank, recipe.layout, finding)
        if not finding.product_is_right:
            failures[rank] = UnfitNode(f"{place}: {finding.device} computes wrong products; leave that node out")
        elif finding.folder:
            failures[rank] = IoFailure(f"{place}: {out}: {finding.folder}")
    needed, free = CHECKPOINT_BYTES[recipe.train.storage] * recipe.model.parameters, findings[0].free
    if not failures and 0 <= free < needed:
        sizes = f"{free / 1e9:,.3g} GB are free and a checkpoint takes {needed / 1e9:,.3g} GB"
        failures[0] = IoFailure(f"{out}: {sizes}; make room, or use another --out")
    return failures


def slow_devices(findings: Sequence[Finding], layout: Layout) -> list[str]:
    """GPUs that multiply far slower than the median."""
    median = statistics.median(finding.flops for finding in findings)
    return [
        f"{_place(rank, layout, finding)}, {finding.device}, {finding.flops / 1e12:.3g} of {median / 1e12:.3g} TFLOP/s"
        for rank, finding in enumerate(findings)
        if finding.flops * SLOW < median
    ]


def slow_links(findings: Sequence[Finding], layout: Layout, ranks_per_node: int) -> list[str]:
    """Links between neighbours far slower than the median of their kind.

    A rank's rate is that of the slower of its two links, since it exchanges with both at once. So a link is as fast as
    the faster of the ranks at its ends, at least, and one slow link does not accuse the links beside it.
    """
    slow = []
    for kind, ring in zip(("inside", "between"), rings(layout.world, ranks_per_node), strict=True):
        rates = [getattr(finding, kind) for finding in findings]
        links = [(max(rates[rank], rates[neighbours[1]]), rank, neighbours[1]) for rank, neighbours in enumerate(ring)]
        median = statistics.median(rate for rate, _, _ in links) if links else 0.0
        slow += [
            f"{_place(rank, layout, findings[rank])} to {_place(following, layout, findings[following])}, "
            f"{rate / 1e9:.3g} of {median / 1e9:.3g} GB/s"
            for rate, rank, following in links
            if rate * SLOW < median
        ]
    return slow


def rings(world: int, ranks_per_node: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Each rank's neighbours, before and after it: in a ring within its node, and in one over the nodes.

    The second joins ranks with the same place on their nodes, so that every network card is tried. Empty where there is
    no other rank.
    """
    inside = []
    if ranks_per_node > 1 and world % ranks_per_node == 0:
        for rank in range(world):
            first = rank - rank % ranks_per_node
            inside.append((first + (rank - 1 - first) % ranks_per_node, first + (rank + 1 - first) % ranks_per_node))
    between = [((rank - ranks_per_node) % world, (rank + ranks_per_node) % world) for rank in range(world)]
    return inside, between if ranks_per_node < world else []


def summary_line(findings: Sequence[Finding]) -> str:
    """What was measured, as one line: medians, and the least of each."""
    nodes = len({finding.node for finding in findings})
    parts = [f"checked {len(findings):,} ranks on {nodes:,} node{'s' * (nodes > 1)}"]
    for kind, size, unit in (
        ("flops", 1e12, "TFLOP/s a GPU"),
        ("inside", 1e9, "GB/s within nodes"),
        ("between", 1e9, "GB/s between nodes"),
    ):
        values = [getattr(finding, kind) / size for finding in findings]
        if any(values):
            parts.append(f"{statistics.median(values):.3g} {unit} (least {min(values):.3g})")
    return ", ".join([*parts, f"{findings[0].free / 1e9:,.3g} GB free"])


def _place(rank: int, layout: Layout, finding: Finding) -> str:
    return f"rank {rank} ({layout.coordinates(rank)}) on {finding.node}"


def _device_name(device: torch.device) -> str:
    if device.type == "cpu":
        return "CPU"
    properties = torch.cuda.get_device_properties(device)
    return f"{properties.name} GPU-{properties.uuid}"


def _multiply(device: torch.device) -> tuple[bool, float]:
    """Whether a matrix product on ``device`` is right, and on a GPU the FLOP/s of a series of them.

    Rows of the left factor have n / 16 entries of ±1, the right one is all ±1. So every sum is an integer of at most
    256, exact in bf16 in any order. The CPU checks the product times a vector, exact in fp32 (Freivalds).
    """
    size, dtype = (4096, torch.bfloat16) if device.type == "cuda" else (256, torch.float32)
    numbers, draw = torch.arange(size), torch.Generator().manual_seed(1)
    left, right, vector = (
        (torch.randint(2, shape, generator=draw) * 2 - 1).float() for shape in ((size, size), (size, size), (size,))
    )
    left *= (numbers[:, None] + numbers) % 16 == 0
    here = left.to(device, dtype), right.to(device, dtype)
    product = torch.mm(*here)
    is_right = torch.equal(product.float().cpu() @ vector, left @ (right @ vector))
    if device.type == "cpu":
        return is_right, 0.0
    began = time.perf_counter()
    for _ in range(PRODUCTS):
        torch.mm(*here, out=product)
    torch.cuda.synchronize()
    return is_right, PRODUCTS * 2 * size**3 / (time.perf_counter() - began)


def _link_rate(neighbours: tuple[int, int], device: torch.device) -> float:
    """Bytes a second to the next rank, and from the one before at once: the best of some rounds."""
    previous, following = neighbours
    sent = torch.zeros(1 << (26 if device.type == "cuda" else 20), dtype=torch.uint8, device=device)
    received, seconds = torch.empty_like(sent), []
    for _ in range(1 + ROUNDS):  # the first connects
        began = time.perf_counter()
        exchanges = [
            distributed.P2POp(distributed.isend, sent, following),
            distributed.P2POp(distributed.irecv, received, previous),
        ]
        for work in distributed.batch_isend_irecv(exchanges):
            work.wait()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return sent.nbytes / min(seconds[1:])


def _share_probe(out: Path, device: torch.device) -> tuple[str, int, str]:
    """Rank 0 writes a file into ``out``; returns its token, rank 0's ranks per node, and on rank 0 what went wrong.

    The token is empty where rank 0 could not write. All ranks take its word for the ranks per node, so that they agree.
    """
    token, problem = 0, ""
    if distributed.get_rank() == 0:
        try:
            for left_over in out.glob(f"{PROBE}*"):
                left_over.unlink()
            token = secrets.randbits(62) | 1
            _write_probe(out / f"{PROBE}{token}")
        except OSError as error:
            token, problem = 0, f"{error.strerror}; {WAY_OUT}"
    ranks_per_node = this_rank().local_world
    shared = torch.tensor([token, ranks_per_node], device=device)
    distributed.broadcast(shared, 0)
    token, ranks_per_node = shared.tolist()
    return str(token) if token else "", ranks_per_node, problem


def _folder_problem(out: Path, token: str, rank: int) -> str:
    """What is wrong with ``out`` on this node, or "". An empty token says that rank 0 has failed already."""
    if not token:
        return ""
    deadline = time.monotonic() + VISIBLE_SECONDS
    while not (out / f"{PROBE}{token}").exists():
        if time.monotonic() > deadline:
            return f"rank 0's file is not there after {VISIBLE_SECONDS:.0f} s; use an --out that all nodes share"
        time.sleep(0.05)
    probe = out / f"{PROBE}{token}-{rank}"
    try:
        _write_probe(probe)
        probe.unlink()
    except OSError as error:
        return f"{error.strerror}; {WAY_OUT}"
    return ""


def _write_probe(path: Path) -> None:
    """Write a small file through to the disk and read it back. Raises ``OSError``."""
    content = secrets.token_bytes(1 << 16)
    try:
        with path.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        read = path.read_bytes()
    except OSError:
        path.unlink(missing_ok=True)
        raise
    if read != content:
        raise OSError(errno.EIO, "what it reads is not what was written")


def _gather(finding: Finding, device: torch.device) -> list[Finding]:
    """The findings of all ranks, in order, in one exchange; as JSON, so that nothing of another node is executed."""
    record = json.dumps(finding).encode("ascii").ljust(RECORD)
    mine = torch.frombuffer(bytearray(record), dtype=torch.uint8).to(device)
    world = mine.new_empty(distributed.get_world_size() * RECORD)
    distributed.all_gather_into_tensor(world, mine)
    content = world.cpu().numpy().tobytes()
    return [Finding(*json.loads(content[at : at + RECORD])) for at in range(0, len(content), RECORD)]
