"""How hypothesis and Triton run here."""

import os
from importlib.util import find_spec

from hypothesis import settings

# Without a clock: machines differ, and the first example pays for what is imported.
settings.register_profile("no clock", deadline=None)
settings.load_profile("no clock")

if find_spec("triton"):
    # On the CPU by Triton's interpreter, which it must know when it is imported (megatron-core does that too). The
    # variable does not stay: what other tests start shall choose its kernels as a user's run does.
    os.environ["TRITON_INTERPRET"] = "1"
    from triton import knobs

    knobs.propagate_env = False
    knobs.runtime.interpret = True
    knobs.propagate_env = True
    del os.environ["TRITON_INTERPRET"]
