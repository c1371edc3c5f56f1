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
    """A policy for a checkpoint: its text and its hash as a state dict, compared when the checkpoint is loaded.

    The state dict holds two strings, so ``torch.load(..., weights_only=True)`` reads it, and ``torch.distributed.checkpoint`` saves the
    object as it is. Loading changes nothing. A checkpoint of another policy triggers a warning with the ops that moved, and is no
    error: the weights in it are as good under any policy, and to go on under another one may be what is wanted.

    >>> policy = hmp.PolicyState(hmp.convert())
    >>> torch.save({"model": model.state_dict(), "policy": policy.state_dict()}, "checkpoint.pt")
    >>> policy.load_state_dict(torch.load("checkpoint.pt")["policy"])

    See Also:
        Policy, convert
    """

    def __init__(self, policy: Policy | str | os.PathLike[str]) -> None:
        self.policy = policy if isinstance(policy, Policy) else Policy.load(policy)

    def state_dict(self) -> dict[str, str]:
        """The policy's text ("policy") and its hash ("hash", 16 hexadecimal digits)."""
        return {"policy": str(self.policy), "hash": f"{hash(self.policy) & (1 << 64) - 1:016x}"}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Compare with what a checkpoint holds; a difference is one warning.

        Raises:
            ValueError: not what ``state_dict`` gave.
        """
        if not isinstance(state_dict, Mapping) or not all(isinstance(state_dict.get(key), str) for key in _KEYS):
            raise ValueError(
                f"a policy in a checkpoint is a dict with the strings policy and hash, not {state_dict!r:.80}"
            )
        if state_dict["hash"] == self.state_dict()["hash"]:
            return
        text = state_dict["policy"]
        try:
            saved = Policy.load(text)
        except (ValueError, OSError) as error:
            warn(f"the policy of the checkpoint cannot be read, and is not compared with {self.policy.name!r}: {error}")
            return
        if difference := PolicyDiff.between(saved, self.policy):
            lines = "".join(f"\n  {line}" for line in str(difference).splitlines())
            warn(
                f"the checkpoint was made under the policy {saved.name!r}, and {self.policy.name!r} is another:{lines}"
            )
