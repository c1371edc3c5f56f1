"""``convert``, ``revert``, ``is_converted``: a policy put in force in this process."""  # (F1 to F18, D1 to D9)

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator
from typing import Any

import torch

import habana_mp._core as _core
from habana_mp import _weights
from habana_mp._convert import births, dynamo, neighbours
from habana_mp._convert.patched_op import patched_op
from habana_mp._convert.request import policy_for_convert
from habana_mp._convert.rule import rule_of
from habana_mp._policy.homes import ops
from habana_mp._policy.policy import Policy
from habana_mp._ranks import check
from habana_mp._scope import in_force, torch_autocast
from habana_mp._scope.fork_lock import fork_lock
from habana_mp._scope.placed import warn_if_nowhere
from habana_mp._show.did_you_mean import knows_arguments
from habana_mp._show.short import brief
from habana_mp._watch import log

_lock = fork_lock()


@knows_arguments(dtype="low_precision_type", low_dtype="low_precision_type")
def convert(
    opt_level: str = "O1",
    bf16_file_path: str | os.PathLike[str] | None = "",
    fp32_file_path: str | os.PathLike[str] | None = "",
    isVerbose: bool = False,  # noqa: N803 - the guides' spelling (F3)
    *,
    fp16_file_path: str | os.PathLike[str] | None = "",
    low_precision_type: torch.dtype | str = torch.bfloat16,
    policy: Policy | str | None = None,
    strict: bool = False,
) -> Policy:
    """Run the ops of torch in mixed precision, in this process, from now on.

    ``convert`` replaces each op that the policy concerns under every name that it has: ``torch.mm``, ``Tensor.mm``, ``a @ b``,
    ``F.linear`` and so on. The new function casts the float32, bfloat16, float16 and float8 tensors and then calls the op. It does not matter
    whether you make the model and the optimizer before or after the call. Weights keep their dtype, and so do their gradients. A second
    call replaces the first, and ``revert`` undoes it. If ``convert`` raises, the conversion that was in force before stays.

    Args:
        opt_level: "O1" runs ops by lists. "O2" runs GEMM and convolution ops in the lower precision and all others in float32.
        bf16_file_path: the path of a list of ops for the lower precision, with one op per line. ``None`` or "" means the built-in
            list. A file whose names all begin with + or - edits the built-in list.
        fp32_file_path: the path of a list of ops for float32, in the same format.
        isVerbose: write one line per call of a listed op, and per other call with a cast, to ``sys.stdout``. ``HABANA_MP_LOG`` takes precedence.
        fp16_file_path: the path of the lower list if ``low_precision_type`` is ``torch.float16``.
        low_precision_type: ``torch.bfloat16`` or ``torch.float16``, or its name, such as "bfloat16" or "bf16". With ``policy``, bfloat16,
            the default, keeps the low dtype of the policy: ``Policy.with_low_dtype`` changes it.
        policy: a ``Policy``, or its name or path. It replaces opt_level and the lists.
        strict: raise ValueError for names that torch does not have. By default they trigger a warning.

    Returns:
        The policy that is now in force.

    Raises:
        ValueError: an opt_level, dtype, list line or combination is not accepted. The message names it and what is accepted.
        OSError: a list cannot be read, or the log file cannot be written.
        TypeError: isVerbose is neither True nor False, or another argument has the wrong type.

    Example:
        >>> policy = hmp.convert(policy="balanced")
        >>> model(x).dtype
        torch.bfloat16
        >>> hmp.revert()

    See Also:
        disable_casts, revert, explain, Policy
    """  # (D7, F105 to F112; those of the arguments are in request.py)
    for name, value in (("isVerbose", isVerbose), ("strict", strict)):
        if value not in (True, False):
            raise TypeError(f"{name} must be True or False, not {brief(value)}")
    asked = policy_for_convert(
        opt_level, bf16_file_path, fp32_file_path, fp16_file_path, low_precision_type, policy, strict
    )
    new = in_force.cli_policy or asked
    warn_if_nowhere(new)
    in_force.is_cli_default = False
    with _lock, _weights.lock, _no_garbage_collection():
        dynamo.prepare()
        rows = [
            *_patches(new),
            *neighbours.patches(new),
            *births.patches(),
            *dynamo.patches(new),
            *_weights.patches(),
            *check.patches(),
            (in_force, "policy", new),
            (in_force, "verbose", isVerbose),
        ]
        settings, was_open = _cache_settings(new), _weights.is_open()
        try:
            log.open_log(isVerbose)
            if isVerbose:
                log.banner(opt_level.upper())
            births.watch()
            torch_autocast.reach_transformers()
            # Nothing is kept before what may change a weight is watched.
            _weights.open_cache(settings if was_open else settings._replace(limit=0))
            _core.install(rows, new._core)  # all of it or nothing
            _weights.open_cache(settings)
        except BaseException:
            if in_force.policy is None:
                _close(cache=not was_open)
            else:
                log.open_log(in_force.verbose)
            if in_force.policy is not None or was_open:
                _weights.open_cache(_cache_settings(in_force.policy))
            raise
        finally:
            if in_force.policy is new:
                dynamo.drop_stale_graphs()
    return new


def _cache_settings(policy: Policy | None) -> _weights.Asked:
    settings = _weights.asked()
    return settings if policy is None or policy.cached else settings._replace(limit=0)


def _close(*, cache: bool = True) -> None:
    """Ends what belongs to a conversion besides its patches, each thing even if another one raises."""
    with contextlib.ExitStack() as last_first:
        last_first.callback(dynamo.drop_stale_graphs)
        last_first.callback(torch_autocast.leave_transformers)
        last_first.callback(torch_autocast.leave_all)
        last_first.callback(births.unwatch)
        if cache:
            last_first.callback(_weights.close_cache)
        last_first.callback(log.close_log)


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """The first conversion makes thousands of small objects that stay; a full collection would fall among them and triple its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def end_cli_default() -> None:
    """End the conversion that is the command line's default: from here on the script decides what is cast."""
    if in_force.is_cli_default:
        in_force.is_cli_default = False
        revert()


def revert() -> None:
    """Undo ``convert``: every name in torch is again the same object as before.

    Without a conversion it does nothing.

    Example:
        >>> policy = hmp.convert()
        >>> hmp.revert()
        >>> hmp.is_converted()
        False
    """  # (D7)
    with _lock:
        if _core.conversion_patches.installed():
            try:
                _core.uninstall()
            finally:
                if not _core.conversion_patches.installed():
                    _close()


def is_converted() -> bool:
    """Return True if a conversion is in force in this process, else False.

    Example:
        >>> hmp.is_converted()
        False
    """
    return in_force.policy is not None


def _patches(policy: Policy) -> Iterator[tuple[Any, str, Any]]:
    """(owner, attribute, patched op) for every home that the policy concerns, and (patched op, "rule", rule) once for each op."""
    for original, places in ops():
        rule = rule_of(policy, places, original)
        if rule is None:
            continue
        op = patched_op(places[0], original)
        yield op, "rule", rule
        for each in places:
            yield each.owner, each.attribute, op
