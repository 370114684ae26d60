"""Trains the MT-NLG decoder with tensor, pipeline and data parallelism, and plans a run before it is paid for.

``__init__.pyi`` lists the public names. Each is loaded at first use, so importing the package does not import torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
