"""Proves that an engine trains as a plain PyTorch loop does, in any configuration, or names what differs first.

    from mtnlg_parallel.conformance import drawn_cases, run_cases

    engine = "my_package.adapter:MyEngine"
    for result in run_cases(engine, islice(drawn_cases(engine, seed=1), 100)):
        print(result.case.name, result)

An engine is an `mtnlg_parallel.engine.contract.EngineClass`, given by name or reference. It trains a case on all ranks
of a layout, from a state of the plain loop (`reference`), beside which losses, gradient norms, and of each parameter
both moments and the master weight are compared after every step (`compare` has the bounds). On every rank the weights
must be the masters, rounded; every element of every tensor must be in exactly one fragment; a step that the judge
forbids must change nothing; and with dropout two halves must give the bits of the whole.
"""

from .cases import Case, covering, draw, matrix
from .compare import Figure, Result, check
from .suite import drawn_cases, fixed_cases, run_cases

__all__ = ["Case", "Figure", "Result", "check", "covering", "draw", "drawn_cases", "fixed_cases", "matrix", "run_cases"]
