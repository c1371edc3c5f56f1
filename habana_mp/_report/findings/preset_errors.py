"""The error that the steps of a report would have under each preset, or another policy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from habana_mp._cast import dtype_name
from habana_mp._policy.folder import presets
from habana_mp._policy.policy import Policy
from habana_mp._report.data import Report
from habana_mp._report.edits.simulated import Simulation
from habana_mp._report.errors.objective import Objective, together
from habana_mp._report.findings.unknown import has_wide_insides, may_flip, ran_low, why_no_shares
from habana_mp._report.formats import FORMATS
from habana_mp._show.units import share

COMPARED = ("balanced", "hmp", "hpu-autocast", "torch-cpu", "torch-cuda")  # in a head; the last one is float16's
_OF_METRICS = "argmax"  # mostly of an accuracy, on which nothing depends; the advice has it
_GUIDES = "hmp"  # the lists of hmp.convert() without arguments


def _has_errors(report: Report, objective: Objective) -> bool:
    """Of a policy, that are known to reach a loss or the outputs."""
    return objective.known and any(row.policy for row in report.rows) and why_no_shares(report) is None


def preset_errors(report: Report) -> dict[str, dict[str, float]]:
    """Of each loss, or of the outputs, under the presets with the low dtype that was measured; the preset with the smallest error first.

    Empty where no error reached a loss or projected outputs, and of a run with ops in 8 bits: what they would add in another format is not measured.
    """
    objective = Objective(report)
    if not _has_errors(report, objective) or ran_in_formats(report):
        return {}
    low = [policy for policy in map(Policy.load, presets()) if dtype_name(policy.low_dtype) == report.low_dtype]
    found = _errors_under(low, report, objective)
    return dict(sorted(found.items(), key=lambda each: together(each[1])))


def ran_in_formats(report: Report) -> list[str]:
    """The ops of which some calls ran in 8 bits: what these would add in another format is not measured."""
    return sorted({row.op for row in report.rows if row.decision in FORMATS})


def policy_errors(report: Report, policy: Policy) -> dict[str, float]:
    """Of each loss, or of the outputs, under a policy with the low dtype that was measured. Empty where no error reached them."""
    objective = Objective(report)
    if not _has_errors(report, objective):
        return {}
    return _errors_under([policy], report, objective)[policy.name]


def _errors_under(policies: Iterable[Policy], report: Report, objective: Objective) -> dict[str, dict[str, float]]:
    simulation = Simulation(report)
    effects = {policy.name: simulation.under(policy) for policy in policies}
    return {name: objective.errors(effect.left, effect.low) for name, effect in effects.items()}


def invitation(report: Report) -> str:
    """How to see what ``balanced`` would have, in a report without values under the lists that a plain ``hmp.convert()`` has; "" elsewhere.

    It is in each such table: one that depends on what was printed before could not be compared.
    """
    guides = Policy.load(_GUIDES)
    names = [each.name for each in report.policies if each.front_end == "convert" and each.text == str(guides)]
    if report.low_dtype or not names or not report.rows:
        return ""
    return f"{_GUIDES} has the lists of Habana's guides; hmp.report(values=True), or --values, shows its error beside that of {COMPARED[0]}"


@dataclass(frozen=True)
class Foretold:
    """How far a loss is off, or the outputs, and how far it would be under presets that a head has room for, by their names. ``off_by`` is which part of
    these errors may be chance. ``choosing`` are ops that may choose otherwise than in float32, and what follows from that is in no number here,
    nor what ops round that are ``unmeasured``.
    """

    what: str
    error: float
    off_by: float
    presets: dict[str, float]
    choosing: tuple[str, ...]
    unmeasured: tuple[str, ...]

    @property
    def exact(self) -> str:
        """``± 25 %``."""
        return f"± {share(self.off_by, 1.0)}"

    @property
    def without(self) -> str:
        parts = [f"what {', '.join(self.choosing)} may choose otherwise"] if self.choosing else []
        parts += [f"what {', '.join(self.unmeasured)} may round, which is not measured"] if self.unmeasured else []
        return f"without {' and '.join(parts)}" if parts else ""


def foretold(report: Report) -> list[Foretold]:
    """Of each loss, where it is known."""
    objective = Objective(report)
    if not report.low_dtype or not _has_errors(report, objective):
        return []
    found = preset_errors(report)
    flipping = [*may_flip(report), *(row for row in report.rows if row.measured.flipped)]
    choosing = tuple(sorted({row.op for row in flipping if row.op != _OF_METRICS}))
    return [
        Foretold(
            objective.full_name(loss),
            error,
            objective.off_by(loss),
            {name: found[name][loss] for name in COMPARED if name in found},
            choosing,
            tuple(
                sorted({row.op for row in report.rows if has_wide_insides(row) or (row.unmeasured and ran_low(row))})
            ),
        )
        for loss, error in objective.errors().items()
    ]
