"""The error that the steps of a report would have under each preset."""

from __future__ import annotations

from habana_mp._cast import dtype_name
from habana_mp._policy.folder import presets
from habana_mp._policy.policy import Policy
from habana_mp._report.data import Report
from habana_mp._report.findings.simulated import Simulation
from habana_mp._report.numbers import Objective


def preset_errors(report: Report) -> dict[str, dict[str, float]]:
    """Of each loss, or of the outputs, under the presets with the low dtype that was measured; the preset with the smallest error first.

    Empty where no error reached a loss or projected outputs.
    """
    objective = Objective(report)
    if not objective.known or not any(row.policy for row in report.rows):
        return {}
    simulation, found = Simulation(report), {}
    for name in presets():
        policy = Policy.load(name)
        if dtype_name(policy.low_dtype) == report.low_dtype:
            effect = simulation.under(policy)
            found[name] = objective.errors(effect.left, effect.low)
    return dict(sorted(found.items(), key=lambda each: objective.together(each[1])))
