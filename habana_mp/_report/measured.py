"""What a report says of the numbers of calls, where it was made with ``values``."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, cast

import habana_mp._core as _core
from habana_mp._cast import dtype_name
from habana_mp._policy.policy import Policy
from habana_mp._report.added import added
from habana_mp._report.data import Report, Row
from habana_mp._report.edits.edits import Edit, edits
from habana_mp._report.errors.objective import Objective, together
from habana_mp._report.findings.asked import asked_rows, never_called
from habana_mp._report.findings.preset_errors import policy_errors, preset_errors, ran_in_formats
from habana_mp._report.findings.unknown import (
    Why,
    error_of,
    no_op,
    why_no_edit,
    why_no_error,
    why_no_share,
    why_nothing,
)
from habana_mp._report.formats import FORMATS, checked_formats
from habana_mp._report.numbers import OUTPUTS, LocalError, Run, change_of, local_error, losses_of, share, with_values
from habana_mp._report.projections import project
from habana_mp._show.short import brief
from habana_mp._show.units import whole

_NO_ERROR = "no error reached a loss or projected outputs"
_NEXT_SEED = 1_000_003  # away from those that a user may give


class MeasuredReport(ABC):
    """The part of ``CastReport`` that needs ``values``."""

    _projected_squares: float = 0.0  # of the random sums of outputs, as they are on average
    _projected: int = (
        0  # calls of project: each has other random numbers, as what all outputs have in common would not average out
    )

    @abstractmethod
    def _data(self) -> Report: ...

    @abstractmethod
    def _is_measuring(self) -> bool:
        """Whether the block runs, with values."""

    def local_error(
        self, op: str | None = None, module: str | None = None, *, what_if: bool | str = False, backward: bool = False
    ) -> LocalError:
        """Return the error of an op, measured against the same op in float32 on the same inputs. The report needs ``values``.

        Args:
            op: any name of an op, by default all ops.
            module: a path, as for ``casts``, by default all modules.
            what_if: return the error that the op would have in the low dtype of the policy (bfloat16 without a policy), also where it ran
                in float32; or "weight_int8" or "int8", in 8 bits, of its calls that can run so. The report needs these ``formats``.
            backward: return the error of the ops in its backward pass instead.

        Raises:
            TypeError, ValueError: as for ``casts``; and ValueError if the op was not called in ``module``.
            RuntimeError: the report was made without ``values``, or never entered; or the error is not measured. The message has the
                reason: no policy was in force, no backward pass, or an op that cannot run once more, such as one that draws random numbers.

        Example:
            >>> with hmp.autocast("cpu"), hmp.report(values=True) as r:
            ...     loss = model(x).float().mean()
            >>> float(r.local_error("linear")) < 0.01
            True
        """
        rows = self._asked_rows(op, module)
        run = self._run(what_if)
        if run in FORMATS and not backward:
            return self._error_in(run, rows)
        which = "backward" if backward else run
        if which != "low":
            _raise(why_nothing(self._data()))
        _raise(why_no_error(self._data(), rows, which))
        return local_error(added(error_of(row, which) for row in rows))

    def _error_in(self, name: str, rows: list[Row]) -> LocalError:
        errors = [found.error for row in rows if (found := row.measured.in_format(name))]
        if not errors:
            ops = ", ".join(dict.fromkeys(row.op for row in rows))
            raise RuntimeError(f"the error of {ops} in {name} is not measured: no call can run so on this device")
        return local_error(added(errors))

    def error_share(self, op: str | None = None, module: str | None = None, *, what_if: bool | str = False) -> float:
        """Return which part of the error of the loss an op makes, from 0 to 1, to first order.

        It needs the gradients of a backward pass in the block. The error of each call is multiplied with the gradient of its result; sizes
        count, without signs. Without a loss, call ``project`` with the outputs. With ``what_if`` it is the share that the op would have if
        all ops ran in the low dtype, which also works for a float32 step; with a list of ops in 8 bits, if all ran in it that can. Arguments
        and errors are the same as for ``local_error``.

        Raises:
            TypeError, ValueError: as for ``local_error``.
            RuntimeError: as for ``local_error``; also if ops made errors, and no backward pass was seen or its gradients are
                not finite; and outside of any policy if all ops ran in float32.
        """
        rows = self._asked_rows(op, module)
        which = self._run(what_if)
        self._check_shares(rows, what_if=bool(what_if))
        return share(self._data().rows, rows, which)

    def error_shares(self) -> dict[tuple[str, str], float]:
        """Return the ``error_share`` of every op in every module, by the name of the op and the path of the module without the class of the root.

        What was called outside of modules is left out.

        Raises:
            RuntimeError: as for ``error_share``. An op whose error is not measured is left out.
        """
        self._asked_rows(None, None)
        self._check_shares([])
        rows = with_values(self._data().rows)
        if not rows:
            _raise(why_no_edit(self._data()))
        size = change_of(rows)
        whole = sum(map(size, rows))
        found: dict[tuple[str, str], float] = {}
        for row in rows:
            if not row.module:  # outside of any
                continue
            key = row.op, row.where.path
            found[key] = found.get(key, 0.0) + (size(row) / whole if whole > 0 else 0.0)
        return found

    def loss_change(
        self, op: str | None = None, module: str | None = None, *, what_if: bool = False, loss: str | None = None
    ) -> float:
        """Return how much a loss changes because an op did not run in float32, to first order: the sum of gradient times error.

        It has a sign, and is the sum over all backward passes. It is in units of the loss, without the scale of a ``GradScaler``. Arguments
        and errors are the same as for ``error_share`` and ``presets``, but ``what_if`` is True or False alone; also RuntimeError if
        ``project`` alone was called, as there is no loss, and ValueError if the block has several losses and ``loss`` names none of them:
        their changes may cancel.
        """
        rows = self._asked_rows(op, module)
        if what_if not in (False, True):
            why = ": the change of a loss in 8 bits is not known" if str(what_if) in FORMATS else ""
            raise ValueError(f"what_if must be True or False, not {what_if!r}{why}")
        self._check_shares(rows, what_if=what_if, of_loss=True)
        asked = _asked_loss(loss, losses_of(self._data().rows))
        changes = (each for row in rows for each in row.measured.losses if each.loss == asked)
        return sum((each.change_low if what_if else each.change for each in changes), 0.0)

    def project(self, outputs: Any, k: int = 8, seed: int = 0) -> None:
        """Measure the shares of the error of outputs, for a step without a loss.

        It runs ``k`` backward passes, each of a random sum of the outputs. Call it inside the block, on outputs that were made with gradients
        on. It adds no gradient to any tensor and does not change the state of random number generators. With ``k=8`` a share is off by about
        a quarter; a larger ``k`` is more precise. Gradients made with ``create_graph=True`` may be outputs, too: their shares are those of the
        error of the gradients, in forward and backward ops.

        Args:
            outputs: a tensor, or tensors in tuples, dicts and so on.
            k: the number of sums, 1 or more.
            seed: the seed of the random numbers.

        Raises:
            RuntimeError: the report is not open, or was made without ``values``; or a reentrant checkpoint made the outputs.
            ValueError: nothing in the outputs requires a gradient, or ``k`` is less than 1.

        Example:
            >>> with hmp.autocast("cpu"), hmp.report(values=True) as r:
            ...     r.project(model(x))
        """
        if not self._is_measuring():
            raise RuntimeError("call project inside a with block of hmp.report(values=True)")
        count = whole(k)
        if count is None or count < 1:
            raise ValueError(f"k must be a number of random sums, 1 or more, not {k!r}")
        squares = project(
            outputs,
            count,
            seed + _NEXT_SEED * self._projected,
            _core.begin_projection,
            _core.end_projection,
            reach=_core.reach_outputs,
        )
        if squares is None:
            raise ValueError(
                "nothing in the outputs requires a gradient: make them outside of torch.no_grad, and of frozen weights from an input that requires one"
            )
        self._projected_squares += squares
        self._projected += 1

    def edits(self, per: str = "op", *, formats: Iterable[str] = ()) -> tuple[Edit, ...]:
        """Return edits of the policy that the measured errors suggest, in the order in which they help most. ``Policy.with_edits`` takes them.

        Ops that lose numbers (NaN or infinity in the low dtype alone) come first. Each further edit leaves the least error together with those
        before it, weighed against the time that it costs: ``error_after`` is with all of them, so a beginning of the sequence is what to
        take. The last ones put ops into the low dtype that add little error for the time that they save. If no edit is worth it, there are
        none.

        Args:
            per: "op", or "module" for edits of an op in some modules, which ``set_policies(model, policy)`` applies to a model.
            formats: return edits into these lists of ops in 8 bits instead, "weight_int8" or "int8" or both. They add error and save
                time, so they are another sequence, which begins at the policy that ran: first those that add least error for the time
                that they save, each op in one list.

        Raises:
            TypeError: ``formats`` is no collection of names.
            ValueError: ``per`` or one of ``formats`` is another value.
            RuntimeError: the report was made without ``values`` or without these ``formats``, or never entered; or there are no edits because no op or no policy was
                seen, or no op loses numbers and the shares are not known (see ``error_share``).

        Example:
            >>> with hmp.autocast("cpu", policy="balanced"), hmp.report(values=True) as r:
            ...     model(x).float().mean().backward()
            >>> edited = hmp.Policy.load("balanced").with_edits(*(edit.text for edit in r.edits()))
        """
        if per not in ("op", "module"):
            raise ValueError(f'per must be "op" or "module", not {per!r}')
        self._check_values()
        names = checked_formats(formats)
        self._check_formats(names)
        found = tuple(edits(self._data(), per, names))
        if not found:
            _raise(why_no_edit(self._data()))
        return found

    def errors(self) -> dict[str, float]:
        """Return by how much each loss is off, to first order, by the line that called backward, such as "train/gan.py:41".

        It is the root of the sum of squares over ops, and the mean over backward passes: what cancels by chance in one step counts. From
        eight passes on, it has what ops have in common, too, and what follows from other choices. What ``project`` was given is "outputs",
        and its error is in relation to their size.

        Raises:
            RuntimeError: as for ``error_share``.
        """
        self._asked_rows(None, None)
        self._check_shares([])
        objective = Objective(self._data())
        if not objective.known:
            _raise(why_no_edit(self._data()))
        return objective.errors() if objective.known else {}

    def presets(self, loss: str | None = None) -> dict[str, float]:
        """Return the error that the steps in the block would have under each preset with the same low dtype, the smallest first.

        It is simulated from what was measured, to first order, in the units of ``errors``. Names of the policy for modules do not count.

        Args:
            loss: the line that called backward, as in ``errors``, or the end of it ("gan.py:41"), or "outputs". By default all
                of them together: the root of their mean square.

        Raises:
            RuntimeError: as for ``edits``; or some ops ran in 8 bits.
            ValueError: no such line called backward.

        Example:
            >>> with hmp.autocast("cpu", policy="hmp"), hmp.report(values=True) as r:
            ...     model(x).float().mean().backward()
            >>> r.presets()["balanced"] <= r.presets()["hmp"]
            True
        """
        self._check_values()
        self._check_no_formats()
        found = preset_errors(self._data())
        if not found:
            _raise(why_no_edit(self._data()))
            raise RuntimeError(_NO_ERROR)
        if loss is None:
            return {name: together(errors) for name, errors in found.items()}
        asked = _asked_loss(loss, next(iter(found.values())))
        return dict(sorted(((name, errors[asked]) for name, errors in found.items()), key=lambda each: each[1]))

    def forecast(self, policy: Policy | str | os.PathLike[str], loss: str | None = None) -> float:
        """Return the error that the steps in the block would have under a policy, as ``presets`` has it of each preset.

        What the policy has in 8 bits needs a report with these ``formats``. Names of the policy for modules count.

        Args:
            policy: a ``Policy``, or its name or path. Its low dtype is the one that was measured.
            loss: as for ``presets``.

        Raises:
            RuntimeError: as for ``edits``; or the report has no measurements in 8 bits, or some ops ran in 8 bits already.
            ValueError: the policy has another low dtype, or no such line called backward.

        Example:
            >>> with hmp.autocast("cpu"), hmp.report(values=True, formats=("int8",)) as r:
            ...     model(x).float().mean().backward()
            >>> eight = hmp.Policy.load("balanced").with_edits("+linear:int8")
            >>> r.forecast("balanced") <= r.forecast(eight)
            True
        """
        self._check_values()
        asked = policy if isinstance(policy, Policy) else Policy.load(policy)
        if (low := dtype_name(asked.low_dtype)) != self._data().low_dtype:
            raise ValueError(f"the policy {asked.name} has {low}, and {self._data().low_dtype} was measured")
        self._check_formats([name for name in FORMATS if any(entry.list == name for entry in asked._core.entries)])
        self._check_no_formats()
        found = policy_errors(self._data(), asked)
        if not found:
            _raise(why_no_edit(self._data()))
            raise RuntimeError(_NO_ERROR)
        return together(found) if loss is None else found[_asked_loss(loss, found)]

    def _run(self, what_if: bool | str) -> Run:
        """As which run of ops a question is asked."""
        if what_if not in (False, True, *FORMATS):
            raise ValueError(f"what_if must be True, False or {' or '.join(map(repr, FORMATS))}, not {what_if!r}")
        if not isinstance(what_if, str):
            return "low" if what_if else "ran"
        self._check_formats([what_if])
        return cast(Run, what_if)

    def _check_no_formats(self) -> None:
        if ops := ran_in_formats(self._data()):
            raise RuntimeError(
                f"{', '.join(ops)} ran in 8 bits, so what it adds in another format is not known: "
                "make the report under a policy without ops in 8 bits"
            )

    def _check_formats(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in (self._data().formats or []):
                raise RuntimeError(
                    f"{name} was not measured: make the report with hmp.report(values=True, formats={(name,)!r})"
                )

    def _check_shares(self, rows: list[Row], *, what_if: bool = False, of_loss: bool = False) -> None:
        report = self._data()
        _raise(why_no_share(report, what_if=what_if, of_loss=of_loss))
        _raise(why_no_error(report, rows, "low" if what_if else "ran"))

    def _check_values(self) -> None:
        if not self._data().low_dtype:
            raise RuntimeError("nothing was measured: make the report with hmp.report(values=True)")

    def _asked_rows(self, op: str | None, module: str | None) -> list[Row]:
        """Those of an op in a module, also those without values. There is one at least."""
        self._check_values()
        if not self._data().rows:
            _raise(no_op(self._data()))
        rows = asked_rows(self._data(), op, module)
        if not rows:
            raise ValueError(never_called(op, f"in {module!r}" if module else "outside of modules"))
        return rows


def _asked_loss(loss: str | None, known: Iterable[str]) -> str:
    """The line that is it, or ends with it behind a folder."""
    known = [*known]
    if loss is None:
        if len(known) < 2:
            return known[0] if known else ""
        raise ValueError(f"the block has {len(known)} losses: call it with loss={known[0]!r}, or another of {known}")
    found = [each for each in known if isinstance(loss, str) and f"{os.sep}{each}".endswith(f"{os.sep}{loss}")]
    if not [each for each in known if each != OUTPUTS] and loss != OUTPUTS:
        raise ValueError(f"the report has the error of projected outputs and no loss: leave out loss={loss!r}")
    if len(found) != 1:
        raise ValueError(f"loss must be one of {', '.join(map(repr, known))}, not {brief(loss)}")
    return found[0]


def _raise(why: Why | None) -> None:
    if why is not None:
        raise RuntimeError(": ".join(why))
