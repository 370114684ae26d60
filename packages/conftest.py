"""Make Triton run by its interpreter, on the CPU, in the packages' tests.

Triton reads the setting when it is imported, and megatron-core imports it: hence here, before any test. The variable is
removed afterwards: processes that tests start must choose their kernels as a user's run does.
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
