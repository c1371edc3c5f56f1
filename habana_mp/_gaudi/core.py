"""`habana_frameworks.torch.core`: the bridge to a device that runs graphs. Here each operation has run when Python goes on."""

from __future__ import annotations

__all__ = ["is_enabled_weight_permute_pass", "mark_step"]


def mark_step(device_str: str = "", sync: bool = False) -> None:
    """Do nothing: on Gaudi it runs the operations gathered so far (F213)."""


def is_enabled_weight_permute_pass() -> bool:
    """True, so that scripts leave the weights of convolutions in PyTorch's layout.

    They ask before they permute them for the device by hand, which the real package does in a pass of its own (F229).
    """
    return True
