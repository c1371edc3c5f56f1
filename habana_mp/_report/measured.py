"""What a report says of the numbers of calls, where it was made with ``values``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

import habana_mp._core as _core
from habana_mp._report.findings.edits import Edit, edits, why_unknown
from habana_mp._report.findings.groups import inside
from habana_mp._report.numbers import ERROR, LocalError, added, change_of, local_error, share, with_values
from habana_mp._report.projections import project


class MeasuredReport(ABC):
    """The part of ``CastReport`` that needs ``values``."""

    _projected_squares: float = 0.0  # of the random sums of outputs, as they are on average

    @abstractmethod
    def to_dict(self) -> dict[str, Any]: ...

    @abstractmethod
    def _rows(self, op: str | None, module: str | None) -> Iterator[dict[str, Any]]: ...

    @abstractmethod
    def _is_measuring(self) -> bool:
        """Whether the block runs, with values."""

    def local_error(
        self, op: str | None = None, module: str | None = None, *, what_if: bool = False, backward: bool = False
    ) -> LocalError:
        """Return the error of an op, measured against the same op in float32 on the same inputs. The report needs ``values``.

        Args:
            op: any name of an op, by default all ops.
            module: a path, as for ``casts``, by default all modules.
            what_if: return the error that the op would have in the low dtype of the policy (bfloat16 without a policy), also where it ran
                in float32.
            backward: return the error of the ops in its backward pass instead.

        Raises:
            TypeError, ValueError: as for ``casts``; and ValueError if no op ran in ``module``.
            RuntimeError: the report was made without ``values``, or never entered.

        Example:
            >>> with hmp.autocast("cpu"), hmp.report(values=True) as r:
            ...     loss = model(x).float().mean()
            >>> float(r.local_error("linear")) < 0.01
            True
        """
        rows = [row["values"] for row in self._with_values(op, module)]
        which = "backward" if backward else "low" if what_if else "ran"
        return local_error(added([each[which] for each in rows]) or dict.fromkeys(ERROR, 0))

    def error_share(self, op: str | None = None, module: str | None = None, *, what_if: bool = False) -> float:
        """Return which part of the error of the loss an op makes, from 0 to 1, to first order.

        It needs the gradients of a backward pass in the block. The error of each call is multiplied with the gradient of its result; sizes
        count, without signs. Without a loss, call ``project`` with the outputs. With ``what_if`` it is the share that the op would have if
        all ops ran in the low dtype, which also works for a float32 step. Arguments and errors are the same as for ``local_error``.

        Raises:
            TypeError, ValueError: as for ``local_error``.
            RuntimeError: as for ``local_error``; also if ops made errors, and no backward pass was seen or its gradients are
                not finite.
        """
        return share(self._with_gradients(), self._with_values(op, module), what_if=what_if)

    def error_shares(self) -> dict[tuple[str, str], float]:
        """Return the ``error_share`` of every op in every module, by the name of the op and the path of the module without the class of the root.

        Raises:
            RuntimeError: the report was made without ``values``, or never entered.
        """
        rows = self._with_values()
        size = change_of(rows)
        whole = sum(map(size, rows))
        found: dict[tuple[str, str], float] = {}
        for row in rows if whole > 0 else []:
            if not row["module"]:  # outside of any
                continue
            key = row["op"], row["module"].partition(": ")[2]
            found[key] = found.get(key, 0.0) + size(row) / whole
        return found

    def loss_change(self, op: str | None = None, module: str | None = None, *, what_if: bool = False) -> float:
        """Return how much the loss changes because an op did not run in float32, to first order: the sum of gradient times error.

        If the loss is scaled (``GradScaler``), the changes are scaled too. Arguments and errors are the same as for ``error_share``.
        """
        key = "change_low" if what_if else "change"
        self._with_gradients()
        return sum((row["values"][key] for row in self._with_values(op, module)), 0.0)

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
            RuntimeError: the report is not open, or was made without ``values``.
            ValueError: nothing in the outputs requires a gradient, or ``k`` is less than 1.

        Example:
            >>> with hmp.autocast("cpu"), hmp.report(values=True) as r:
            ...     r.project(model(x))
        """
        if not self._is_measuring():
            raise RuntimeError("call project inside a with block of hmp.report(values=True)")
        if not isinstance(k, int) or k < 1:
            raise ValueError(f"k must be a number of random sums, 1 or more, not {k!r}")
        squares = project(outputs, k, seed, _core.begin_projection, _core.end_projection)
        if squares is None:
            raise ValueError("nothing in the outputs requires a gradient: make them outside of torch.no_grad")
        self._projected_squares += squares

    def edits(self, per: str = "op") -> tuple[Edit, ...]:
        """Return edits of the policy that the measured errors suggest, the most effective first. ``Policy.with_edits`` takes their ``text``.

        Ops that lose numbers (NaN or infinity in the low dtype alone) come first. An edit after which the error of the steps in the block
        would be larger, because errors of other ops cancel it there, comes after the other edits to float32. Without a backward pass in the
        block, or if no edit is worth it, the result has no others.

        Args:
            per: "op", or "module" for edits of an op in some modules, which ``set_policies(model, policy)`` applies to a model.

        Raises:
            ValueError: ``per`` is another value.
            RuntimeError: the report was made without ``values``, or never entered.

        Example:
            >>> with hmp.autocast("cpu", policy="balanced"), hmp.report(values=True) as r:
            ...     model(x).float().mean().backward()
            >>> edited = hmp.Policy.load("balanced").with_edits(*(edit.text for edit in r.edits()))
        """
        if per not in ("op", "module"):
            raise ValueError(f'per must be "op" or "module", not {per!r}')
        self._with_values()
        return tuple(edits(self.to_dict(), per))

    def _with_gradients(self) -> list[dict[str, Any]]:
        """All rows with values. A zero would read as no error where it is not known."""
        rows = self._with_values()
        errors = (row["values"].get(which, {}).get("squares", 0) for row in rows for which in ("ran", "low"))
        if any(errors) and (why := why_unknown(rows)):
            raise RuntimeError(": ".join(why))
        return rows

    def _with_values(self, op: str | None = None, module: str | None = None) -> list[dict[str, Any]]:
        report = self.to_dict()
        if not report.get("low_dtype"):
            raise RuntimeError("nothing was measured: make the report with hmp.report(values=True)")
        rows = list(self._rows(op, module))
        if module:
            _check_module(module, [row["module"] for row in report["rows"]])
        return list(with_values(rows))


def _check_module(asked: str, modules: list[str]) -> None:
    """Raise for a path that no row has: zeros for a wrong name would look like the best result."""
    if any(inside(module, asked) for module in modules):
        return
    by_path = {_path_of(module): module for module in modules if module}
    near = [by_path[path] for path in get_close_matches(_path_of(asked), by_path, n=3, cutoff=0.7)]
    hint = f". Did you mean {' or '.join(map(repr, near))}?" if near else ""
    raise ValueError(f"no op ran in a module {asked!r}{hint}")


def _path_of(module: str) -> str:
    """The path without the class of the root."""
    return module.partition(": ")[2] or module
