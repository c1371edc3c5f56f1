"""Writes the preset "balanced" (lists/balanced): the lists of torch.autocast, with float32 where measurement says so.

    make tune-presets

What goes to the lower list is what torch.autocast lowers on the CPU or on CUDA: the ops that matrix units compute. All other ops follow their inputs, but those
of FAMILIES are candidates for float32. Two measurements decide about each:

- torch's own samples of the op (OpInfo): its error in the low dtype, on inputs that the low dtype holds. One without any error stays with its inputs, but for the families of ALWAYS.
- ten kinds of models (zoo/small_models.py), in training and in inference: error and time of a step with the op in float32 and without, in turns. Where float32
  costs more than MOST_COST of a step, or makes no model's error smaller by LEAST_GAIN of it, the op stays with its inputs, but those of ALWAYS, which are
  in float32 at any price.

At the end the whole lists run beside torch.autocast on every model. In float16 times of a CPU say nothing, so that the costs are those of bfloat16.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.nn import functional

from habana_mp import hmp
from tools.release_check import commit_now
from zoo import small_models

ROOT = Path(__file__).parent.parent
DTYPES = (torch.bfloat16, torch.float16)
SIZE, STEPS = 256, 3
MOST_COST = LEAST_GAIN = 0.01
# What users take to be exact: a loss, a sum, an angle, the logarithm of a probability. Norms: kernels of GPUs refuse an input in bfloat16 beside a weight in float32.
# In float16 powers too, as they leave its range.
_ALWAYS = (
    "exponentials and logarithms",
    "angles, as of rotary positions",
    "sums and products",
    "norms whose weights stay in float32",
    "losses",
    "decompositions and solvers",
)
ALWAYS = {torch.bfloat16: _ALWAYS, torch.float16: (*_ALWAYS, "powers")}

# Names of one op, and of ops that run it inside, are joined by "/": the first one is measured, and the others go with it.
FAMILIES = {
    "exponentials and logarithms": "exp exp2 expm1 log log10 log1p log2 logit logaddexp logaddexp2 logsumexp logcumsumexp xlogy softplus log_sigmoid "
    "log_softmax cosh sinh special_entr special_xlog1py erfinv lgamma mvlgamma digamma",
    "powers": "pow/__pow__/__rpow__ __rdiv__ __rtruediv__ reciprocal rsqrt",
    "angles, as of rotary positions": "cos sin tan acos asin atan atan2 acosh asinh atanh polar",
    "sums and products": "sum nansum mean nanmean cumsum cumprod prod trace var var_mean std std_mean norm linalg_vector_norm linalg_matrix_norm "
    "frobenius_norm nuclear_norm dist cdist pdist renorm normalize cosine_similarity cov corrcoef quantile nanquantile",
    "norms whose weights stay in float32": "layer_norm/native_layer_norm group_norm/native_group_norm rms_norm",
    "other normalisations": "softmax/softmin batch_norm/instance_norm local_response_norm",
    "losses": "binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy cross_entropy_loss ctc_loss gaussian_nll_loss "
    "hinge_embedding_loss huber_loss kl_div l1_loss margin_ranking_loss mse_loss multi_margin_loss multilabel_margin_loss "
    "multilabel_margin_loss_forward multilabel_soft_margin_loss nll_loss nll_loss2d poisson_nll_loss smooth_l1_loss soft_margin_loss "
    "triplet_margin_loss triplet_margin_with_distance_loss",
    "decompositions and solvers": "cholesky cholesky_inverse cholesky_solve inverse lu_solve orgqr ormqr pinverse geqrf _lu_with_info qr svd triangular_solve "
    "linalg_cond linalg_matrix_rank linalg_solve linalg_cholesky linalg_svdvals linalg_eigvals linalg_eigvalsh linalg_inv "
    "linalg_householder_product linalg_tensorinv linalg_tensorsolve linalg_qr linalg_cholesky_ex linalg_svd linalg_eig linalg_eigh linalg_lstsq "
    "linalg_inv_ex linalg_det linalg_slogdet logdet linalg_matrix_exp linalg_pinv",
    "transforms": "fft_fft fft_ifft fft_fft2 fft_ifft2 fft_fftn fft_ifftn fft_rfft fft_irfft fft_rfft2 fft_irfft2 fft_rfftn fft_irfftn fft_hfft fft_ihfft "
    "stft istft view_as_complex",
    "resampling and pooling": "grid_sampler grid_sampler_2d grid_sampler_3d _grid_sampler_2d_cpu_fallback upsample_bicubic2d upsample_bilinear2d "
    "upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_trilinear3d _upsample_bicubic2d_aa _upsample_bilinear2d_aa "
    "_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d avg_pool3d adaptive_avg_pool3d max_pool3d max_unpool2d "
    "max_unpool3d reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d replication_pad3d fractional_max_pool2d "
    "fractional_max_pool3d adaptive_max_pool3d fake_quantize_per_tensor_affine",
}
# Written differently by OpInfo.
SAMPLES_OF = {
    "softmin": "nn.functional.softmin",
    "native_layer_norm": "native_layer_norm",
    "cross_entropy_loss": "nn.functional.cross_entropy",
    "log_sigmoid": "nn.functional.logsigmoid",
    "upsample_bilinear2d": "nn.functional.upsample_bilinear",
    "upsample_nearest2d": "nn.functional.upsample_nearest",
    "grid_sampler": "nn.functional.grid_sample",
    "grid_sampler_2d": "nn.functional.grid_sample",
    "grid_sampler_3d": "nn.functional.grid_sample",
    "__pow__": "pow",
    "__rdiv__": "__rdiv__",
    "__rtruediv__": "__rdiv__",
    "linalg_vector_norm": "linalg.vector_norm",
}


@dataclass
class Evidence:
    """Of an op: its error on torch's samples by dtype, None where there is none; and what its float32 does to models."""

    own: dict[torch.dtype, float | None] = field(default_factory=dict)
    lost: dict[torch.dtype, int] = field(default_factory=dict)
    moves: dict[torch.dtype, list[Move]] = field(default_factory=dict)

    @property
    def cost(self) -> float:
        """In bfloat16: many CPUs compute float16 a hundred times slower, beside which no cast costs anything."""
        return max((move.cost for move in self.moves.get(torch.bfloat16, [])), default=0.0)

    @property
    def gain(self) -> float:
        """The most that float32 takes off the error of a model, as part of it. An op that no model calls is judged by its own error."""
        return max(
            (1 - move.errors[1] / move.errors[0] for moves in self.moves.values() for move in moves), default=1.0
        )


@dataclass(frozen=True)
class Move:
    """A step with an op in float32 against the step without: what it costs, as part of the time, and errors against float32."""

    model: str
    mode: str
    cost: float
    errors: tuple[float, float]


def union(title: str) -> list[str]:
    """A list of what torch.autocast does on the CPU and on CUDA, in the order of the names."""
    return sorted({op for name in ("torch-cpu", "torch-cuda") for op in hmp.Policy.load(name).lists[title]})


def lowered() -> list[str]:
    """An einsum is made of products that are lowered themselves, or of plain ones, as of positions and frequencies: those are to be exact."""
    return [op for op in union("lower") if op != "einsum"]


def own_errors(names: dict[str, list[str]]) -> dict[str, Evidence]:
    """On torch's samples. The inputs are numbers of the low dtype, so that what is measured is made by the op."""
    from torch.testing._internal.common_methods_invocations import op_db

    by_name: dict[str, Any] = {}
    for info in op_db:
        by_name.setdefault(info.name, info)
    found = {}
    for op in (each for ops in names.values() for each in ops):
        spelled = (SAMPLES_OF.get(op, op), f"nn.functional.{op}", op.replace("_", ".", 1))
        info = next((by_name[name] for name in spelled if name in by_name), None)
        found[op] = Evidence()
        for dtype in DTYPES:
            found[op].own[dtype], found[op].lost[dtype] = (None, 0) if info is None else _own_error(info, dtype)
    return found


def _own_error(info: Any, dtype: torch.dtype) -> tuple[float | None, int]:
    torch.manual_seed(0)
    errors, lost = [], 0
    try:
        samples = list(info.sample_inputs("cpu", torch.float32))
    except Exception:  # noqa: BLE001 - of a library that this machine lacks
        return None, 0
    for sample in samples[:64]:
        low = sample.transform(lambda x: x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x)
        wide = low.transform(lambda x: x.float() if isinstance(x, torch.Tensor) and x.dtype == dtype else x)
        try:
            exact, ran = (_numbers(info.op(each.input, *each.args, **each.kwargs)) for each in (wide, low))
        except Exception:  # noqa: BLE001 - no kernel for the dtype, or the sample is of an error
            continue
        if exact is None or ran is None or not exact.numel() or exact.shape != ran.shape or not exact.isfinite().all():
            continue
        lost += int((~ran.isfinite()).sum())
        size = exact.norm().item()
        if size > 0 and ran.isfinite().all():
            errors.append((ran - exact).norm().item() / size)
    return (max(errors, default=None)), lost


def _numbers(result: Any) -> torch.Tensor | None:
    from torch.utils._pytree import tree_leaves

    tensors = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor) and each.is_floating_point()]
    return torch.cat([each.detach().double().flatten() for each in tensors]) if tensors else None


class Step:
    """Of one model, in training or inference, under policies that take turns."""

    def __init__(self, name: str, mode: str) -> None:
        self.name, self.mode = name, mode
        self._made = small_models.trained(name, STEPS, size=SIZE)
        self._exact = self.run(None)[0]

    def run(self, region: Callable[[], Any] | None) -> tuple[torch.Tensor, float]:
        made, train = self._made, self.mode == "training"
        made.model.zero_grad()
        began = time.perf_counter()
        with torch.set_grad_enabled(train):
            if region is None:
                logits = made.logits()
                loss = functional.cross_entropy(logits, made.target)
            else:
                with region():
                    logits = made.logits()
                    loss = functional.cross_entropy(logits, made.target)
        if train:
            loss.backward()
        seconds = time.perf_counter() - began
        return logits.detach().double().clone(), seconds

    def measured(self, regions: dict[str, Callable[[], Any]], seconds: float) -> dict[str, tuple[float, float]]:
        """The error of each, and its time over that of the first: the median of rounds in which each ran once, for so many seconds each.

        The best time of each instead has made a loss of 200 numbers cost 13 % of a step that takes 2 ms, where it costs 0.6.
        """
        errors = {
            name: ((self.run(region)[0] - self._exact).norm() / self._exact.norm()).item()
            for name, region in regions.items()
        }
        rounds: list[dict[str, float]] = []
        end = time.perf_counter() + seconds * len(regions)
        while len(rounds) < 2 or time.perf_counter() < end:
            order = list(regions)[:: -1 if len(rounds) % 2 else 1]  # so that none always follows the same other
            rounds.append({name: self.run(regions[name])[1] for name in order})
        first = next(iter(regions))
        return {name: (errors[name], median(each[name] / each[first] for each in rounds)) for name in regions}

    def low_ops(self, policy: hmp.Policy) -> set[str]:
        """The ops that run in the low dtype: on the others float32 changes nothing."""
        with hmp.autocast("cpu", policy=policy), hmp.report() as report, torch.no_grad():
            functional.cross_entropy(self._made.logits(), self._made.target)
        return {row["op"] for row in report.to_dict()["rows"] if name_of(policy.low_dtype) in row["runs_in"]}


def region_of(policy: hmp.Policy) -> Callable[[], Any]:
    return lambda: hmp.autocast("cpu", policy=policy)


def steps(names: list[str]) -> Iterator[Step]:
    for name in names:
        for mode in ("inference", "training"):
            yield Step(name, mode)


def base(dtype: torch.dtype, wide: list[str]) -> hmp.Policy:
    lower = lowered()
    promote = [op for op in union("promote") if op not in {*lower, *wide}]
    return hmp.Policy.from_ops(
        lower, [op for op in wide if op not in lower], promote, low_dtype=dtype, name=f"{len(wide)}"
    )


def measure(evidence: dict[str, Evidence], dtype: torch.dtype, models: list[str], seconds: float) -> None:
    """Each candidate, and each op of the lower list, alone in float32, in all models that call it."""
    plain = base(dtype, [])
    for step in steps(models):
        seen = sorted(op for op in step.low_ops(plain) if op in evidence)
        regions = {"": region_of(plain)} | {op: region_of(plain.with_edits(f"+{op}:fp32")) for op in seen}
        found = step.measured(regions, seconds)
        # What seems dear is measured again, longer: other work on the machine has made many an op dear.
        dear = {op: regions[op] for op in ("", *seen) if not op or found[op][1] > 1 + MOST_COST}
        again = step.measured(dear, 4 * seconds) if len(dear) > 1 else {}
        for op in seen:
            beside = again if op in again else found
            move = Move(step.name, step.mode, beside[op][1] - 1, (beside[""][0], beside[op][0]))
            evidence[op].moves.setdefault(dtype, []).append(move)


def decided(evidence: dict[str, Evidence], dtype: torch.dtype) -> dict[str, list[str]]:
    """The candidates of each family that go to float32."""
    chosen: dict[str, list[str]] = {}
    for family, ops in FAMILIES.items():
        chosen[family] = []
        for names in (each.split("/") for each in ops.split()):
            own = evidence[names[0]]
            has_error = any(own.own[each] != 0 for each in DTYPES)
            if family in ALWAYS[dtype] or (has_error and own.cost <= MOST_COST and own.gain >= LEAST_GAIN):
                chosen[family] += names
    return chosen


def beside_autocast(wide: dict[str, list[str]], dtype: torch.dtype, models: list[str], seconds: float) -> Iterator[str]:
    """Runs the lists and torch.autocast; gives a line for each model."""
    balanced = region_of(base(dtype, [op for ops in wide.values() for op in ops]))
    for step in steps(models):
        found = step.measured({"autocast": lambda: torch.autocast("cpu", dtype=dtype), "balanced": balanced}, seconds)
        error, (_, taken) = found["balanced"][0] / found["autocast"][0], found["balanced"]
        times = f", time {taken:.2f}" if seconds else ""
        yield f"{step.name}, {step.mode}: error {error:.3f}{times}"


def text_of(evidence: Evidence, dtypes: Sequence[torch.dtype]) -> str:
    """What was measured, behind a line of a list."""
    texts = []
    for dtype in dtypes:
        short = "bf16" if dtype == torch.bfloat16 else "fp16"
        own, lost, moves = evidence.own.get(dtype), evidence.lost.get(dtype, 0), evidence.moves.get(dtype, [])
        parts = []
        if lost:
            parts.append(f"loses {lost} numbers of torch's samples")
        elif own is not None:
            parts.append(f"error {own:.2g} on torch's samples")
        if moves:
            most = max(moves, key=lambda move: move.errors[0] - move.errors[1])
            slowest = max(moves, key=lambda move: move.cost)
            text = f"{most.model} {most.errors[0]:.2g} -> {most.errors[1]:.2g} in float32"
            parts.append(f"{text}, {cost_text(slowest)}" if dtype == torch.bfloat16 else text)
        if parts:
            texts.append(f"{short}: {', '.join(parts)}")
    return "; ".join(texts) or "not measured"


def cost_text(move: Move) -> str:
    """What is below MOST_COST cannot be told from noise."""
    if move.cost <= MOST_COST:
        return f"costs at most {MOST_COST:.0%} of a step"
    return f"costs up to {move.cost:.0%} of a step ({move.model})"


def write(
    folder: Path,
    chosen: dict[torch.dtype, dict[str, list[str]]],
    evidence: dict[str, Evidence],
    checked: list[str],
    commit: str,
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lower = lowered()
    wide = {op for ops in FAMILIES.values() for op in ops.replace("/", " ").split()}
    written = {
        "fp32": fp32_lines(chosen, evidence, lower),
        "lower": [
            "# What torch.autocast lowers on the CPU or on CUDA. Written by make tune-presets.",
            "",
            *(f"{op}  # {text_of(evidence[op], DTYPES)}" for op in lower),
        ],
        "promote": [
            "# What torch.autocast promotes on the CPU or on CUDA. Written by make tune-presets.",
            "",
            *(op for op in union("promote") if op not in lower and op not in wide),
        ],
    }
    for title, lines in written.items():
        text = "\n".join([f"# Preset balanced, {title}.", *lines, ""])
        (folder / f"{title}.txt").write_text(text, encoding="utf-8")
    description = [
        "# What the lists beside this file belong to. The lists themselves: lower.txt, fp32.txt, promote.txt.",
        f"# Written by make tune-presets at commit {commit}. Errors and times of a step as parts of those under torch.autocast on one thread of the CPU:",
        *(f"#   {line}" for line in checked),
        'name = "balanced"',
        'source = "measured on ten models by make tune-presets"',
        'low_dtype = "bfloat16"',
        'low_dtypes = ["bfloat16", "float16"]',
        'rest = "inputs"',
        "error = []",
        "",
    ]
    (folder / "policy.toml").write_text("\n".join(description), encoding="utf-8")


def fp32_lines(
    chosen: dict[torch.dtype, dict[str, list[str]]], evidence: dict[str, Evidence], lower: list[str]
) -> list[str]:
    lines, others = ["# Ops that run in float32. Written by make tune-presets."], []
    for family, ops in FAMILIES.items():
        lines += ["", f"# {family.capitalize()}:"]
        for op in (each for each in ops.replace("/", " ").split() if each not in lower):
            wide = [dtype for dtype in DTYPES if op in chosen[dtype][family]]
            if wide:
                only = "" if len(wide) == len(DTYPES) else f"@{name_of(wide[0])}"
                lines.append(f"{op}{only}  # {text_of(evidence[op], wide)}")
            others += [
                f"#   {op} in {name_of(each)}: {text_of(evidence[op], [each])}" for each in DTYPES if each not in wide
            ]
    why = "# Candidates that stay with their inputs: no error of their own, or float32 gains nothing or costs more than it is worth."
    return [*lines, "", why, *others]


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).partition(".")[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "lists" / "balanced")
    parser.add_argument("--models", nargs="*", default=[*small_models.MODELS], choices=[*small_models.MODELS])
    parser.add_argument("--seconds", type=float, default=0.5, help="each variant of a step runs so long (0.5)")
    arguments = parser.parse_args()
    # On two of a shared machine layer_norm cost 5 to 22 % of an MLP's step, by process; on one 5 to 8.
    torch.set_num_threads(1)
    commit = commit_now()
    warnings.simplefilter("ignore")
    import transformers

    transformers.logging.set_verbosity_error()
    names = {family: ops.replace("/", " ").split() for family, ops in FAMILIES.items()}
    evidence = own_errors({**names, "lower": lowered()})
    chosen, checked = {}, []
    for dtype in DTYPES:
        seconds = arguments.seconds if dtype == torch.bfloat16 else 0.0
        measure(evidence, dtype, arguments.models, seconds)
        chosen[dtype] = decided(evidence, dtype)
        for line in beside_autocast(chosen[dtype], dtype, arguments.models, 4 * seconds):
            checked.append(f"{name_of(dtype)}: {line}")
            print(checked[-1], flush=True)
    write(arguments.output, chosen, evidence, checked, commit)


if __name__ == "__main__":
    main()
