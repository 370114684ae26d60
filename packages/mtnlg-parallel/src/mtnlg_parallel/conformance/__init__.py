"""Proves that an engine trains as a plain PyTorch loop does, in any configuration, or names what differs first.

    from mtnlg_parallel.conformance import drawn_cases, run_cases

    engine = "my_package.adapter:MyEngine"
    for result in run_cases(engine, islice(drawn_cases(engine, seed=1), 100)):
        print(result.case.name, result)

An engine is an `mtnlg_parallel.engine.contract.EngineClass`, given by name or reference. It trains a case on all ranks
of a layout, starting from a state of the plain loop (`reference`). After every step the losses, the gradient norms, and
each parameter's moments and master weight are compared with the loop's (`compare` has the bounds). On every rank the
weights must be the rounded master weights; every element of every tensor must be in exactly one fragment; a step that
the judge forbids must change nothing; and with dropout, a run resumed halfway must give the bits of an unbroken one.
"""

from .cases import Case, covering, draw, matrix
from .compare import Figure, Result, check
from .suite import drawn_cases, fixed_cases, run_cases

__all__ = ["Case", "Figure", "Result", "check", "covering", "draw", "drawn_cases", "fixed_cases", "matrix", "run_cases"]
