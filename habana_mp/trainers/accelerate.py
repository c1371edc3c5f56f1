"""``HMPHook``: a policy for the loop of a user of accelerate."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from habana_mp._policy.policy import Policy
from habana_mp._ranks.check import check_ranks
from habana_mp._show.short import brief
from habana_mp._show.writing import written
from habana_mp.trainers._run import HasRun, Run, needs, refuse

with needs("accelerate"):
    from accelerate import Accelerator

if TYPE_CHECKING:
    from typing_extensions import Self

_FILE = "habana_mp_policy.json"


class HMPHook(HasRun):
    """Mixed precision by a policy, in place of ``Accelerator(mixed_precision="bf16")``.

    The policy is in force from here on, as after ``hmp.convert``. ``accelerator.end_training()``, ``hook.remove()`` or the end of a
    ``with`` block restores what was in force before. ``accelerator.save_state`` saves the policy in a small file of its own, and
    ``load_state`` compares it, as ``hmp.PolicyState`` does.

    Args:
        accelerator: an ``Accelerator`` without mixed precision of its own.
        policy: a ``Policy``, or its name or path.
        report: count the casts. ``hook.report`` is the ``CastReport``.

    Raises:
        ValueError: there is no such policy, or the accelerator has a mixed precision.
        TypeError: ``accelerator`` is not an ``Accelerator``.
        RuntimeError: the accelerator has a hook already, or the ranks have different policies.

    Example:
        >>> accelerator = Accelerator()
        >>> with HMPHook(accelerator, policy="hmp"):
        ...     model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    """

    def __init__(
        self,
        accelerator: Accelerator,
        policy: Policy | str | os.PathLike[str] = "hmp",
        *,
        report: bool = False,
    ) -> None:
        """For the arguments, see ``help(HMPHook)``."""
        if not isinstance(accelerator, Accelerator):
            raise TypeError(f"the first argument must be an Accelerator, not {brief(accelerator)}")
        if accelerator.mixed_precision != "no":
            refuse("HMPHook", f"Accelerator(mixed_precision={accelerator.mixed_precision!r})")
        if "end_training" in vars(accelerator):
            raise RuntimeError("the accelerator has an HMPHook already: call its remove() first")
        self._accelerator = accelerator
        self._run = Run(policy, report)
        self._run.begin()
        try:
            check_ranks()
        except BaseException:
            self._run.end()
            raise
        self._handles = [
            accelerator.register_save_state_pre_hook(self._save),
            accelerator.register_load_state_pre_hook(self._load),
        ]
        accelerator.end_training = self._end_training

    def remove(self) -> None:
        """Put in force what was before, and leave the accelerator as it was. A second call does nothing."""
        vars(self._accelerator).pop("end_training", None)
        for handle in self._handles:
            handle.remove()
        self._run.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()

    def _end_training(self) -> None:
        self.remove()
        self._accelerator.end_training()

    def _save(self, _models: Any, _weights: Any, folder: str) -> None:
        if self._accelerator.is_main_process:
            written(json.dumps(self._run.state.state_dict(), indent=1), Path(folder, _FILE))

    def _load(self, _models: Any, folder: str) -> None:
        file = Path(folder, _FILE)
        if file.exists():
            self._run.state.load_state_dict(json.loads(file.read_text(encoding="utf-8")))
