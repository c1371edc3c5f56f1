"""``convert``, ``revert``, ``is_converted``: a policy put in force in this process (F1 to F18, D1 to D9)."""

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
from habana_mp._convert.call_form import call_form, override_function
from habana_mp._convert.patched_op import patched_op
from habana_mp._convert.request import policy_for_convert
from habana_mp._convert.rule import rule_of
from habana_mp._policy.homes import ops
from habana_mp._policy.names import listed_name
from habana_mp._policy.policy import Policy
from habana_mp._ranks import check
from habana_mp._scope import in_force, torch_autocast
from habana_mp._scope.fork_lock import fork_lock
from habana_mp._scope.placed import warn_if_nowhere
from habana_mp._watch import log

_lock = fork_lock()


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

    Every home of every op that the policy concerns (``torch.mm``, ``Tensor.mm``, ``a @ b``, ``F.linear``, ...) is patched with one
    that casts its float32, bfloat16 and float16 tensors first. Modules, models and optimizers made before or after follow alike;
    weights stay as they are and get gradients in their own dtype. A second call replaces the first (D7); ``revert`` undoes it. After an error what was in force before still is.

    Args:
        opt_level: "O1" runs ops by lists; "O2" runs GEMM and convolution ops in the lower precision and all others in float32 (D4).
        bf16_file_path: a list of ops for the lower precision, one a line. ``None`` or "" is the built-in list (D2). A file whose
            names all begin with + or - edits the built-in list (D21).
        fp32_file_path: the same for float32.
        isVerbose: write one line per call of a listed op to ``sys.stdout`` (F105 to F112). ``HABANA_MP_LOG`` wins over it.
        fp16_file_path: the lower list where ``low_precision_type`` is ``torch.float16`` (D9).
        low_precision_type: ``torch.bfloat16`` or ``torch.float16``, or a name of one: "bfloat16", "bf16".
        policy: a ``Policy``, or the name or path of one, in place of opt_level and the lists.
        strict: raise for names that torch does not have; without it they trigger a warning (D22).

    Returns:
        The policy now in force.

    Raises:
        ValueError: an opt_level, dtype, list line or combination that is not accepted; the message says where and what is (D1, D9,
            D20 to D23).
        OSError: a list that cannot be read (D24), or a log file that cannot be written.
        TypeError: isVerbose that is neither True nor False.

    See Also:
        disable_casts, revert, explain, Policy
    """
    if isVerbose not in (True, False):
        raise TypeError(f"isVerbose is True or False, not {isVerbose!r}")
    asked = policy_for_convert(
        opt_level, bf16_file_path, fp32_file_path, fp16_file_path, low_precision_type, policy, strict
    )
    new = in_force.cli_policy or asked
    warn_if_nowhere(new)
    in_force.is_cli_default = False
    with _lock, _no_garbage_collection():
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
        settings = _weights.asked()
        if not new.cached:
            settings = settings._replace(limit=0)
        try:
            log.open_log(isVerbose)
            if isVerbose:
                log.banner(opt_level.upper())
            _core.install(rows, new._core)
            _weights.open_cache(settings)
            births.watch()
            torch_autocast.reach_transformers()
        except BaseException:
            if in_force.policy is None:
                log.close_log()
            else:
                log.open_log(in_force.verbose)
            raise
        finally:
            if in_force.policy is new:
                dynamo.drop_stale_graphs()
    return new


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
    """Undo ``convert``: every patched name is the very object that it was before (D7). Without a conversion it does nothing."""
    with _lock:
        if _core.conversion_patches.installed():
            try:
                _core.uninstall()
            finally:
                if not _core.conversion_patches.installed():
                    try:
                        log.close_log()
                    finally:
                        _weights.close_cache()
                        births.unwatch()
                        torch_autocast.leave_all()
                        torch_autocast.leave_transformers()
                        dynamo.drop_stale_graphs()


def is_converted() -> bool:
    """Whether a conversion is in force in this process."""
    return in_force.policy is not None


def _patches(policy: Policy) -> Iterator[tuple[Any, str, Any]]:
    """(owner, attribute, patched op) for every home that the policy concerns, and (patched op, "rule", rule) once for each op."""
    for original, places in ops():
        rule = rule_of(policy, places, original)
        if rule is None:
            continue
        home = places[0]
        op = patched_op(
            original,
            override_function(home, original),
            listed_name(home.attribute),
            call_form(home, original),
            home.path,
        )
        yield op, "rule", rule
        for each in places:
            yield each.owner, each.attribute, op
