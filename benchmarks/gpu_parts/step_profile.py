"""Where the time of a rank's step with our kernels goes, by torch's profiler: kernels by operation, and idle time.

Kernel names say little (several Triton modules share names, libraries encode theirs); the operation that launched a
kernel has a name that a reader knows. Kernels of a compiled graph are listed by their own name.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from .clock import GPU, kernels
from .rank import make_step, setting, sides_of
from .rank_layers import make_rank

if TYPE_CHECKING:
    from collections.abc import Callable

    from .results import Results

STEPS = 3 if GPU else 1
MIN_SHARE = 0.002 if GPU else 0.02
"""Kinds below this share of a step are summed into one line."""

KINDS = (
    ("matrix products", re.compile(r"aten::(mm|addmm|bmm|baddbmm|linear)$")),
    ("attention", re.compile(r"aten::_(scaled_dot_product|flash_attention|efficient_attention|cudnn_attention)\w*")),
    ("copies", re.compile(r"aten::(copy_|contiguous|clone|cat|fill_|zero_)$|Memcpy|Memset")),
    ("compiled, fused", re.compile(r"triton_\w+")),
)
OURS = re.compile(r"^mtnlg::(\w+)$")
"""The operators of mtnlg_parallel.kernels."""


def time_by_kind(step: Callable[[], None]) -> dict[str, tuple[float, float]]:
    """Return share of a step and seconds by kind, greatest first; ``idle`` is time without a running kernel.

    Empty where the profiler may not see the GPU.
    """
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if GPU else [])]
    with profile(activities=activities) as profiler:
        for _ in range(STEPS):
            step()
        if GPU:
            torch.cuda.synchronize()
    events: list[Any] = list(profiler.events())
    seconds = _on_gpu(events) if GPU else _on_cpu(events)
    total = sum(seconds.values())
    if not total:
        return {}
    seconds[f"others, each below {MIN_SHARE:.1%}"] = sum(each for each in seconds.values() if each < MIN_SHARE * total)
    ordered = sorted(
        ((kind, each) for kind, each in seconds.items() if each >= MIN_SHARE * total), key=lambda item: -item[1]
    )
    return {kind: (each / total, each / STEPS / 1e6) for kind, each in ordered}


def _on_gpu(events: list[Any]) -> dict[str, float]:
    """Return microseconds by kind; kernels without a host operation are summed as unattributed."""
    microseconds: dict[str, float] = defaultdict(float)
    # A compiler's annotations span many kernels, on host and GPU, and are not kernels.
    events = [event for event in events if not event.is_user_annotation]
    for event in events:
        if event.device_type == DeviceType.CPU:
            for kernel in event.kernels:
                microseconds[_kind(event, kernel.name)] += kernel.duration
    ran = [event.time_range for event in events if event.device_type == DeviceType.CUDA]
    if not ran:
        return {}
    busy = sum(each.end - each.start for each in ran)
    microseconds["started by none of these"] += max(busy - sum(microseconds.values()), 0.0)
    microseconds["idle"] = max(each.end for each in ran) - min(each.start for each in ran) - busy
    return microseconds


def _on_cpu(events: list[Any]) -> dict[str, float]:
    """Return the host's microseconds by kind, for a trial without a GPU."""
    microseconds: dict[str, float] = defaultdict(float)
    for event in events:
        microseconds[_kind(event, event.name)] += event.self_cpu_time_total
    return microseconds


def _kind(event: Any, kernel: str) -> str:  # noqa: ANN401  (torch's FunctionEvent)
    """Return the innermost known call: recomputation runs within the backward pass that triggers it."""
    names, caller = [kernel], event
    while caller is not None:
        names.append(caller.name)
        caller = caller.cpu_parent
    for name in names:
        if match := OURS.search(name):
            return f"ours: {match[1]}"
        for kind, pattern in KINDS:
            if pattern.search(name):
                return kind
    return f"other: {event.name}"


def main(tiny: bool, results: Results) -> None:
    """Profile under selective recomputation."""
    config, layers, (case, *_) = setting(tiny)
    if not results.has(case.name):
        with results.attempt(case.name):
            step = make_step(make_rank(config, layers), case, sides_of(kernels())["kernels"])
            step()
            where = time_by_kind(step)
            line = ", ".join(f"{kind} {share:.1%}" for kind, (share, _) in where.items())
            results.add(case.name, line or "the profiler sees no GPU", {"where": where})
