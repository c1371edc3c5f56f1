"""Compiled code run op by op, for what looks at single ops. Under "exact" that is the same program (D55)."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext

import torch

from habana_mp._torch_private import DYNAMO


def uncompiled() -> AbstractContextManager[None]:
    """Inside, what torch.compile has compiled runs as it was written, and nothing more is compiled."""
    return torch.compiler.set_stance("force_eager") if DYNAMO in sys.modules else nullcontext()
