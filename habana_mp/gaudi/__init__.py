"""Lets a script written for Gaudi run unchanged where Habana's package is not installed.

    import habana_mp.gaudi
    from habana_frameworks.torch.hpex import hmp

Importing this module makes `habana_frameworks.torch` importable, as far as `habana_mp/_gaudi/contents.py` goes (F1, F211 to F223), and the
older `hmp` package and `torch.xpu.amp`; "hpu" stands for another device from here on. Real ones are left alone. It also applies the log masks of
Gaudi (`habana_mp/_hpu/gaudi_flags.py`).
"""

import sys

from habana_mp import hmp
from habana_mp._gaudi import importer
from habana_mp._gaudi.hpex import lamb, optimizers

__all__ = ["hmp"]

# Where pickled optimizers of before look for their classes.
sys.modules[f"{__name__}.optimizers"], sys.modules[f"{__name__}._lamb"] = optimizers, lamb

importer.install()
importer.make_ready()
