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
    Reason(
        r"op/(cholesky|linalg_cholesky(_ex)?|lu_solve) .*",
        "Matrices without elements: the forward in bfloat16 finds nothing to do, so only the backward misses its kernel.",
    ),
    Reason(
        r"op/masked_norm .*",
        "`torch.masked.norm` asks for its result in the dtype of the input, and the policy has made that float32 before.",
    ),
    Reason(
        r"op/max_pool2d_with_indices_backward .*",
        "A backward pass that the sample calls by itself, as `torch.ops.aten`, with tensors of different dtypes.",
    ),
    Reason(
        r"architecture/yoso autocast .*",
        "Its `autograd.Function` has no `custom_fwd` and `custom_bwd`: the backward runs outside the region, with tensors of the dtypes that the "
        "policy gave them. Under `convert` it runs.",
    ),
]
DISAGREEMENTS: list[Reason] = [
    Reason(
        r"op/__r(div|mod|matmul)__",
        "A reflected operator, which torch writes in Python: `1 / x` is `reciprocal` and `mul` for `autocast`, and `a @ x` has `a` as its first input.",
    ),
    Reason(
        r"op/nn_functional_linear_cross_entropy.*|module/nn_LinearCrossEntropyLoss",
        "A custom op of torch, which no policy of `autocast` names.",
    ),
    Reason(
        r"op/nn_functional_(smooth_l1_loss|multilabel_soft_margin_loss|gaussian_nll_loss|local_response_norm)|module/nn_MultiLabelSoftMarginLoss",
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
    Reason(
        r"module/nn_LSTM",
        "`convert` casts the call of `lstm`, `autocast` that of each layer: of states given in float32 the cell state stays so.",
    ),
]


def find(table: list[Reason], text: str) -> str:
    return next((reason.text for reason in table if re.fullmatch(reason.pattern, text)), "")
