"""What the trainers have in common: a policy in force while one runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

import habana_mp._core as _core
from habana_mp._autocast.models_called import ModelsCalled, on_models_called
from habana_mp._convert.conversion import convert, revert
from habana_mp._policy.checkpoint import PolicyState
from habana_mp._policy.gaudi_config import gaudi_config_at, read_gaudi_config
from habana_mp._policy.policy import Policy
from habana_mp._report.cast_report import CastReport
from habana_mp._report.cast_report import report as new_report
from habana_mp._scope import in_force
from habana_mp._show.short import brief


@contextmanager
def needs(library: str) -> Iterator[None]:
    """Round the imports of a trainer's library."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != library:
            raise
        raise ModuleNotFoundError(
            f"habana_mp.trainers.{library} needs {library}, which is not installed: pip install {library}",
            name=error.name,
        ) from None


_begun: list[Run] = []  # the innermost is the last


class Run:
    """A policy that is put in force by ``begin``, and what was before by ``end``. Both may be called twice.

    A run that ends inside of another leaves that one in force. ``report`` says whether each run is counted; ``counted`` is the report of the last one.
    """

    def __init__(self, policy: Policy | str | os.PathLike[str], report: bool) -> None:
        if not isinstance(report, bool):
            raise TypeError(f"report must be True or False, not {brief(report)}")
        self.state = PolicyState(policy)
        self.counted: CastReport | None = None
        self.report = report
        config = None if isinstance(policy, Policy) else gaudi_config_at(policy)
        self._verbose = config is not None and read_gaudi_config(config).verbose
        self._before: tuple[Policy | None, bool] | None = None
        self._models = ExitStack()  # what is put on them
        self._called: ModelsCalled | None = None

    @property
    def policy(self) -> Policy:
        return self.state.policy

    def begin(self) -> None:
        if self._before is not None and in_force.policy is not None:
            return
        # The command line's default is not one to come back to: what is put in force now replaces it.
        before = (None if in_force.is_cli_default else in_force.policy), in_force.verbose
        self._models.close()
        with ExitStack() as models:
            self._called = models.enter_context(on_models_called(in_force.cli_policy or self.policy))
            # The command line's own policy wins over the one that is asked for.
            self.state = PolicyState(convert(policy=self.policy, isVerbose=self._verbose))
            self._models = models.pop_all()
        if self._before is None:
            self._before = before
            _begun.append(self)
            if self.report:
                self.counted = new_report().__enter__()

    def put_on(self, model: torch.nn.Module) -> None:
        """Of a model that is not called as a whole: names that are limited to modules."""
        if self._called is not None:
            self._called.look_at(model)

    def end(self) -> None:
        if self._before is None:
            return
        before, self._before = self._before, None
        self._models.close()
        place = _begun.index(self)
        inner = _begun[place + 1 :]
        del _begun[place]
        try:
            if self.report and self.counted is not None:
                self.counted.__exit__(None, None, None)
        finally:
            policy, verbose = before
            if inner:
                inner[0]._before = before
            elif in_force.policy is self.policy:  # else somebody has converted or reverted since, and that stays
                revert() if policy is None else convert(policy=policy, isVerbose=verbose)


class HasRun:
    """The policy and the report of a trainer's run."""

    _run: Run

    @property
    def policy(self) -> Policy:
        return self._run.policy

    @property
    def report(self) -> CastReport | None:
        return self._run.counted


def patch(owner: Any, name: str, decorate: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[[], None]:
    """A method of an object or a class decorated, until what is returned is called."""
    patches = _core.PatchSet()
    patches.install([(owner, name, decorate(getattr(owner, name)))])

    def undo() -> None:  # unlike the set, a function can be deep-copied with the trainer that holds it
        patches.uninstall()

    return undo


def refuse(trainer: str, option: str) -> None:
    """Raises ValueError for a mixed precision beside ours."""
    raise ValueError(
        f"{option} and {trainer} both set mixed precision. Use only one of them. Weights stay in float32, and the policy decides "
        "which ops run lower."
    )
