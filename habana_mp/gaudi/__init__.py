"""Make a script that was written for Gaudi run unchanged on a machine without Habana's package.

Importing this module makes `habana_frameworks.torch`, the older `hmp` package and `torch.xpu.amp` importable, as far as
`habana_mp/_gaudi/contents.py` covers them. From then on "hpu" is a name of another device. If the real packages are
installed, they stay. The import also applies the log masks of Gaudi (`habana_mp/_hpu/gaudi_flags.py`).

Example:
    >>> import habana_mp.gaudi
    >>> from habana_frameworks.torch.hpex import hmp
    >>> torch.ones(2, device="hpu").device.type
    'cpu'
"""  # (F1, F211 to F223)

from habana_mp import hmp
from habana_mp._gaudi import importer

__all__ = ["hmp"]

importer.install()
importer.make_ready()
