"""The types of what the functions of ``hmp`` return, for annotations and ``isinstance``.

``hmp`` itself has ``Policy``, ``CastReport``, ``Comparison`` and ``Tuned``, and ``hmp.cache`` its own.

Example:
    >>> from habana_mp.results import Explanation
    >>> isinstance(hmp.explain("softmax"), Explanation)
    True
"""

from habana_mp._autocast.set_policies import PoliciesHandle
from habana_mp._draw.picture import Drawing, Node
from habana_mp._evidence.comparison import Difference
from habana_mp._evidence.log_probabilities import LogProbabilities
from habana_mp._evidence.nonfinite import GivenTensor, Nonfinite
from habana_mp._evidence.recordings.record import Recording
from habana_mp._evidence.tune.parts import Part
from habana_mp._evidence.tune.tuned import TunedPart
from habana_mp._evidence.tune.turns import Point
from habana_mp._explain.explanation import Explanation, Explanations
from habana_mp._policy.diff import PolicyDiff
from habana_mp._policy.policy import OpRule
from habana_mp._report.data import Advice
from habana_mp._report.edits.edits import Edit, LossError
from habana_mp._report.findings.diff import ReportDiff
from habana_mp._report.numbers import LocalError
from habana_mp._report.shown.op_calls import OpCalls

__all__ = [
    "Advice",
    "Difference",
    "Drawing",
    "Edit",
    "Explanation",
    "Explanations",
    "GivenTensor",
    "LocalError",
    "LogProbabilities",
    "LossError",
    "Node",
    "Nonfinite",
    "OpCalls",
    "OpRule",
    "Part",
    "Point",
    "PoliciesHandle",
    "PolicyDiff",
    "Recording",
    "ReportDiff",
    "TunedPart",
]
