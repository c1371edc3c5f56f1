"""Which device of this machine stands for an HPU."""

from __future__ import annotations

import torch


def device() -> torch.device:
    """The accelerator that torch finds, or the CPU."""
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
