"""The MT-NLG 530B decoder at any size, text generation, and a checkpoint that any parallel layout opens.

The public names are those of ``__init__.pyi``. Each is loaded at first use, so importing the package costs no torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
