"""``PolicyState``: the policy that a model was trained with, in its checkpoints."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from habana_mp._policy.diff import PolicyDiff
from habana_mp._policy.policy import Policy
from habana_mp._show.warning import warn

_KEYS = ("policy", "hash")


class PolicyState:
    """A policy for a checkpoint: its text and its hash as a state dict. Loading a checkpoint compares the two policies.

    The state dict holds two strings, so ``torch.load(..., weights_only=True)`` reads it, and ``torch.distributed.checkpoint`` can save the
    object. Loading does not change the policy in force. If the checkpoint has another policy, one warning lists the ops that differ. This
    is not an error, because weights are valid under any policy.

    Args:
        policy: a ``Policy``, or its name or path.

    Raises:
        ValueError: there is no such policy.
        OSError: the policy cannot be read.

    Example:
        >>> state = hmp.PolicyState("balanced")
        >>> torch.save({"model": model.state_dict(), "policy": state.state_dict()}, "checkpoint.pt")
        >>> state.load_state_dict(torch.load("checkpoint.pt")["policy"])

    See Also:
        Policy, convert
    """

    def __init__(self, policy: Policy | str | os.PathLike[str]) -> None:
        self.policy = policy if isinstance(policy, Policy) else Policy.load(policy)

    def state_dict(self) -> dict[str, str]:
        """Return the policy's text ("policy") and its hash ("hash", 16 hexadecimal digits)."""
        return {"policy": str(self.policy), "hash": f"{hash(self.policy) & (1 << 64) - 1:016x}"}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Compare the policy with that of a checkpoint, and warn once if they differ.

        Raises:
            ValueError: the argument is not a result of ``state_dict``.
        """
        if not isinstance(state_dict, Mapping) or not all(isinstance(state_dict.get(key), str) for key in _KEYS):
            raise ValueError(
                f"a policy in a checkpoint must be a dict with the strings policy and hash, not {state_dict!r:.80}"
            )
        if state_dict["hash"] == self.state_dict()["hash"]:
            return
        text = state_dict["policy"]
        try:
            saved = Policy.load(text)
        except (ValueError, OSError) as error:
            warn(f"cannot read the policy of the checkpoint, so it is not compared with {self.policy.name!r}: {error}")
            return
        if difference := PolicyDiff.between(saved, self.policy):
            lines = "".join(f"\n  {line}" for line in str(difference).splitlines())
            warn(
                f"the checkpoint was made under the policy {saved.name!r}, which differs from {self.policy.name!r}:{lines}"
            )
