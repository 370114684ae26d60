"""Raw web pages to clean, deduplicated, blended tokens: the data side of MT-NLG 530B.

The public names are those of ``__init__.pyi``. Each is loaded at first use, so importing the package is cheap.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
