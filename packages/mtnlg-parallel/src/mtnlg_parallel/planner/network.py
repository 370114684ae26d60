"""What messages cost: an alpha-beta model of collectives inside and between nodes, and of hops between stages.

A ring over n ranks moves, of a tensor of S bytes, over every rank's link (Thakur et al. 2005)

    reduce-scatter, all-gather   (n - 1) / n S        all-reduce   both, one after the other

A group that spans m nodes with k ranks in each does so in two levels, chunk after chunk so that the slower one counts:
rings over the links of each node, and between nodes (m - 1) / m of the S / k bytes of each rank over its share of the
node's network, as all groups of a kind run at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mtnlg_parallel.layout import Layout

    from .cluster import Cluster


class Ring(NamedTuple):
    """A group of ranks: how many in each of how many nodes, their links, their network together, and the latency."""

    inside: int
    nodes: int
    link: float
    network: float
    latency: float

    def all_reduce(self, size: float) -> float:
        """Seconds to sum ``size`` bytes over the group: a reduce-scatter and an all-gather."""
        return 2 * self.gather(size)

    def gather(self, size: float) -> float:
        """Seconds of an all-gather or a reduce-scatter of ``size`` bytes in all."""
        within = (self.inside - 1) / self.inside * size / self.link
        between = (self.nodes - 1) / self.nodes * size / self.network
        return self.latency + max(within, between)


def ring(cluster: Cluster, ranks: int, stride: int) -> Ring:
    """The group of ``ranks`` that lie ``stride`` apart."""
    node, measured = cluster.node, cluster.measured
    inside = ranks if (ranks - 1) * stride < node.gpus else max(1, node.gpus // stride)
    nodes = -(-ranks // inside)
    latency = (inside - 1) * measured.link_seconds + (nodes - 1) * measured.network_seconds
    network = cluster.network_share * measured.network * inside
    return Ring(inside, nodes, node.link_bandwidth * measured.link, network, latency)


def tensor_ring(cluster: Cluster, layout: Layout) -> Ring:
    """Ranks that slice a layer: innermost."""
    return ring(cluster, layout.tp, 1)


def data_ring(cluster: Cluster, layout: Layout) -> Ring:
    """Ranks that share a stage's gradients."""
    return ring(cluster, layout.dp, layout.tp)


def hop(cluster: Cluster, layout: Layout, stage: int, size: float, scatter: bool) -> float:
    """Seconds to hand ``size`` bytes, which all tensor-parallel ranks hold, from ``stage`` to the next.

    With ``scatter`` each rank sends its slice, and the receivers gather (Narayanan et al. 2021, section 4.1).
    """
    node, measured = cluster.node, cluster.measured
    width = layout.tp * layout.dp  # ranks of a stage
    first = (stage + 1) * width - width  # its first rank; its partner is `width` further
    inside = first // node.gpus == (first + width) // node.gpus
    bandwidth = node.link_bandwidth * measured.link if inside else cluster.network_share * measured.network
    latency = measured.link_seconds if inside else measured.network_seconds
    if not scatter or layout.tp == 1:
        return latency + size / bandwidth
    return latency + size / layout.tp / bandwidth + tensor_ring(cluster, layout).gather(size)
