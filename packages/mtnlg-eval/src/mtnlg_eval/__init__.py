"""Scores an MT-NLG checkpoint on the paper's nine tasks through lm-eval, and draws the report of a run.

The public names are those of ``__init__.pyi``. Each is loaded at first use, so importing the package costs no torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
