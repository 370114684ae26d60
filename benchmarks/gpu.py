"""Everything that one GPU can tell in half an hour, what is safe first; each figure is written when measured.

    python benchmarks/gpu.py --out DIR [--minutes 9] [--only rank,kernels] [--from PACK]
    python benchmarks/gpu.py --pack PACK [--python 3.12] [--rows ROWS --gpt2 FOLDER] [--tokens FOLDER]

    rates        matrix products, copies, launches; clock and power under load
    waiting      whether a norm's backward pass ends, whose programs wait for each other; if not, the rest goes without
    checks       the kernels' numbers
    rank         one rank of the 530B's 2,240: three layers, ours against eager and torch.compile, with power and clock
    kernels      every kernel against eager, torch.compile and Liger-Kernel, and as a share of a copy's bandwidth
    training     the first steps equal to a CPU's; 350M and 1.3B trained: MFU of wall time, stall, the planner's figure
    sanitizer    compute-sanitizer's memcheck and racecheck of the kernels at tiny sizes
    evaluation   the paper's prompts on a 1.3B decoder in bf16, against lm-eval's hf backend

Each part is a process with a time limit, and appends to DIR/results.jsonl. What fails is a row there, too, and a part
whose process dies runs again behind it. The same command goes on where it ended: a part that has ended does not run
again, and of another what is in the file is not measured again. Printed output is in DIR/log.txt, its end after a
failure on the screen.

``--pack`` puts into one folder what a machine without network lacks: wheels of what this environment has installed for
the packages and their peers, but for torch and what comes with it, for another Python; and rows and tokens where they
are given. With ``--from`` the wheels of packages that the machine does not have are installed beside its own.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-parallel[kernels]", "mtnlg-eval", "torch>=2.12", "liger-kernel==0.8.5", "transformers"]
# ///

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from gpu_parts.results import RUNNING, Results, read_rows
from record import conditions, gpu

HERE: Final = Path(__file__).parent
LIMITS: Final = {
    "rates": 60,
    "waiting": 100,
    "checks": 150,
    "rank": 180,
    "kernels": 240,
    "training": 300,
    "sanitizer": 200,
    "evaluation": 240,
}
"""Seconds that a part may take at most, in order."""

HUNG: Final = {part: 0.6 * seconds for part, seconds in LIMITS.items()} | {"waiting": 40}
"""Seconds after which what a stopped part was at counts as failed, and is not tried again.

Anything else goes on in the next call, first of all: a case of a rank compiles its layers for a minute or more.
"""

LEAST_SECONDS: Final = 20
"""A part does not begin with less time left."""

PACKED: Final = ("mtnlg-parallel", "mtnlg-eval", "liger-kernel")
NOT_PACKED: Final = re.compile(
    r"torch|triton|nvidia-.*|cuda-.*|numpy|pyarrow|pandas|scipy|scikit-learn|matplotlib|transformers|tokenizers|"
    r"deepspeed|numba|llvmlite|sympy|networkx|tensorboard-data-server|pillow|hf-xet|setuptools|mtnlg-.*|"
    r"pycld2|fastwarc|justext|brotli|ftfy"
)
"""Large, and on every machine with torch for GPUs; or not needed to train with the pipeline engine and to evaluate."""

PLATFORMS: Final = ("2_28", "2_27", "2_24", "2_17", "2014", "2010", "1")


def main() -> int:
    """Run the parts, or pack; returns 1 where a part has failed."""
    options = parse_options()
    if options.pack:
        pack(options)
        return 0
    environment = part_environment(options)
    deadline, failed = time.monotonic() + 60 * options.minutes, []
    calls = Results(options.out, "call")
    number = sum(row["part"] == "call" for row in read_rows(options.out))
    calls.add(str(number), "begun", conditions() | gpu())
    for part in options.only:
        if any(row["part"] == "waiting" and "error" in row for row in read_rows(options.out)):
            environment["MTNLG_GPU_WITHOUT"] = "norm"
        limit = min(LIMITS[part], deadline - time.monotonic())
        results = Results(options.out, part)
        if results.has("ended") or results.has("stopped"):
            print(f"{part}: has ended before")
        elif limit < LEAST_SECONDS and not options.tiny:
            print(f"{part}: not begun, {max(limit, 0):.0f} s are left")
        elif not run_part(part, options, environment, limit):
            failed.append(part)
    print("\n" + "\n".join(f"{row['part']}: {row['key']}: {row['line']}" for row in read_rows(options.out)))
    return bool(failed)


def parse_options() -> Namespace:
    """Read the command line."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder of results.jsonl and log.txt")
    parser.add_argument("--minutes", type=float, default=9.0, help="for this call")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(LIMITS), help="parts, with commas")
    parser.add_argument("--from", type=Path, dest="packed", help="folder that --pack wrote")
    parser.add_argument("--tiny", action="store_true", help="try all parts at small sizes, on a CPU too")
    parser.add_argument("--pack", type=Path, help="write this folder, and measure nothing")
    parser.add_argument("--python", default="3.12", help="of the machine that is packed for")
    parser.add_argument("--rows", type=Path, help="the tasks' published rows, to pack")
    parser.add_argument("--gpt2", type=Path, help="encoder.json and vocab.bpe, to pack")
    parser.add_argument("--tokens", type=Path, help="folder that mtnlg-data run made, to pack")
    options = parser.parse_args()
    if not options.out and not options.pack:
        parser.error("give --out DIR, or --pack DIR")
    if unknown := set(options.only) - set(LIMITS):
        parser.error(f"--only {','.join(sorted(unknown))}: no such part; choose from {', '.join(LIMITS)}")
    return options


def part_environment(options: Namespace) -> dict[str, str]:
    """The parts' environment: this checkout's packages, and after the machine's own those that it lacks."""
    paths = [HERE, *sorted(HERE.parent.glob("packages/*/src"))]
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": ""}  # wheels come uncompiled
    if options.packed:
        paths.append(install_missing(options.packed / "wheels", options.out / "site"))
        for name in ("rows", "gpt2", "tokens"):
            if (options.packed / name).is_dir():
                environment[f"MTNLG_GPU_{name.upper()}"] = str(options.packed / name)
    if options.tiny:
        environment.setdefault("TRITON_INTERPRET", "1")
    before = environment.get("PYTHONPATH")
    return environment | {"PYTHONPATH": os.pathsep.join([*map(str, paths), *([before] if before else [])])}


def run_part(part: str, options: Namespace, environment: dict[str, str], limit: float) -> bool:
    """Run a part to its end or its limit, again where it died behind new figures; returns whether nothing failed."""
    words = [sys.executable, "-X", "faulthandler", "-m", f"gpu_parts.{part}", "--out", str(options.out)]
    began, known, status = time.monotonic(), -1, None
    while status is None or (status and known < len(read_rows(options.out)) and limit > time.monotonic() - began):
        known = len(read_rows(options.out))
        with (options.out / "log.txt").open("a", encoding="utf-8") as log:
            log.write(f"\n== {part}\n")
            log.flush()
            process = subprocess.Popen(
                [*words, *(["--tiny"] * options.tiny)], stdout=log, stderr=log, env=environment, start_new_session=True
            )
            try:
                status = process.wait(max(limit - (time.monotonic() - began), 0.0))
            except subprocess.TimeoutExpired:
                stop(process)
                print(f"{part}: stopped after {limit:.0f} s; the same command goes on. {last_lines(options.out)}")
                record_hung(part, options.out)
                return True
    results = Results(options.out, part)
    seconds = time.monotonic() - began
    if status == 0:
        results.add("ended", f"after {seconds:.0f} s", {"seconds": seconds})
    else:
        print(f"{part}: FAILED with status {status}: {last_lines(options.out)}")
    return status == 0 and not any(row["part"] == part and "error" in row for row in read_rows(options.out))


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a part and the ranks that it has started; its threads' stacks go to the log."""
    for sent in (signal.SIGABRT, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.kill(process.pid, sent) if sent == signal.SIGABRT else os.killpg(process.pid, sent)
        with suppress(subprocess.TimeoutExpired):  # one that the GPU's driver holds may never end
            process.wait(5)


def record_hung(part: str, out: Path) -> None:
    """Record what a stopped part had been at for long; one that was importing or compiling goes on in the next call."""
    results = Results(out, part)
    with suppress(FileNotFoundError):
        running = json.loads((out / RUNNING).read_text(encoding="utf-8"))
        seconds = time.time() - running["began"]
        if running["part"] == part and seconds > HUNG[part]:
            results.add(running["key"], f"STOPPED: had not ended after {seconds:.0f} s", {"error": "did not end"})
            if part == "waiting":  # its other shapes are not tried
                results.add("stopped", "a norm's backward pass may not end here", {"error": "did not end"})


def last_lines(out: Path, count: int = 12) -> str:
    """The end of the log."""
    lines = (out / "log.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return "\n    ".join(["", *(line[:300] for line in lines[-count:])]) if len(lines) > 1 else ""


def install_missing(wheels: Path, site: Path) -> Path:
    """Unpack the wheels of distributions that this machine lacks into ``site``."""
    missing = []
    for wheel in sorted(wheels.glob("*.whl")):
        try:
            distribution(wheel.name.partition("-")[0])
        except PackageNotFoundError:
            missing.append(str(wheel))
    if missing:
        options = ["--quiet", "--no-index", "--no-deps", "--no-compile", "--upgrade", "--target", str(site)]
        subprocess.run([sys.executable, "-m", "pip", "install", *options, *missing], check=True)
    return site


def pack(options: Namespace) -> None:
    """Download wheels for the other machine, and copy rows and tokens."""
    wheels = options.pack / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    platforms = [word for each in PLATFORMS for word in ("--platform", f"manylinux{'_' * ('_' in each)}{each}_x86_64")]
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "-d",
        str(wheels),
    ]
    command += ["--python-version", options.python, "--implementation", "cp", *platforms]
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(wheels)]
    for name, version in sorted(requirements(PACKED).items()):
        wanted = f"{name}=={version}"
        if subprocess.run([*command, wanted], stderr=subprocess.DEVNULL, check=False).returncode:
            built = subprocess.run([*build, wanted], check=False)  # sources alone: right where they are Python alone
            if built.returncode:
                print(f"{wanted}: NOT PACKED; there is no wheel for Python {options.python}")
    for name in ("rows", "gpt2", "tokens"):
        if source := getattr(options, name):
            shutil.copytree(source, options.pack / name, dirs_exist_ok=True)
    size = sum(path.stat().st_size for path in options.pack.rglob("*") if path.is_file())
    print(f"{options.pack}: {len(list(wheels.iterdir()))} wheels, {size / 1e6:.1f} MB in all")


def requirements(roots: tuple[str, ...]) -> dict[str, str]:
    """Name and installed version of all that these distributions need here, and that is to be packed."""
    found: dict[str, str] = {}
    waiting = list(roots)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        is_ours = name.startswith("mtnlg-")
        if name in found or (NOT_PACKED.fullmatch(name) and not is_ours):
            continue
        try:
            there = distribution(name)
        except PackageNotFoundError:
            continue
        found[name] = there.version
        wanted = [line for line in there.requires or () if "extra ==" not in line]
        waiting += [match[0] for line in wanted if (match := re.match(r"[\w.-]+", line))]
    return {name: version for name, version in found.items() if not NOT_PACKED.fullmatch(name)}


if __name__ == "__main__":
    sys.exit(main())
