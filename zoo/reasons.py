"""Why an error, or a difference between the front ends, is meant: patterns, of which the first that matches gives the reason."""

from __future__ import annotations

import re
from typing import NamedTuple


class Reason(NamedTuple):
    # Of an error: "label front policy: message". Of a difference: the label, such as "op/mm".
    pattern: str
    text: str


RAISES: list[Reason] = [
    Reason(
        r".* torch-(cuda|xpu): RuntimeError: .*binary_cross_entropy.*",
        "`torch-cuda` and `torch-xpu` refuse `binary_cross_entropy` as `torch.autocast` does on those devices ([D31](decisions.md#d31)).",
    ),
]
DISAGREEMENTS: list[Reason] = [
    Reason(
        r"op/torch_ops_aten_.*|op/.*_backward|op/_unsafe_masked_.*",
        "Called as `torch.ops.aten`: `convert` patches Python's names of ops.",
    ),
    Reason(r"op/sparse_sampled_addmm", "`torch.sparse` has no names that `convert` patches."),
    Reason(
        r"op/__r(div|mod|matmul)__|op/matmul|op/(svd|pca)_lowrank|op/linalg_pinv_singular",
        "Python reaches it by one name, and `autocast` sees the ops inside: `1 / x` is `reciprocal` and `mul`, `a @ b` is `mm` or `bmm`.",
    ),
    Reason(r"op/nn_functional_linear_cross_entropy.*", "A custom op of torch, which no policy of `autocast` names."),
    Reason(
        r"op/nn_functional_(smooth_l1_loss|multilabel_soft_margin_loss|gaussian_nll_loss|local_response_norm)",
        "A function that torch writes in Python: `convert` knows it as one op, `autocast` sees what it calls.",
    ),
    Reason(
        r"op/nn_functional_embedding(_bag)?",
        "`max_norm` writes to the weight, and `autocast` leaves calls in place alone.",
    ),
    Reason(
        r"op/linalg_lu_solve",
        "`torch-cpu` lists `lu_solve`, which `convert` takes `torch.linalg.lu_solve` for; they differ where the input is empty.",
    ),
]


def find(table: list[Reason], text: str) -> str:
    return next((reason.text for reason in table if re.fullmatch(reason.pattern, text)), "")
