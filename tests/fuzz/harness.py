"""Fuzzing of the readers of foreign bytes: atheris mutates inputs, led by the branches of the code that they reach.

    python harness.py [TARGET ...] --minutes 5 --out runs/fuzz      every target in turn, for its share of the time
    python harness.py html --inputs 2000 --seed 1                   a fixed number of inputs

A target is a function in ``targets/`` that takes bytes and raises only where something is wrong; each reader of the
table in SECURITY.md is one. Each runs in a process
of its own, which is started again after an input that ends it: an exception, a crash of a library, more than
``MAX_SECONDS`` or ``MAX_MEGABYTES``. Such inputs are kept under ``--out``; add them to ``corpus/`` with the mending.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
SCRATCH = "MTNLG_FUZZ_SCRATCH"
MEMORY = Path("/dev/shm")  # noqa: S108  (a folder of its own is made there)
INSTRUMENTED = ["mtnlg_data.sources", "mtnlg_data.extract", "mtnlg_data.tokens", "mtnlg_model"]
INSTRUMENTED += ["mtnlg_parallel.record", "mtnlg_eval.tasks", "mtnlg_eval.studies", "mtnlg_eval.report"]
COMPILED = ("paragraphs", "boilerplate", "main_content", "tree_limits")  # in extract; numba takes no instrumented code
READER = re.compile(r"^\| ([^|]+) \| `[^`]+` \| (?:followed|refused) \|$", re.MULTILINE)
VERSIONS = ("atheris", "mtnlg-data", "mtnlg-model", "fastwarc", "tokenizers")
MAX_SECONDS, MAX_MEGABYTES, MAX_BYTES = 20, 2048, 1 << 16
MAX_CRASHES = 20  # of a target; one bug is found again and again
STATS = re.compile(r"^stat::number_of_executed_units:\s+(\d+)", re.MULTILINE)
SUMMARY = re.compile(r"^(?:SUMMARY: .*|\w*(?:Error|Exception|Failure)\b.*)", re.MULTILINE)


def scratch(name: str) -> Path:
    """A path for the file that a target reads, in a folder that goes with the run."""
    return Path(os.environ.get(SCRATCH, tempfile.gettempdir())) / name


def target_modules() -> dict[str, str]:
    """Targets by name, and the module of each, without importing them."""
    modules = sorted((HERE / "targets").glob("*.py"))
    entry = re.compile(r'^    "(\w+)": \w+,$', re.MULTILINE)
    own = {name: path.stem for path in modules for name in entry.findall(path.read_text(encoding="utf-8"))}
    table = HERE.parents[1] / "SECURITY.md"
    readers = READER.findall(table.read_text(encoding="utf-8")) if table.exists() else []
    return dict.fromkeys(readers, "readers") | own


def run_target(name: str, slowest: Path, options: list[str]) -> None:
    """Run libFuzzer with its ``options`` on a target in this process; keeps the input that takes most CPU seconds."""
    import atheris  # only in a process that fuzzes

    sys.path[:0] = [str(HERE), str(HERE / "targets")]
    for compiled in COMPILED:
        importlib.import_module(f"mtnlg_data.extract.{compiled}")
    with atheris.instrument_imports(include=INSTRUMENTED, enable_loader_override=False):
        module = importlib.import_module(target_modules()[name])
    target: Callable[[bytes], None] = module.TARGETS[name]
    (slowest.parent / "corpus" / "seed").write_bytes(vars(module).get("SEEDS", {}).get(name, b""))
    target(b"")  # what loads at first use is not an input's time
    longest = 0.0

    def run(data: bytes) -> None:
        nonlocal longest
        started = time.process_time()
        target(data)
        if (seconds := time.process_time() - started) > longest:
            longest = seconds
            slowest.write_bytes(data)
            slowest.with_suffix(".json").write_text(json.dumps({"seconds": round(seconds, 4), "bytes": len(data)}))

    atheris.Setup([sys.argv[0], *options], run)
    atheris.Fuzz()


def fuzz(name: str, out: Path, seconds: float | None, inputs: int, seed: int) -> dict[str, Any]:
    """Fuzz a target for a time, or with a number of inputs; returns what was found."""
    found, slow = out / "corpus", out / "slowest"
    found.mkdir(parents=True, exist_ok=True)
    tried, crashes, lines = 0, 0, Counter[str]()
    slowest: dict[str, Any] = {"seconds": 0.0, "bytes": 0}
    deadline = None if seconds is None else time.monotonic() + seconds
    while crashes < MAX_CRASHES and (tried < inputs if deadline is None else time.monotonic() < deadline):
        left = 0.0 if deadline is None else deadline - time.monotonic()
        options = [
            f"-runs={inputs - tried}" if deadline is None else f"-max_total_time={max(1, round(left))}",
            f"-seed={seed + crashes}",
            f"-timeout={MAX_SECONDS}",
            f"-rss_limit_mb={MAX_MEGABYTES}",
            f"-max_len={MAX_BYTES}",
            f"-artifact_prefix={out}/",
            "-print_final_stats=1",
            # libFuzzer adds what reaches new branches to the first folder, and reads the other too.
            *(str(folder) for folder in (found, HERE / "corpus" / name) if folder.exists()),
        ]
        words = [sys.executable, __file__, "--child", name, str(slow), *options]
        with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
            environment = {**os.environ, SCRATCH: folder}
            ended = subprocess.run(
                words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, env=environment
            )
        said = ended.stdout.decode(errors="replace")
        if (counted := STATS.search(said)) is None:
            raise RuntimeError(f"{name}: the fuzzer did not run: {said[-2000:]}")
        tried += int(counted[1])
        if slow.with_suffix(".json").exists():
            slowest = max(slowest, json.loads(slow.with_suffix(".json").read_text()), key=lambda unit: unit["seconds"])
        if ended.returncode:
            crashes += 1
            lines[(SUMMARY.search(said) or ["ended without a word"])[0][:200]] += 1
    return {"inputs": tried, "crashes": crashes, "of_kind": dict(lines), "slowest": slowest}


def parse_options() -> Namespace:
    """The command line."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(target_modules())}; all if none is named")
    parser.add_argument("--minutes", type=float, help="for all of them together")
    parser.add_argument("--minutes-each", type=float)
    parser.add_argument("--inputs", type=int, default=2000, help="of each target, where no time is given")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/fuzz"), help="result.json, and what was found")
    options = parser.parse_args()
    if unknown := set(options.targets) - set(target_modules()):
        parser.error(f"no such target: {', '.join(sorted(unknown))}; choose from {', '.join(target_modules())}")
    return options


def main() -> None:
    """Fuzz, write the result file, and exit with 1 where a target crashed."""
    options = parse_options()
    names = options.targets or list(target_modules())
    minutes = options.minutes if options.minutes_each is None else options.minutes_each * len(names)
    seconds = None if minutes is None else 60 * minutes / len(names)
    result: dict[str, Any] = {
        "date": f"{date.today():%Y-%m-%d}",  # noqa: DTZ011  (of this machine, as in benchmarks/results)
        "python": platform.python_version(),
        **{name: version(name) for name in VERSIONS},
        "seed": options.seed,
        "minutes": minutes,
        "targets": {},
    }
    for name in names:
        result["targets"][name] = fuzz(name, options.out / name, seconds, options.inputs, options.seed)
        (options.out / "result.json").write_text(json.dumps(result, indent=2) + "\n")
        sys.stdout.write(f"{name} {json.dumps(result['targets'][name])}\n")
        sys.stdout.flush()
    sys.exit(any(found["crashes"] for found in result["targets"].values()))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        run_target(sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
    main()
