"""All-reduces of CPU ranks on one machine: in shared memory, against gloo's over loopback.

    python benchmarks/collectives.py [--ranks 2] [--rounds 7] [--out FILE]

Each round sums fp32 tensors of 4 KB to 8 MB `TIMES` times by either transport, in alternating order. Seconds are rank
0's, by the clock and of its processor: other load changes the second less. 512 KB is what the quickstart's ranks sum.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-parallel"]
# ///

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import warnings
from argparse import SUPPRESS
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from mtnlg_parallel.model import slicing
from record import conditions, option_parser, ratios, spread, time_rounds, write_result

if TYPE_CHECKING:
    from collections.abc import Callable

KILOBYTES = (4, 128, 512, 2048, 8192)
TIMES = 50


def measure(rounds: int) -> dict[str, Any]:
    """Return rank 0's milliseconds per all-reduce, by size, clock and transport; every rank runs this."""
    slicing.init_process_group(torch.device("cpu"), timedelta(minutes=5))
    shared = slicing.new_group(range(distributed.get_world_size()))
    result: dict[str, Any] = {}
    for kilobytes in KILOBYTES:
        values = torch.zeros(kilobytes << 8)

        def sums(group: Any, values: torch.Tensor = values) -> Callable[[], None]:  # noqa: ANN401  (a process group)
            def run() -> None:
                for _ in range(TIMES):
                    distributed.all_reduce(values, group=group)

            return run

        sides = {"gloo": sums(None), "shared memory": sums(shared)}
        row = result[f"{kilobytes} KB"] = {}
        for name, clock in (("ms", time.perf_counter), ("processor ms", time.process_time)):
            seconds = time_rounds(sides, rounds, clock)
            row[name] = {side: spread([1000 * each / TIMES for each in times], 3) for side, times in seconds.items()}
            row[name]["ratio"] = spread(ratios(seconds["gloo"], seconds["shared memory"]), 2)
    return result


def main() -> None:
    """Measure, as the ranks of one job; rank 0 prints the result and writes it to ``--out``."""
    parser = option_parser(__doc__, rounds=7)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--port", help=SUPPRESS)
    options = parser.parse_args()
    if options.port:
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        result = conditions("torch") | {"ranks": options.ranks, "cores": len(os.sched_getaffinity(0))}
        result["all-reduce"] = measure(options.rounds)
        if distributed.get_rank() == 0:
            write_result(result, options.out)
        distributed.barrier()
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": options.ranks, "LOCAL_WORLD_SIZE": options.ranks, "MASTER_ADDR": "127.0.0.1"}
    ranks = []
    for rank in range(options.ranks):
        variables = {**shared, "MASTER_PORT": port, "RANK": rank, "LOCAL_RANK": rank}
        environment = os.environ | {name: str(value) for name, value in variables.items()}
        ranks.append(subprocess.Popen([sys.executable, *sys.argv, "--port", port], env=environment))
    sys.exit(max(rank.wait() for rank in ranks))


if __name__ == "__main__":
    main()
