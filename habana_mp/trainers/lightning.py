"""``HMPPrecision``: a policy as a precision plugin of Lightning."""

from __future__ import annotations

import os
from typing import Any

import torch

import habana_mp._core as _core
from habana_mp._policy.policy import Policy
from habana_mp._scope.disable_casts import disable_casts
from habana_mp._scope.without_casts import CastsSwitched
from habana_mp.trainers._run import HasRun, Run, needs, patch

with needs("lightning"):
    from lightning.pytorch import LightningModule
    from lightning.pytorch.plugins import Precision


class HMPPrecision(HasRun, Precision):  # type: ignore[misc] # what lightning has is Any here
    """Mixed precision by a policy, in place of ``Trainer(precision="bf16-mixed")``.

    The steps of training, validation, test and prediction and the backward pass run under the policy, as after ``hmp.convert``. Nothing
    outside them is cast: callbacks, clipping and the steps of optimizers. Inside them, ``self.log`` and the ``optimizer.step()`` of manual
    optimization are not cast either. The policy is in force while ``fit``, ``validate``, ``test`` or ``predict`` runs. After that, also
    after an exception, the plugin restores what was in force before. Checkpoints have the policy, and loading one compares it, as
    ``hmp.PolicyState`` does.

    Args:
        policy: a ``Policy``, or its name or path.
        report: count the casts. After a run, ``plugin.report`` is its ``CastReport``.

    Raises:
        ValueError: there is no such policy. ``Trainer`` raises it, too, if ``precision=`` is given as well.
        TypeError: Fabric sets up a module with the plugin.

    Example:
        >>> trainer = lightning.Trainer(plugins=[HMPPrecision(policy="hmp")])
    """

    def __init__(self, policy: Policy | str | os.PathLike[str] = "hmp", *, report: bool = False) -> None:
        """For the arguments, see ``help(HMPPrecision)``."""
        self._run = Run(policy, report)
        self._off_before: bool | None = None

    def convert_module(self, module: torch.nn.Module) -> torch.nn.Module:
        of_trainer: bool = isinstance(module, LightningModule)
        if not of_trainer:  # Fabric, which never calls teardown
            raise TypeError("HMPPrecision works with lightning.Trainer only. In a loop with Fabric, call hmp.convert()")
        # The first that a strategy asks of its plugin; teardown is the last, also after exceptions.
        self._run.begin()
        self._run.put_on(module)  # the trainer calls its training_step
        if self._off_before is None:
            self._off_before = _core.casts_off()
            _core.set_casts_off(True)
            # Lightning multiplies what a step logs by the size of the batch.
            self._undo_log = patch(LightningModule, "log", disable_casts())
        return module

    def teardown(self) -> None:
        if self._off_before is not None:
            _core.set_casts_off(self._off_before)
            self._off_before = None
            self._undo_log()
        self._run.end()

    def forward_context(self) -> CastsSwitched:
        return CastsSwitched(off=False)

    def backward(self, *args: Any, **kwargs: Any) -> None:
        with CastsSwitched(off=False):
            super().backward(*args, **kwargs)

    def state_dict(self) -> dict[str, str]:
        return self._run.state.state_dict()

    def load_state_dict(self, state_dict: dict[str, str]) -> None:
        self._run.state.load_state_dict(state_dict)
