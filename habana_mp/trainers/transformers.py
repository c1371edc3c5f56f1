"""``HMPCallback``: a policy as a callback of the Trainer of transformers."""

from __future__ import annotations

import os
import traceback
from typing import TYPE_CHECKING, Any

from habana_mp._convert.conversion import is_converted
from habana_mp._policy.policy import Policy
from habana_mp._ranks.check import check_ranks
from habana_mp._show.warning import warn
from habana_mp.trainers._run import HasRun, Run, needs, refuse

with needs("transformers"):
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_callback import ExportableState

if TYPE_CHECKING:
    from typing_extensions import Self

_OTHERS = ("bf16", "fp16", "bf16_full_eval", "fp16_full_eval")


_training: list[HMPCallback] = []  # whose training has begun, and has ended at most by an exception


class HMPCallback(HasRun, TrainerCallback, ExportableState):  # type: ignore[misc] # what transformers has is Any here
    """Mixed precision by a policy, in place of ``TrainingArguments(bf16=True)``.

    The policy is in force from the beginning of ``trainer.train()`` to its end, as after ``hmp.convert``, also in evaluations in between.
    The steps of the optimizer are not cast. After the training the callback restores what was in force before. The Trainer has no event
    for an exception, and none before ``evaluate`` and ``predict``. To cover these, use the callback as a context manager.

    When training begins, the policies of the ranks are compared. Checkpoints of the Trainer have the policy, and resuming from one compares
    it, as ``hmp.PolicyState`` does.

    Args:
        policy: a ``Policy``, or its name or path.
        report: count the casts. After a run, ``callback.report`` is its ``CastReport``.

    Raises:
        ValueError: there is no such policy. The Trainer raises it when it is made with bf16, fp16, bf16_full_eval or fp16_full_eval, or
            with another HMPCallback.

    Example:
        >>> with HMPCallback(policy="hmp") as callback:
        ...     trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data, callbacks=[callback])
        ...     trainer.train()
        ...     trainer.evaluate()
    """

    def __init__(self, policy: Policy | str | os.PathLike[str] = "hmp", *, report: bool = False) -> None:
        """For the arguments, see ``help(HMPCallback)``."""
        self._run = Run(policy, report)
        self._held = False
        self._warned = False

    def __enter__(self) -> Self:
        self._held = True
        self._run.begin()
        return self

    def __exit__(self, *exc: object) -> None:
        self._held = False
        self._end()

    def _end(self) -> None:
        if self in _training:
            _training.remove(self)
        if not self._held:
            self._run.end()

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        if isinstance(state.stateful_callbacks.get(type(self).__name__), list):
            raise ValueError("a Trainer can have only one HMPCallback, and this one has two. Remove one of them")  # noqa: TRY004
        for name in _OTHERS:
            if getattr(args, name):
                refuse("HMPCallback", f"TrainingArguments({name}=True)")
        if args.mixed_precision != "no":  # accelerate launch sets it too
            refuse("HMPCallback", f"mixed_precision={args.mixed_precision!r} of accelerate")

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        # A callback that was added to a Trainer has not seen it made; one whose training raised has not seen its end.
        self.on_init_end(args, state, control)
        frames = (frame for frame, _ in traceback.walk_stack(None))
        if sum(frame.f_code is Trainer.train.__code__ for frame in frames) <= 1:  # not inside of another Trainer's
            for other in [*_training]:
                other._end()
        self._end()
        _training.append(self)
        self._run.begin()
        check_ranks()
        # The policy of the checkpoint, where one is resumed; else this callback's own.
        saved = state.stateful_callbacks.get(type(self).__name__)
        if isinstance(saved, dict) and "policy" in saved:
            self._run.state.load_state_dict(saved["policy"])

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self._end()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        if not is_converted() and not self._warned:
            self._warned = True  # in the first batch
            warn(
                f"evaluate and predict outside train run in float32, not under the policy {self.policy.name!r}. "
                "Call them inside `with callback:`"
            )

    def state(self) -> dict[str, Any]:
        """What trainer_state.json keeps of the callback."""
        return {
            "args": {"policy": str(self.policy), "report": self._run.report},
            "attributes": {},
            "policy": self._run.state.state_dict(),
        }
