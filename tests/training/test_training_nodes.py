"""Runs over two nodes, by torchrun on each: a node is cut off, or crashes."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from mtnlg_model.checkpoint.manifest import latest
from mtnlg_model.settings import dump
from mtnlg_parallel.record.history import read_events
from mtnlg_parallel.record.metrics import read_steps
from training.nodes import missing, nodes
from training.reference_loop import assert_same_steps, recipe_of, reference_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from training.nodes import Node

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

STEPS = 60
TORCHRUN = (
    *("-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--max-restarts=3", "--rdzv-backend=c10d"),
    *("--rdzv-endpoint=node-1:29400", "--rdzv-id=run", "--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=2"),
)
HOUR = 3600


class Run:
    """A run over two nodes, each with one rank."""

    def __init__(self, pair: Sequence[Node], folder: Path, data: Path, **train: Any) -> None:  # noqa: ANN401  (as recipe_of)
        self.nodes, self.out = pair, folder / "out"
        self.recipe = recipe_of((1, 1, 2), samples=8 * STEPS, ramp=None, guard={"patience": 3.0}, **train)
        (folder / "train.toml").write_text(dump(self.recipe))
        words = [str(folder / "train.toml"), "--data", str(data), "--out", str(self.out), "--device", "cpu"]
        self._command = [sys.executable, *TORCHRUN, "-m", "mtnlg_parallel.cli", "train", *words]
        self._logs = [folder / f"{node.name}.log" for node in pair]

    def start(self, node: Node) -> None:
        """Start the node's torchrun."""
        variables = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        node.start(self._command, self._logs[self.nodes.index(node)], variables)

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for the condition, three minutes at most."""
        deadline = time.monotonic() + 180
        while not condition():
            if time.monotonic() > deadline or any(node.started[-1].poll() for node in self.nodes):
                pytest.fail(self.output())
            time.sleep(0.05)

    def output(self) -> str:
        """What both torchruns and their ranks have printed."""
        return "\n".join(log.read_text() for log in self._logs)

    def resumptions(self) -> list[dict[str, Any]]:
        """The history's resumptions."""
        return [event for event in read_events(self.out) if event["event"] == "resumed"]

    def ends_as_undisturbed(self, data: Path) -> None:
        """The run ends with the steps of a loop in one process."""
        self.until((self.out / "summary.json").exists)
        reference, _ = reference_run(self.recipe, data)
        assert_same_steps([dict(step) for step in read_steps(self.out)], reference)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[Node]]:
    with nodes(2, tmp_path) as made:
        yield made


def test_partitioned_node_is_named_and_run_resumes(pair: list[Node], data: Path, tmp_path: Path) -> None:
    _, two = pair
    two.clock = HOUR
    run = Run(pair, tmp_path, data, checkpoint_every=5)
    for node in pair:
        run.start(node)
    run.until(lambda: latest(run.out / "checkpoints"))
    two.freeze(run.out)
    run.until((run.out / "checkpoints" / "step-15").exists)
    two.cut_off()
    run.until(lambda: "rank 1 (tp 0, pp 0, dp 1) has answered nothing" in run.output())
    two.reconnect()
    run.ends_as_undisturbed(data)
    first, *again = run.resumptions()
    assert (first["source"], {event["source"] for event in again}) == ("initial", {"disk"})
    assert again[0]["step"] >= 15


def test_crashed_node_resumes_from_newest_checkpoint(pair: list[Node], data: Path, tmp_path: Path) -> None:
    run = Run(pair, tmp_path, data, checkpoint_every=5)
    for node in pair:
        run.start(node)
    run.until((run.out / "checkpoints" / "step-10").exists)
    pair[1].fail()
    run.start(pair[1])
    run.ends_as_undisturbed(data)
    first, again = run.resumptions()
    assert (first["source"], again["source"]) == ("initial", "disk")
    assert again["step"] >= 10
