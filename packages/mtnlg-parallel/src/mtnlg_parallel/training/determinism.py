"""Sets up PyTorch for ``train.deterministic``: kernels that give the same bits each time they run.

    CUBLAS_WORKSPACE_CONFIG       a fixed workspace, so that products in several streams sum in the same order; read
                                  when CUDA starts
    use_deterministic_algorithms  an operation that has no deterministic kernel raises. Flash attention adds its
                                  gradients in order, memory-efficient attention does not split keys, and PyTorch avoids
                                  cuDNN's attention, whose backward adds by atomics
    cuDNN                         does not choose kernels by timing

Our own kernels need no setting: their atomics only count, or take a maximum of integers, and they sum in a fixed order
(decision 0082). Sums between ranks are NCCL's, which has no such switch.

On a CPU none of these settings changes a loss. They have not been tried on a GPU: there one of our operations without a
deterministic kernel would end the run with PyTorch's message, which names it.
"""

from __future__ import annotations

import os

import torch

CUBLAS_WORKSPACE = ":4096:8"


def ask_for_determinism() -> None:
    """Apply the settings above in this process. Must be called before CUDA starts."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = CUBLAS_WORKSPACE
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # (for debugging)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    torch.backends.cuda.enable_cudnn_sdp(False)
