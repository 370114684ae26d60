"""Alpha-beta cost model of collectives inside and between nodes, and of sends between pipeline stages.

In a ring over n ranks, each rank's link carries this many bytes of a tensor of S bytes (Thakur et al. 2005)

    reduce-scatter, all-gather   (n - 1) / n S        all-reduce   both, one after the other

A group of m nodes with k ranks each communicates in two levels, pipelined in chunks, so the slower level counts: rings
over the links inside each node; between nodes (m - 1) / m of each rank's S / k bytes over its share of the node's
network, since all groups of a kind communicate at once; less of it the more nodes there are (`CONGESTION`).
"""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from mtnlg_parallel.planner.run import Run


LEAF_NODES: Final = 32
"""Nodes whose GPUs of one rail share a leaf switch (a scalable unit of NVIDIA's DGX SuperPOD H100)."""

CONGESTION: Final = 0.16
"""What a ring that leaves the leaf switches loses: time per byte, as a share and per factor e in nodes beyond those.

The slowest of its links through the spine sets its pace. Fitted: an MLPerf run of 11,616 H100s (docs/decisions/0189).
"""


class Ring(NamedTuple):
    """A ring collective: ranks per node, nodes, bytes/s (``network``: of all ranks of a node), latency in seconds."""

    inside: int
    nodes: int
    link: float
    network: float
    latency: float

    def all_reduce(self, size: float) -> float:
        """Seconds to sum ``size`` bytes over the group: a reduce-scatter and an all-gather."""
        return 2 * self.gather(size)

    def gather(self, size: float) -> float:
        """Seconds of an all-gather or a reduce-scatter of ``size`` bytes in total."""
        within = (self.inside - 1) / self.inside * size / self.link
        between = (self.nodes - 1) / self.nodes * size / self.network
        return self.latency + max(within, between)


def ring(run: Run, ranks: int, stride: int) -> Ring:
    """The ring over ``ranks`` ranks whose rank numbers are ``stride`` apart."""
    node, measured = run.cluster.node, run.cluster.measured
    inside = ranks if (ranks - 1) * stride < node.gpus else max(1, node.gpus // stride)
    nodes = -(-ranks // inside)
    latency = (inside - 1) * measured.link_seconds + (nodes - 1) * measured.network_seconds
    network = run.cluster.network_share * measured.network * inside / (1 + CONGESTION * log(max(nodes / LEAF_NODES, 1)))
    return Ring(inside, nodes, node.link_bandwidth * measured.link, network, latency)


def hop(run: Run, stage: int, size: float, scatter: bool) -> float:
    """Seconds to send ``size`` bytes, held by all tensor parallel ranks, from ``stage`` to the next.

    With ``scatter`` each rank sends its slice, and the receivers gather (Narayanan et al. 2021, section 4.1).
    """
    node, measured, layout = run.cluster.node, run.cluster.measured, run.layout
    width = layout.tp * layout.copies  # ranks of a stage
    first = (stage + 1) * width - width  # its first rank; its partner is `width` further
    inside = first // node.gpus == (first + width) // node.gpus
    bandwidth = node.link_bandwidth * measured.link if inside else run.cluster.network_share * measured.network
    latency = measured.link_seconds if inside else measured.network_seconds
    if not scatter or layout.tp == 1:
        return latency + size / bandwidth
    return latency + size / layout.tp / bandwidth + ring(run, layout.tp, 1).gather(size)
