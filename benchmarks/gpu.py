"""What one GPU can tell in two short calls, in the order of worth; each figure is written when measured.

    python benchmarks/gpu.py --pack PACK --compiler PYTHON [--rows ROWS --gpt2 FOLDER]
    python benchmarks/gpu.py --out DIR [--from PACK] [--call 2] [--minutes 9] [--only rank,kernels]

    call 1
    waiting       whether a norm's backward pass ends, whose programs wait for each other
    probe         attention's backends and their dropout
    checks        the kernels' numbers
    engine        a step of the engine in bf16, with bf16 sums, in fp8 and of isolated documents, against fp32's numbers
    rank          one rank of the 530B's 2,240: three layers, ours against eager, torch.compile and 8 bits
    kernels       norms at 256 rows against eager; six operations at 2,048 against torch.compile
    evaluation    the paper's prompts on a 1.3B decoder in bf16, against lm-eval's hf backend; bits in other batches
    call 2
    training      350M and layers of Llama 2 7B trained: MFU of wall time, loss, memory, the planner's figures

DIR gets two files. A part appends to results.jsonl; what fails is a row there, too, and a part whose process dies runs
again behind it. What is cut off has not failed: with the same DIR the same command goes on, and measures nothing again.
Printed output is in log.txt, its end after a failure on the screen.

``--pack`` puts into one folder what a machine without network lacks: the packages and what they need, but for torch and
what comes with it; what Triton compiles for the parts, which takes minutes; the rows and GPT-2's files where they are
given. PYTHON is an interpreter of the other machine's version with its torch and Triton, and installs and compiles.
Triton's cache is found at the path at which it was made, `results.WORK`.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-parallel[kernels]", "mtnlg-eval", "torch>=2.11", "transformers"]
# ///

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final, NamedTuple

from gpu_parts.results import WORK, Results, read_rows
from record import conditions

HERE: Final = Path(__file__).parent


class Part(NamedTuple):
    """Expected seconds, and what precedes it in the same process, whose start takes some ten."""

    call: int
    seconds: int
    after: str | None = None


PARTS: Final = {
    "waiting": Part(1, 30),
    "probe": Part(1, 25),
    "checks": Part(1, 35, "probe"),
    "engine": Part(1, 35, "checks"),
    "rank": Part(1, 105),
    "kernels": Part(1, 140),
    "evaluation": Part(1, 110),
    "training": Part(2, 110),
}
"""In order of worth."""

SLACK: Final = 1.5
"""A process may take so many times its parts' seconds: what is worth less comes to its turn, too."""

LEAST_SECONDS: Final = 15
"""A process does not begin with less time left."""

PACKED: Final = ("mtnlg-parallel", "mtnlg-eval")
NOT_PACKED: Final = re.compile(
    r"torch|triton|nvidia-.*|cuda-.*|numpy|pyarrow|pandas|scipy|scikit-learn|matplotlib|transformers|tokenizers|"
    r"deepspeed|numba|llvmlite|sympy|networkx|tensorboard.*|pillow|hf-xet|setuptools|pycld2|fastwarc|justext|brotli|ftfy|"
    r"aiohttp|regex|grpcio|lxml.*|sacrebleu|fonttools|kiwisolver|contourpy|protobuf|yarl|safetensors|huggingface-hub"
)
"""Large, and on every machine with torch for GPUs; or not needed to train with the pipeline engine and to evaluate."""

TARGET: Final = "sm_90"
CACHE: Final = WORK / "triton"
SITE: Final = WORK / "site"
ARCHIVE: Final = "packed.tar.xz"
"""Of what is packed in `SITE` and `CACHE`."""


def main() -> int:
    """Run a call's parts, or pack; returns 1 where a part has failed or has not ended."""
    options = parse_options()
    if options.pack:
        pack(options)
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    environment = part_environment(options)
    deadline, calls = time.monotonic() + 60 * options.minutes, Results(options.out, "call")
    number = sum(row["part"] == "call" for row in read_rows(options.out))
    calls.add(str(number), "begun", conditions())
    for parts in processes(options.only):
        run(parts, options, environment, deadline)
    rows = [row for row in read_rows(options.out) if row["part"] in {"call", *options.only}]
    print("\n" + "\n".join(f"{row['part']}: {row['key']}: {row['line']}" for row in rows))
    unended = set(options.only) - {row["part"] for row in rows if row["key"] == "ended"}
    print(f"not ended: {', '.join(sorted(unended)) or 'none'}")
    return bool(unended) or any("error" in row for row in rows)


def parse_options() -> Namespace:
    """Read the command line."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder of results.jsonl and log.txt")
    parser.add_argument("--call", type=int, choices=(1, 2), default=1)
    parser.add_argument("--minutes", type=float, default=9.0, help="for this call")
    parser.add_argument("--only", type=lambda text: text.split(","), help="parts, with commas")
    parser.add_argument("--from", type=Path, dest="packed", help="folder that --pack wrote")
    parser.add_argument("--tiny", action="store_true", help="try the parts at small sizes, on a CPU too")
    parser.add_argument("--pack", type=Path, help="write this folder, and measure nothing")
    parser.add_argument("--compiler", help="interpreter of the other machine's version, with its torch and Triton")
    parser.add_argument("--rows", type=Path, help="the tasks' published rows, to pack")
    parser.add_argument("--gpt2", type=Path, help="encoder.json and vocab.bpe, to pack")
    options = parser.parse_args()
    options.only = options.only or [name for name, part in PARTS.items() if part.call == options.call]
    if not (options.out or (options.pack and options.compiler)):
        parser.error("give --out DIR, or --pack DIR and --compiler PYTHON")
    if unknown := set(options.only) - set(PARTS):
        parser.error(f"--only {','.join(sorted(unknown))}: no such part; choose from {', '.join(PARTS)}")
    return options


def processes(parts: list[str]) -> list[list[str]]:
    """Put parts together that run in one process."""
    together: list[list[str]] = []
    for name in (name for name in PARTS if name in parts):
        if together and PARTS[name].after == together[-1][-1]:
            together[-1].append(name)
        else:
            together.append([name])
    return together


def part_environment(options: Namespace) -> dict[str, str]:
    """The parts' environment: this checkout's packages, and what was packed."""
    paths = [HERE, *sorted(HERE.parent.glob("packages/*/src")), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "",  # what is packed comes uncompiled
        "TRITON_CACHE_DIR": str(CACHE),
        "TORCH_CUDNN_SDPA_DEPRIORITIZED": "1",  # flash attention, as before torch 2.10 and on other GPUs
    }
    if options.packed:
        paths.append(SITE)
        if not SITE.exists():
            with tarfile.open(options.packed / ARCHIVE) as archive:
                archive.extractall(WORK, filter="data")
        for name in ("rows", "gpt2"):
            if (options.packed / name).is_dir():
                environment[f"MTNLG_GPU_{name.upper()}"] = str((options.packed / name).absolute())
    if options.tiny:
        environment.setdefault("TRITON_INTERPRET", "1")
    return environment | {"PYTHONPATH": os.pathsep.join(map(str, paths))}


def run(parts: list[str], options: Namespace, environment: dict[str, str], deadline: float) -> None:
    """Run a process of parts to its end or limit, again where it died behind new figures."""
    began, known = time.monotonic(), -1
    limit = deadline - began
    if not options.tiny:  # whose times say nothing
        limit = min(limit, SLACK * sum(PARTS[part].seconds for part in parts))
    if limit < LEAST_SECONDS and not options.tiny:
        print(f"{', '.join(parts)}: not begun, {max(limit, 0):.0f} s are left")
        return
    while known < len(rows := read_rows(options.out)):
        known = len(rows)
        over = {row["part"] for row in rows if row["key"] == "ended"}
        words = [part for part in parts if part not in over]
        if not words:
            print(f"{', '.join(parts)}: ended before")
            return
        with (options.out / "log.txt").open("a", encoding="utf-8") as log:
            log.write(f"\n== {' '.join(words)}\n")
            log.flush()
            command = [sys.executable, "-X", "faulthandler", "-m", "gpu_parts", *words, "--out", str(options.out)]
            command += ["--tiny"] * options.tiny
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
            try:
                status = process.wait(max(began + limit - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                stop(process)
                status = None
        if status is None:
            print(
                f"{', '.join(words)}: cut off after {limit:.0f} s; the same command goes on. {last_lines(options.out)}"
            )
            return
        if status == 0:
            return
        print(f"{', '.join(words)}: FAILED with status {status}: {last_lines(options.out)}")
    Results(options.out, words[0]).add("died", f"status {status}", {"error": last_lines(options.out)})


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and the ranks that it has started; its threads' stacks go to the log."""
    for sent in (signal.SIGABRT, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.kill(process.pid, sent) if sent == signal.SIGABRT else os.killpg(process.pid, sent)
        with suppress(subprocess.TimeoutExpired):  # one that the GPU's driver holds may never end
            process.wait(5)


def last_lines(out: Path, count: int = 12) -> str:
    """The end of the log."""
    lines = (out / "log.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return "\n    ".join(["", *(line[:300] for line in lines[-count:])]) if len(lines) > 1 else ""


def pack(options: Namespace) -> None:
    """Install what the other machine lacks, compile its kernels, and copy rows and GPT-2's files."""
    for folder in (SITE, CACHE):  # of an earlier pack
        shutil.rmtree(folder, ignore_errors=True)
    ours = map(str, sorted(HERE.parent.glob("packages/mtnlg-*")))  # for their metadata: the checkout's code comes first
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", str(SITE)]
    subprocess.run([options.compiler, *install, *ours, *requirements(PACKED)], check=True)
    environment = part_environment(Namespace(packed=None, tiny=False))
    environment["PYTHONPATH"] += os.pathsep + str(SITE)
    environment.pop("TRITON_INTERPRET", None)
    subprocess.run([options.compiler, "-m", "gpu_parts.compiled", TARGET], env=environment, check=True)
    options.pack.mkdir(parents=True, exist_ok=True)
    with tarfile.open(options.pack / ARCHIVE, "w:xz") as archive:
        for folder in (SITE, CACHE):
            archive.add(folder, folder.name)
    for name in ("rows", "gpt2"):
        if source := getattr(options, name):
            shutil.copytree(source, options.pack / name, dirs_exist_ok=True)


def requirements(roots: tuple[str, ...]) -> list[str]:
    """What these distributions need that is to be packed, in the versions that are installed here."""
    found: dict[str, str] = {}
    waiting = list(roots)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found or NOT_PACKED.fullmatch(name):
            continue
        with suppress(PackageNotFoundError):
            found[name] = distribution(name).version
            wanted = [line for line in distribution(name).requires or () if "extra ==" not in line]
            waiting += [match[0] for line in wanted if (match := re.match(r"[\w.-]+", line))]
    return sorted(f"{name}=={version}" for name, version in found.items() if not name.startswith("mtnlg-"))


if __name__ == "__main__":
    sys.exit(main())
