"""Lets a script written for Gaudi run unchanged where Habana's package is not installed.

    import habana_mp.gaudi
    from habana_frameworks.torch.hpex import hmp

Importing this package makes `habana_frameworks.torch` importable, as far as the table in `_importer.py` goes (F1, F211 to F223), the older
`hmp` package, and `torch.xpu.amp`. Real ones are left alone. It also applies the log masks of Gaudi (`habana_mp/_hpu/gaudi_flags.py`).
"""

from habana_mp import hmp
from habana_mp._hpu import gaudi_flags
from habana_mp.gaudi import _importer

__all__ = ["hmp"]

_importer.install()
gaudi_flags.apply_log_masks()
