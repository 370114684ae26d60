"""Units for test_data_engine.py, in a module of their own that a spawned worker can import."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from mtnlg_data.engine import Local, Unit
from mtnlg_data.files import atomic_open


@dataclass(frozen=True)
class Echo(Unit):
    """Writes its word, and a line into a log, so that a test can count how often it ran."""

    output: Path
    word: str

    def _key_parts(self) -> tuple[object, ...]:
        return (self.word,)


def echo(unit: Echo) -> dict[str, str]:
    with (unit.output.parent / "log").open("a") as log:
        log.write(f"{unit.word}\n")
    with atomic_open(unit.output) as file:
        file.write(unit.word.encode())
    return {"word": unit.word}


def die_at_b(unit: Echo) -> dict[str, str]:
    if unit.word == "b":
        os.kill(os.getpid(), signal.SIGKILL)
    return echo(unit)


def fill_the_disk(unit: Echo) -> dict[str, str]:
    with atomic_open(unit.output):
        raise OSError(28, "Error writing bytes to file")  # the text of pyarrow's error


class PanicException(BaseException):
    """What a panic of a library in Rust becomes."""


def panic(unit: Echo) -> dict[str, str]:
    raise PanicException(unit.word)


def hang(unit: Echo) -> dict[str, str]:
    unit.output.write_text("begun")
    time.sleep(600)
    return {}


@dataclass(frozen=True)
class Large(Echo):
    """Asks for memory."""

    @property
    def memory(self) -> int:
        return 3 << 20


def tell_resources(unit: Echo) -> dict[str, object]:
    import ray  # only the workers of Ray need it

    resources = ray.get_runtime_context().get_assigned_resources()  # type: ignore[no-untyped-call]
    return {"resources": resources, **echo(unit)}


def wait_for_go(unit: Echo) -> dict[str, str]:
    """Says that it has begun, and by its machine's name where, and waits for a file ``go``."""
    import ray

    begun = unit.output.parent / "begun" / unit.output.name
    partial = unit.output.with_suffix(".begun")
    partial.write_text(ray.get_runtime_context().get_node_id())
    partial.replace(begun)  # who reads it reads all of it
    while not (unit.output.parent / "go").exists():
        time.sleep(0.01)
    return {"machine": begun.read_text(), **echo(unit)}


def units_in(folder: Path, words: str) -> list[Echo]:
    return [Echo(folder / f"{number}", word) for number, word in enumerate(words)]


if __name__ == "__main__":
    list(Local(2).imap(hang, units_in(Path(sys.argv[1]), "ab")))
