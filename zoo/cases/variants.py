"""What a case runs under: nothing, torch.autocast, and each policy by each front end."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch

from habana_mp import hmp

LOW = torch.bfloat16
FRONT_ENDS = ("convert", "autocast")
# Of architectures, which take longer. Ops and modules run under all presets.
POLICIES = ("hmp", "hmp-o2", "hpu-autocast", "torch-cpu", "xpu")


class Variant(NamedTuple):
    front: str
    policy: str = ""

    @contextlib.contextmanager
    def conversion(self) -> Iterator[None]:
        """Round the making of a model, its calls and their backward: as convert is used."""
        if self.front != "convert":
            yield
            return
        hmp.convert(policy=_policy(self.policy))
        try:
            yield
        finally:
            hmp.revert()

    def region(self) -> AbstractContextManager[Any]:
        """Round a forward: as autocast is used."""
        if self.front == "autocast":
            return hmp.autocast("cpu", LOW, policy=_policy(self.policy))
        if self.front == "torch.autocast":
            return torch.autocast("cpu", LOW)
        return contextlib.nullcontext()


PLAIN, TORCH = Variant("none"), Variant("torch.autocast")


def variants(policies: tuple[str, ...]) -> list[Variant]:
    return [PLAIN, TORCH, *(Variant(front, policy) for policy in policies for front in FRONT_ENDS)]


@functools.cache
def _policy(name: str) -> hmp.Policy:
    """Of presets for float16 the lists count here, so that all are compared with the same torch.autocast."""
    return hmp.Policy.load(name).with_low_dtype(LOW)
