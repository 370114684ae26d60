"""Start of one rank of the 530B's 2,240: process groups made, seconds, and the files that its imports open.

    python benchmarks/startup.py [--rounds 5] [--out FILE]

The other 2,239 ranks are not there: torch's fake process group takes every collective and moves nothing. So seconds
are those of the rank's own work. On a cluster each group that it joins costs a rendezvous too, and with NCCL's
``device_id`` each group that anyone makes costs all ranks a split of the communicator. DeepSpeed's engine makes its
grid; the pipeline engine makes the groups that a rank uses. The decoder is a small one, with one layer per stage.

Files are counted by Python's audit events, once each, beside those of the libraries that a rank imports alone.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-parallel", "torch==2.13.0"]
# ///

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from record import conditions, option_parser, spread, write_result

RANK = 1117
"""On a middle stage, as most are."""

GROUPS = """
import json, os, sys, time, warnings
warnings.simplefilter("ignore")
os.environ |= {"RANK": "%(rank)d", "LOCAL_RANK": "5", "WORLD_SIZE": "2240", "LOCAL_WORLD_SIZE": "8"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29400", "CUDA_VISIBLE_DEVICES": ""}
from mtnlg_parallel.engine import process
from mtnlg_parallel.engine.build import build_engine
from mtnlg_parallel.layout import Layout
from mtnlg_parallel.recipe import Recipe
from mtnlg_parallel.model import slicing
from torch import device, distributed
from torch.distributed import distributed_c10d
from torch.testing._internal.distributed.fake_pg import FakeStore
layout = Layout(tp=8, pp=35, dp=8)
distributed.init_process_group("fake", store=FakeStore(), rank=%(rank)d, world_size=layout.world)
slicing.init_process_group = lambda *_: None
made = []
new_group = distributed.new_group
def counting(*words, backend=None, **options):  # all groups are fake, also the gloo twins that are asked for
    group = new_group(*words, **options)
    made.append((backend, group is not distributed.GroupMember.NON_GROUP_MEMBER))
    return group
distributed.new_group = counting
def measured(work):
    made.clear()
    began = time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    twins = sum(backend == "gloo" for backend, _ in made)
    joined = sum(member for _, member in made)
    return {"made": len(made), "gloo_twins": twins, "joined": joined, "seconds": seconds}
recipe = Recipe.model_validate({
    "model": {"layers": 35, "hidden": 64, "heads": 8, "sequence": 32, "vocabulary": 64},
    "layout": layout,
    "train": {"samples": 1000, "batch": 8, "lr": 1e-3, "decay": 900, "checkpoint_every": 0},
}, strict=False)
deepspeed = recipe.model_copy(update={"train": recipe.train.model_copy(update={"engine": "deepspeed"})})
cpu = process.init_distributed(layout, device="cpu")
print(json.dumps({
    "tensor_parallel_group": measured(lambda: slicing.Slicing.of_this_rank(layout, recipe.model, False)),
    "deepspeed": measured(lambda: build_engine(deepspeed, cpu)),
    "pipeline_engine": measured(lambda: build_engine(recipe, cpu)),
}), file=sys.__stdout__)
os._exit(0)
"""

IMPORTS = """
import json, os, sys, time, warnings
warnings.simplefilter("ignore")
os.environ |= {"DS_ACCELERATOR": "cpu"}
files = set()
def opened(event, words):
    if event == "open" and isinstance(words[0], str):
        files.add(words[0])
sys.addaudithook(opened)
sys.stdout, out = sys.stderr, sys.stdout
began = time.perf_counter()
%(imports)s
figures = {"files": len(files), "modules": len(sys.modules), "seconds": time.perf_counter() - began}
print(json.dumps(figures), file=out)
"""

RANK_IMPORTS = "import mtnlg_parallel.cli, mtnlg_parallel.launch.worker, mtnlg_parallel.engine.pipeline_engine"
STATEMENTS = {
    "a rank, pipeline_engine": RANK_IMPORTS,
    "a rank, deepspeed": f"{RANK_IMPORTS}, deepspeed.pipe, mtnlg_parallel.model.megatron",
    "torch and megatron-core alone": "import torch, megatron.core.tensor_parallel",
    "the two and deepspeed alone": "import torch, megatron.core.tensor_parallel, deepspeed.ops, deepspeed.pipe",
}


def run(code: str, **words: object) -> dict[str, Any]:
    """Run a script in a process of its own; return the JSON of its last line."""
    done = subprocess.run([sys.executable, "-c", code % words], capture_output=True, text=True, check=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def over_rounds(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the counts, equal in all rounds, and the spread of the seconds."""
    return rounds[0] | {"seconds": spread([figures["seconds"] for figures in rounds], 3)}


def measure(rounds: int) -> dict[str, Any]:
    """Return groups and imports."""
    groups = [run(GROUPS, rank=RANK) for _ in range(rounds)]
    imports: dict[str, list[dict[str, Any]]] = {name: [] for name in STATEMENTS}
    for _ in range(rounds):
        for name, statements in STATEMENTS.items():
            imports[name].append(run(IMPORTS, imports=statements))
    alone, ours = (imports[name][0]["files"] for name in ("torch and megatron-core alone", "a rank, pipeline_engine"))
    return {
        "libraries' files over a rank's": round(alone / ours, 3),
        "groups": {name: over_rounds([figures[name] for figures in groups]) for name in groups[0]},
        "imports": {name: over_rounds(figures) for name, figures in imports.items()},
    }


def main() -> None:
    """Measure, and write the result."""
    arguments = option_parser(__doc__).parse_args()
    result = conditions("torch", "deepspeed", "megatron-core") | {"rank": RANK, "world": 2240}
    write_result(result | measure(arguments.rounds), arguments.out)


if __name__ == "__main__":
    main()
