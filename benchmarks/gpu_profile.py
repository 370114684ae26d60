"""Where a step goes, by torch's profiler: every kernel under the operation that started it, and when none ran.

Kernels' own names say little (Triton's of several modules are alike, a library's are encoded); the operation in whose
call a kernel was started has a name that a reader knows. Kernels of a compiled graph go by their own.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from gpu_clock import GPU

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 3 if GPU else 1
LEAST = 0.002 if GPU else 0.02
"""Share of a step below which a line is not worth reading."""

KINDS = (
    ("matrix products", re.compile(r"aten::(mm|addmm|bmm|baddbmm|linear)$")),
    ("attention", re.compile(r"aten::_(scaled_dot_product|flash_attention|efficient_attention|cudnn_attention)\w*")),
    ("copies", re.compile(r"aten::(copy_|contiguous|clone|cat|fill_|zero_)$|Memcpy|Memset")),
    ("compiled, fused", re.compile(r"triton_\w+")),
)
OURS = re.compile(r"_(LayerNorm|AddNorm|BiasGelu|BiasDropoutAdd|Attention)(Backward)?$")
"""The autograd functions of mtnlg_parallel.kernels."""


def where(step: Callable[[], None]) -> dict[str, tuple[float, float]]:
    """Share of a step, and seconds, by kind, the greatest first; ``idle`` is when nothing ran on the GPU."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if GPU else [])]
    with profile(activities=activities) as profiler:
        for _ in range(STEPS):
            step()
        if GPU:
            torch.cuda.synchronize()
    events: list[Any] = list(profiler.events())
    seconds = _on_gpu(events) if GPU else _on_cpu(events)
    total = sum(seconds.values())
    seconds[f"others, each below {LEAST:.1%}"] = sum(each for each in seconds.values() if each < LEAST * total)
    ordered = sorted(
        ((kind, each) for kind, each in seconds.items() if each >= LEAST * total), key=lambda item: -item[1]
    )
    return {kind: (each / total, each / STEPS / 1e6) for kind, each in ordered}


def _on_gpu(events: list[Any]) -> dict[str, float]:
    """Microseconds by kind; what no operation of the host claims goes by the kernel's name."""
    found: dict[str, float] = defaultdict(float)
    # A compiler's own marks span many kernels, on both sides, and are none.
    events = [event for event in events if not event.is_user_annotation]
    for event in events:
        if event.device_type == DeviceType.CPU:
            for kernel in event.kernels:
                found[_kind(event, kernel.name)] += kernel.duration
    ran = [event.time_range for event in events if event.device_type == DeviceType.CUDA]
    busy = sum(each.end - each.start for each in ran)
    found["started by none of these"] += max(busy - sum(found.values()), 0.0)
    found["idle"] = max(each.end for each in ran) - min(each.start for each in ran) - busy
    return found


def _on_cpu(events: list[Any]) -> dict[str, float]:
    """The trial's: the host's own microseconds."""
    found: dict[str, float] = defaultdict(float)
    for event in events:
        found[_kind(event, event.name)] += event.self_cpu_time_total
    return found


def _kind(event: Any, kernel: str) -> str:  # noqa: ANN401  (torch's FunctionEvent)
    """The innermost call that says something: recomputation runs within the backward that asks for it."""
    names, caller = [kernel], event
    while caller is not None:
        names.append(caller.name)
        caller = caller.cpu_parent
    for name in names:
        if match := OURS.search(name):
            return f"ours: {match[0].removeprefix('_').replace('Backward', ', backward')}"
        for kind, pattern in KINDS:
            if pattern.search(name):
                return kind
    return f"other: {event.name}"
