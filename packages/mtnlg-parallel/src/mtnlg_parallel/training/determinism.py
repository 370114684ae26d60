"""What ``train.deterministic`` asks of PyTorch: kernels that give the same bits each time they run.

    CUBLAS_WORKSPACE_CONFIG       a fixed workspace, so that products in several streams add alike; read by CUDA's start
    use_deterministic_algorithms  an operation that has no such kernel raises. Flash attention adds its gradients in
                                  order, memory-efficient attention does not split keys, and PyTorch picks no cuDNN
                                  attention, whose backward adds by atomics
    cuDNN                         no kernel chosen by timing

Our own kernels need nothing: their atomics count, or take a maximum of integers, and they sum in a fixed order
(decision 0082). The sums between ranks are NCCL's, which has no such switch.

On a CPU none of it changes a loss. It has not been tried on a GPU: there an operation of ours without a deterministic
kernel would end the run with PyTorch's line, which names it.
"""

from __future__ import annotations

import os

import torch

CUBLAS_WORKSPACE = ":4096:8"


def ask_for_determinism() -> None:
    """Set all of the above in this process. Call it before CUDA starts."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = CUBLAS_WORKSPACE
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # (for debugging)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    torch.backends.cuda.enable_cudnn_sdp(False)
