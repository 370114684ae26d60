"""Tasks for test_data_engine.py, in a module of their own that a spawned worker can import."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from mtnlg_data.engine import Local, Task
from mtnlg_data.files import atomic_open
from mtnlg_data.fingerprint import fingerprint


def echo(word: str, output: Path) -> dict[str, str]:
    """Write the word, and a line into a log, so that a test can count how often it ran."""
    with (output.parent / "log").open("a") as log:
        log.write(f"{word}\n")
    with atomic_open(output) as file:
        file.write(word.encode())
    return {"word": word}


def die_at_b(word: str, output: Path, by: signal.Signals = signal.SIGKILL) -> dict[str, str]:
    if word == "b":
        os.kill(os.getpid(), by)
    return echo(word, output)


def crash_at_b(word: str, output: Path) -> dict[str, str]:
    return die_at_b(word, output, signal.SIGSEGV)


def fill_the_disk(word: str, output: Path) -> dict[str, str]:
    with atomic_open(output):
        raise OSError(28, f"Error writing {word} to file")  # much as pyarrow's error


class PanicException(BaseException):
    """What a panic of a library in Rust becomes."""


def panic(word: str, output: Path) -> dict[str, str]:
    raise PanicException(word if output else "")


def hang(word: str, output: Path) -> dict[str, str]:
    output.write_text(word)
    time.sleep(600)
    return {}


def tell_resources(word: str, output: Path) -> dict[str, object]:
    import ray  # only the workers of Ray need it

    resources = ray.get_runtime_context().get_assigned_resources()  # type: ignore[no-untyped-call]
    return {"resources": resources, **echo(word, output)}


def wait_for_go(word: str, output: Path) -> dict[str, str]:
    """Says that it has begun, and by its machine's name where, and waits for a file ``go``."""
    import ray

    begun = output.parent / "begun" / output.name
    partial = output.with_suffix(".begun")
    partial.write_text(ray.get_runtime_context().get_node_id())
    partial.replace(begun)  # who reads it reads all of it
    while not (output.parent / "go").exists():
        time.sleep(0.01)
    return {"machine": begun.read_text(), **echo(word, output)}


def tasks_in(folder: Path, words: str, work: str = "echo", memory: int = 0) -> list[Task]:
    """A task for each word."""
    return [
        Task(f"echo_tasks:{work}", word, folder / f"{number}", fingerprint(word), memory=memory)
        for number, word in enumerate(words)
    ]


if __name__ == "__main__":
    list(Local(2).imap(tasks_in(Path(sys.argv[1]), "ab", "hang")))
