"""`torch.xpu.amp`, which torch has no longer: autocast by the lists of its time, the preset `xpu`."""  # (F23, F24)

from __future__ import annotations

import torch

from habana_mp import hmp

__all__ = ["autocast"]


def autocast(
    enabled: bool = True, dtype: torch.dtype = torch.bfloat16, cache_enabled: bool | None = None
) -> hmp.autocast:
    """``hmp.autocast`` with the preset `xpu`. Without an XPU it acts on the tensors of every device.

    Raises:
        TypeError: a dtype that is none, or enabled or cache_enabled that are no bool.
    """
    # "hpu" without such a device is what acts everywhere (D28).
    device_type = "xpu" if torch.xpu.is_available() else "hpu"
    return hmp.autocast(device_type, dtype, enabled, cache_enabled, policy="xpu")
