"""The note on an error of torch that blames a low dtype: which op made the tensor low, which list line says so, which edit helps."""  # (D42)

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from types import CodeType

import torch

import habana_mp._core as _core
from habana_mp._cast import LOW_DTYPES, dtype_name
from habana_mp._policy.policy import OpRule, Policy
from habana_mp._scope import in_force

# An error is no time to walk through the graph of a whole training.
_MOST_NODES = 2000


def _note(
    error: BaseException,
    op: str,
    tensors: Sequence[torch.Tensor],
    last_lower: str,
    region: _core.Policy | None,
    *,
    casts_off: bool,
) -> None:
    policy = in_force.policy if region is None else Policy(region)
    if policy is None or any(map(_is_ours, getattr(error, "__notes__", ()))):
        return
    # The dtype of one tensor is what disable_casts leaves to the caller; two that differ are often its doing.
    if casts_off and "same dtype" not in str(error):
        return
    if _NORM_REFUSES in str(error):
        add_note(error, _note_of_norm(error, op, policy))
        return
    if region is not None and torch.autograd.function.BackwardCFunction.apply.__code__ in _codes(error):
        add_note(error, f"{_given(policy, op, tensors)} {_NO_REGION}")
        return
    add_note(error, note(policy, op, tensors, last_lower) + (_CASTS_OFF if casts_off else ""))


def note_of_float32_module(error: BaseException, path: str, module: torch.nn.Module) -> None:
    """For an error that leaves a module whose policy is "fp32": its own tensors are in the dtypes that it has them in."""
    if not _core.blames_low_dtype(str(error)) or any(map(_is_ours, getattr(error, "__notes__", ()))):
        return
    tensors = chain(module.named_parameters(), module.named_buffers())
    low = next(((name, tensor.dtype) for name, tensor in tensors if tensor.dtype in LOW_DTYPES), None)
    if low is not None:
        hold = f"model.get_submodule({path!r})" if path else "model"
        add_note(
            error,
            f'{_OURS}the policy of {path!r} by set_policies is "fp32", so its inputs are float32, and its {low[0]} is {dtype_name(low[1])}. '
            f"Hold the module in float32: {hold}.float().",
        )


_OURS = "habana_mp: "
# torch's words, of all norms on the CPU.
_NORM_REFUSES = "mixed dtype (CPU): expect parameter to have"
_NO_REGION = (
    "No region covers a backward pass. Decorate forward and backward of the torch.autograd.Function with hmp.custom_fwd and "
    "hmp.custom_bwd, or cast the tensor by hand (x.float())."
)
_CASTS_OFF = " The call is in hmp.disable_casts(), where no argument is cast: cast the tensor before the call."


def _is_ours(text: str) -> bool:
    return text.startswith(_OURS)


def note(policy: Policy, op: str, tensors: Sequence[torch.Tensor], last_lower: str) -> str:
    """What to say of an op that has failed on low tensors under a policy; "" and none where it is known only that one has."""
    given = _given(policy, op, tensors)
    makers = (_lower_rule(policy, maker) for tensor in tensors for maker in _makers(tensor))
    made = next(filter(None, makers), None)
    rule = made or (_lower_rule(policy, last_lower) if last_lower else None)
    if rule is None:
        return f"{given} Cast the tensor by hand (x.float()), or put the call in hmp.disable_casts()."
    who = f"{rule.op} made it" if made else f"The last op of the lower list on this thread was {rule.op}"
    where = f"{rule.file}:{rule.line}" if rule.file else "a list given in code"
    return (
        f'{given} {who}: the lower list names {rule.listed_as} ({where}). policy.with_edits("+{rule.op}:fp32"), or a file with the line '
        f'"+{rule.op}" as fp32_file_path of hmp.convert (or fp32= of Policy.from_files), keeps {rule.op} in float32; or cast the tensor by '
        "hand (x.float())."
    )


def _given(policy: Policy, op: str, tensors: Sequence[torch.Tensor]) -> str:
    dtypes = " and ".join(sorted({dtype_name(tensor.dtype) for tensor in tensors})) or policy._core.low_dtype
    return f"{_OURS}{op or 'an op'} was given {dtypes} under the policy {policy.name!r}."


def _note_of_norm(error: BaseException, op: str, policy: Policy) -> str:
    """No cast helps it: the running statistics are written to, and a cast would lose what is written."""  # (D14)
    return (
        f"{_OURS}{op or _failed_in(error) or 'a norm'} got float32 and {policy._core.low_dtype} tensors under the policy {policy.name!r}. Where "
        "dtypes differ, torch takes weights and running statistics of a norm in float32 alone, and running statistics are never cast. "
        "Hold the norms of the model in float32: norm.float()."
    )


def _failed_in(error: BaseException) -> str:
    """The function of torch.nn.functional that has raised it."""
    code = deque(_codes(error), maxlen=1)
    return code[0].co_name if code and code[0].co_filename == torch.nn.functional.__file__ else ""


def _codes(error: BaseException) -> Iterator[CodeType]:
    """Of the functions that the error has passed, the outermost first."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        yield frame.f_code


def add_note(error: BaseException, text: str) -> None:
    """``error.add_note``, which Python 3.10 lacks: there it is in ``__notes__`` all the same."""
    notes = getattr(error, "__notes__", None)
    if notes is None:
        notes = error.__notes__ = []  # type: ignore[attr-defined]
    notes.append(text)


def _makers(tensor: torch.Tensor) -> Iterator[str]:
    """The ops behind a tensor, nearest first, as autograd names them: "addmm" of AddmmBackward0."""
    nodes = deque([tensor.grad_fn] if tensor.grad_fn is not None else [])
    seen = set(nodes)
    while nodes and len(seen) < _MOST_NODES:
        node = nodes.popleft()
        yield node.name().partition("Backward")[0]
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)


def _lower_rule(policy: Policy, op: str) -> OpRule | None:
    """The rule of an op that runs lower; autograd spells names without underscores."""
    plain = op.replace("_", "").lower()
    for entry in policy._core.entries:
        own = entry.base.replace("_", "").lower()
        if entry.list == "lower" and not entry.modules and plain in (own, f"{own}d"):
            rule = policy._rule(entry.base)
            return rule if rule.action == "lower" else None
    if plain == "convolution":
        return next(
            (rule for name in ("conv2d", "conv1d", "conv3d") if (rule := policy._rule(name)).action == "lower"), None
        )
    return None


_core.set_error_note(_note)
