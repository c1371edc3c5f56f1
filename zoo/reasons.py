"""Why an error, or a difference between the front ends, is meant: patterns, of which the first that matches gives the reason."""

from __future__ import annotations

import re
from typing import NamedTuple


class Reason(NamedTuple):
    # Of an error: "label front policy: message". Of a difference between front ends: the label, such as "op/mm".
    pattern: str
    text: str


RAISES: list[Reason] = [
    Reason(
        r".* torch-(cuda|xpu): RuntimeError: .*binary_cross_entropy.*",
        "`torch-cuda` and `torch-xpu` refuse `binary_cross_entropy` as `torch.autocast` does on those devices ([D31](decisions.md#d31)).",
    ),
    Reason(
        r"op/(cholesky|linalg_cholesky(_ex)?|lu_solve) .*",
        "Matrices without elements: the forward pass has nothing to compute and needs no bfloat16 kernel, so only the backward pass raises.",
    ),
    Reason(
        r"op/masked_norm .*",
        "`torch.masked.norm` requests a result in the dtype of its input (bfloat16), but the policy has cast this input to float32.",
    ),
    Reason(
        r"op/max_pool2d_with_indices_backward .*",
        "A backward op that the sample itself calls, by `torch.ops.aten`, with tensors of different dtypes.",
    ),
    Reason(
        r"architecture/yoso autocast .*",
        "Its `autograd.Function` has no `custom_fwd` and `custom_bwd`. The backward pass runs outside the region, with tensors of the dtypes that the "
        "policy gave them. Under `convert` it does not raise.",
    ),
]
# Of what an instrument does: "label instrument front end: what".
LOOKED_AT: list[Reason] = [
    Reason(
        r"op/(new_)?empty(_like|_strided|_permuted)? .*: changed .*",
        "Memory that is not initialized: its numbers are others in each run.",
    ),
    Reason(
        r"op/linalg_lstsq(_grad_oriented)? .*: changed .*",
        "The LAPACK driver `gelsy` gives other last bits from call to call without any instrument, by the place of its memory.",
    ),
    Reason(
        r"architecture/(donut-swin|funnel|muse_glimmer|qwen2_moe) tune .*: grew (\d{3}|10[0-2]\d) bytes and 0 objects .*",
        "832 to 1,024 bytes in four rounds of one run, where 800 are allowed. In two further runs of each none grew; over 400 rounds of `qwen2_moe` "
        "the memory in use stayed within 6 kB from the 20th on.",
    ),
]
DISAGREEMENTS: list[Reason] = [
    Reason(
        r"op/__r(div|mod|matmul)__",
        "A reflected operator, which torch implements in Python: `1 / x` is `reciprocal` and `mul` for `autocast`, and `a @ x` has `a` as its first input.",
    ),
    Reason(
        r"op/nn_functional_linear_cross_entropy.*|module/nn_LinearCrossEntropyLoss",
        "A custom op of torch, which no policy of `autocast` names.",
    ),
    Reason(
        r"op/nn_functional_(smooth_l1_loss|multilabel_soft_margin_loss|gaussian_nll_loss|local_response_norm)|module/nn_(MultiLabelSoftMarginLoss|LocalResponseNorm)",
        "A function that torch implements in Python: `convert` decides about it as one op, `autocast` about the ops that it calls.",
    ),
    Reason(
        r"op/nn_functional_embedding(_bag)?",
        "`max_norm` writes to the weight, and `autocast` does not change in-place calls.",
    ),
    Reason(
        r"op/linalg_lu_solve",
        "`torch-cpu` lists `lu_solve`, and `convert` treats `torch.linalg.lu_solve` as the same op. They differ if the input is empty.",
    ),
]
# Of compiled code: "label policy: what".
COMPILED: list[Reason] = [
    Reason(
        r"training/mamba .*",
        "When it is compiled, the model takes another algorithm by its own choice: `associative_scan` instead of a loop.",
    ),
    Reason(
        r"training/(siglip|audio-spectrogram-transformer) .*|inference/opt .*|.*/focalnet .*",
        "`layer_norm` adds up in another order, so one of some 40,000 of its results rounds to the neighbour. These tiny models amplify it.",
    ),
    Reason(
        r".*/whisper .*",
        "g++ 12, on a CPU that it does not know by name, miscompiles `gelu` in bfloat16 before a transposition and `layer_norm`: NaNs, with "
        "`torch.autocast` and in plain bfloat16, too ([Rounding](compile.md#rounding)).",
    ),
    Reason(
        r"training/(swin|umt5) .*",
        "Attention with a mask that needs a gradient, which torch computes by parts in float32. Inductor's `softmax` is 9e-08 off, so one of some "
        "10,000 results rounds to the neighbour. These tiny models amplify it.",
    ),
    Reason(
        r"inference/mpt .*",
        "`gelu` in float32: Inductor computes `erf` by another formula, so some results round to the neighbour later.",
    ),
    Reason(
        r"inference/deberta .*",
        "The model fills a bfloat16 tensor with the smallest float32 number, which raises uncompiled, too.",
    ),
    Reason(
        r"training/hubert .*",
        "The tail of `gelu`: results below 1e-6, for which oneDNN has another formula. A few results of `layer_norm` round to the neighbour by it.",
    ),
    Reason(
        r"training/mobilenet_v1 .*",
        "The kernel of `batch_norm` in eval mode multiplies and adds in another order: numbers near zero differ, by 6e-08 of the norm of all.",
    ),
    Reason(
        r"training/resnet hmp: gradients in float32",
        "Below the first `max_pool2d`. Its uncompiled kernel adds gradients of overlapping windows in bfloat16, compiled code in float32.",
    ),
]


def find(table: list[Reason], text: str) -> str:
    return next((reason.text for reason in table if re.fullmatch(reason.pattern, text)), "")
