"""How Triton runs in the packages' tests: by its interpreter, on the CPU.

It must know so when it is imported, and whoever imports megatron-core imports it: hence here, before any test. The
variable does not stay, for what tests start shall choose its kernels as a user's run does.
"""

# ruff: noqa: INP001  (pytest loads it by its path)

import os
from importlib.util import find_spec

if find_spec("triton"):
    os.environ["TRITON_INTERPRET"] = "1"
    from triton import knobs

    knobs.propagate_env = False
    knobs.runtime.interpret = True
    knobs.propagate_env = True
    del os.environ["TRITON_INTERPRET"]
