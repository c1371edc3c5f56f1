"""Reports as ``CastReport.to_dict`` gives them, made up: of a small GPT, of nothing, with hostile names, and huge ones.

They know nothing of the recorder, so that the page and the table have tests without a model that runs.
"""

from __future__ import annotations

import random
from typing import Any

RULES = {
    "layer_norm": ("lower", "lower: layer_norm, lists/hmp/lower.txt:20"),
    "linear": ("lower", "lower: linear, lists/hmp/lower.txt:22"),
    "matmul": ("lower", "lower: matmul, lists/hmp/lower.txt:23"),
    "dropout": ("lower", "lower: dropout, lists/hmp/lower.txt:14"),
    "softmax": ("fp32", "fp32: softmax, lists/hmp/fp32.txt:41"),
    "div": ("fp32", "fp32: div, lists/hmp/fp32.txt:12"),
    "cross_entropy": ("fp32", "fp32: cross_entropy, lists/hmp/fp32.txt:9"),
    "add": ("promote", "promote: add, lists/hmp/promote.txt:2"),
    "add_": ("in place", ""),
    "gelu": ("first input", "rest: first_input"),
    "masked_fill": ("first input", "rest: first_input"),
    "embedding": ("unlisted", ""),
    "view": ("unlisted", ""),
    "transpose": ("unlisted", ""),
    "split": ("unlisted", ""),
}
LOW, FULL = "bfloat16", "float32"
ERROR = dict.fromkeys(("squares", "reference_squares", "largest", "reference_largest", "lost"), 0)
RANGE = dict.fromkeys(
    ("numbers", "largest", "smallest", "over_float16", "under_float16", "under_e4m3", "under_e5m2"), 0
)


def empty(**changes: Any) -> dict[str, Any]:
    """The report of a block in which no op ran."""
    return {
        "format": "habana_mp.report",
        "version": 1,
        "torch": "2.13.0",
        "habana_mp": "0.1.0",
        "title": "",
        "policies": [],
        "seconds": 0.0,
        "op_seconds": 0.0,
        "cast_seconds": 0.0,
        "casts": 0,
        "cache_hits": 0,
        "backward_casts": 0,
        "cast_bytes": 0,
        "rows": [],
        "ping_pong": [],
        "recast": [],
        "never_seen": [],
        "missed": [],
        "timeline": {"stride": 1, "events": []},
        "advice": [],
    } | changes


def with_losses(report: dict[str, Any]) -> dict[str, Any]:
    """A report whose rows have losses, each of one backward pass."""
    rows = (row["values"]["losses"] for row in report["rows"] if "values" in row)
    lines = dict.fromkeys(each["loss"] for losses in rows for each in losses)
    return {**report, "losses": [{"loss": line, "passes": 1} for line in lines]}


def cast(
    source: str, to: str, count: int, cached: int = 0, size: int = 0, seconds: float = 0.0, back: int = 0
) -> dict[str, Any]:
    backward = {"count": back, "bytes": size // max(1, count) * back, "seconds": seconds / max(1, count) * back * 0.8}
    return {
        "from": source,
        "to": to,
        "count": count,
        "cached": cached,
        "bytes": size,
        "seconds": seconds,
        "backward": backward,
    }


def row(op: str, module: str = "", **changes: Any) -> dict[str, Any]:
    decision, rule = RULES.get(op, ("unlisted", ""))
    made = {
        "op": op,
        "module": module,
        "front_end": "convert",
        "policy": "hmp",
        "decision": decision,
        "rule": rule,
        "source": "train.py:31",
        "instead_of": "",
        "place": 0,
        "calls": 1,
        "seconds": 0.001,
        "cast_seconds": 0.0,
        "dtypes": [FULL],
        "runs_in": [LOW] if decision == "lower" else [FULL],
        "casts": [],
    } | changes
    made["cast_seconds"] = sum(each["seconds"] for each in made["casts"])
    return made


def values(**changes: Any) -> dict[str, Any]:
    """The ``values`` of a row: zeros, but for the changes."""
    return {
        **dict.fromkeys(("calls", "unmeasured", "ran_seconds", "other_seconds", "backward_calls"), 0),
        **dict.fromkeys(("projections", "projected", "projected_low", "projected_rounding"), 0),
        **dict.fromkeys(("choices", "flipped"), 0),
        "losses": [],
        **dict.fromkeys(("ran", "low", "backward"), ERROR),
        "range": RANGE,
        "absorbed": dict.fromkeys(("sums", "lost", "bfloat16", "float16", "e4m3", "e5m2"), 0),
    } | changes


def loss(squares: float = 0.0, squares_low: float = 0.0, line: str = "train.py:41") -> dict[str, Any]:
    """What the errors of a row change a loss by in one backward pass."""
    change, low = squares**0.5, squares_low**0.5
    return {
        "loss": line,
        "changes": 1,
        "change": change,
        "change_low": low,
        "squares": squares,
        "squares_low": squares_low,
        "squares_rounding": 0.0,
    }


def summed(rows: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    """A report with these rows and the sums that follow from them."""
    casts = [each for one in rows for each in one["casts"]]
    op_seconds = sum(one["seconds"] for one in rows)
    cast_seconds = sum(each["seconds"] + each["backward"]["seconds"] for each in casts)
    return (
        empty(
            policies=[
                {
                    "name": "hmp",
                    "text": "name=hmp low_dtype=bfloat16 rest=first_input lower=addmm,bmm,layer_norm,linear,matmul fp32=softmax",
                    "front_end": "convert",
                }
            ],
            seconds=op_seconds * 1.4 + cast_seconds,
            op_seconds=op_seconds,
            cast_seconds=cast_seconds,
            casts=sum(each["count"] for each in casts),
            cache_hits=sum(each["cached"] for each in casts),
            backward_casts=sum(each["backward"]["count"] for each in casts),
            cast_bytes=sum(each["bytes"] for each in casts),
            rows=rows,
        )
        | changes
    )


def small() -> dict[str, Any]:
    """Two linear layers round a layer_norm and a softmax: round numbers, which a test can name."""
    rows = [
        row(
            "linear",
            "Net: fc1",
            calls=4,
            seconds=0.010,
            casts=[cast(FULL, LOW, 12, cached=6, size=2_400_000, seconds=0.002, back=8)],
        ),
        row(
            "linear",
            "Net: fc2",
            calls=4,
            seconds=0.006,
            dtypes=[LOW, FULL],
            casts=[cast(FULL, LOW, 8, cached=6, size=1_000_000, seconds=0.001, back=4)],
        ),
        row("softmax", "Net", calls=4, seconds=0.004, dtypes=[LOW], casts=[cast(LOW, FULL, 4, 0, 400_000, 0.0015, 4)]),
        row("layer_norm", "Net: norm", calls=4, seconds=0.002, dtypes=[LOW]),
        row("gelu", "Net", calls=4, seconds=0.0005, decision="missed", rule="", source="net.py:7"),
        row("flatten", "", calls=4, seconds=0.0002),
    ]
    return summed(
        rows,
        title="train.py",
        seconds=0.050,
        ping_pong=[
            {
                "ops": [
                    {"op": "linear", "module": "Net: fc1", "dtype": LOW},
                    {"op": "softmax", "module": "Net", "dtype": FULL},
                    {"op": "linear", "module": "Net: fc2", "dtype": LOW},
                ],
                "path": [LOW, FULL, LOW],
                "count": 4,
                "seconds": 0.0021,
            }
        ],
        recast=[
            {
                "tensor": "output of softmax in Net",
                "from": FULL,
                "to": LOW,
                "times": 8,
                "needed": 4,
                "ops": ["linear"],
                "modules": ["Net: fc2"],
                "bytes": 800_000,
                "seconds": 0.0008,
            }
        ],
        never_seen=[
            {"op": "conv2d", "list": "lower", "rule": "lower: conv2d, lists/hmp/lower.txt:5"},
            {"op": "bmm", "list": "lower", "rule": "lower: bmm, lists/hmp/lower.txt:3"},
            {"op": "nll_loss", "list": "fp32", "rule": "fp32: nll_loss, lists/hmp/fp32.txt:28"},
        ],
        missed=[
            {
                "op": "gelu",
                "calls": 4,
                "module": "Net",
                "source": "net.py:7",
                "rule": "lower: gelu, lists/hmp-o1/lower.txt:9",
                "held_by": ["net.ACTIVATIONS['gelu']"],
            }
        ],
        timeline={
            "stride": 1,
            "events": [
                [0.001, 0.002, 0, FULL, LOW, "cast"],
                [0.012, 0.0015, 2, LOW, FULL, "cast"],
                [0.016, 0.001, 1, FULL, LOW, "cast"],
                [0.018, 0.0, 1, FULL, LOW, "cached"],
                [0.040, 0.001, 2, FULL, LOW, "backward"],
            ],
        },
        advice=[
            {
                "text": "softmax runs in float32 between two linear in bfloat16: try -softmax in fp32.txt",
                "evidence": "linear -> softmax -> linear casts 4 times: 4.2 % of the block",
            },
            {"text": "gelu was held before convert: import it after", "evidence": "net.ACTIVATIONS['gelu'], 4 calls"},
        ],
    )


class _Clock:
    """Rows that gather calls, and the timeline of their casts."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.rows: dict[tuple[str, str], dict[str, Any]] = {}
        self.events: list[list[Any]] = []

    def call(self, op: str, module: str, micros: float, *casts: tuple[str, str, int, int]) -> None:
        """One call; each cast is from, to, bytes, how many of its tensors the cache serves."""
        found = self.rows.setdefault((op, module), row(op, module, calls=0, seconds=0.0))
        index = list(self.rows).index((op, module)) if len(self.rows) < 2000 else len(self.rows) - 1
        found["calls"] += 1
        found["dtypes"] = sorted({*found["dtypes"], *(each[0] for each in casts)}) if casts else found["dtypes"]
        self.now += 4e-6
        for source, to, size, cached in casts:
            took = size / 24e9 * self.random.uniform(0.8, 1.6) + 1.5e-6
            into = next((each for each in found["casts"] if (each["from"], each["to"]) == (source, to)), None)
            if into is None:
                found["casts"].append(into := cast(source, to, 0))
            into["count"] += 1 + cached
            into["cached"] += cached
            into["bytes"] += size
            into["seconds"] += took
            into["backward"]["count"] += 1
            into["backward"]["bytes"] += size
            into["backward"]["seconds"] += took * 0.8
            found["cast_seconds"] += took
            found["seconds"] += took
            self.events += [[self.now, 0.0, index, source, to, "cached"] for _ in range(cached)]
            self.events.append([self.now, took, index, source, to, "cast"])
            self.now += took
        took = micros * 1e-6 * self.random.uniform(0.9, 1.3)
        found["seconds"] += took
        self.now += took

    def backward(self, since: int) -> None:
        """The casts since an event, once more and from the last to the first."""
        for _, took, index, source, to, kind in reversed(self.events[since:]):
            if kind == "cast":
                self.now += 3e-5 * self.random.uniform(0.5, 3)
                self.events.append([self.now, took * 0.8, index, to, source, "backward"])
                self.now += took * 0.8


def gpt(layers: int = 12, steps: int = 2) -> dict[str, Any]:
    """A GPT under the preset hmp: 12 layers of width 768, two steps."""
    clock = _Clock(1)
    size = 8 * 256 * 768 * 4
    for _ in range(steps):
        begin = len(clock.events)
        clock.call("embedding", "GPT: wte", 90)
        clock.call("embedding", "GPT: wpe", 20)
        clock.call("add", "GPT", 60)
        for i in range(layers):
            at = f"GPT: blocks.{i}"
            clock.call("layer_norm", f"{at}.ln1", 110, (FULL, LOW, size, 0))
            for name in "qkv":
                clock.call("linear", f"{at}.attn.{name}", 420, (FULL, LOW, 768 * 768 * 4, 1))
            clock.call("view", f"{at}.attn", 3)
            clock.call("transpose", f"{at}.attn", 3)
            clock.call("matmul", f"{at}.attn", 330)
            clock.call("div", f"{at}.attn", 150, (LOW, FULL, size * 2, 0))
            clock.call("masked_fill", f"{at}.attn", 190)
            clock.call("softmax", f"{at}.attn", 240)
            clock.call("dropout", f"{at}.attn.drop", 130, (FULL, LOW, size * 2, 0))
            clock.call("matmul", f"{at}.attn", 330)
            clock.call("linear", f"{at}.attn.proj", 420, (FULL, LOW, 768 * 768 * 4, 1))
            clock.call("add", at, 70, (LOW, FULL, size, 0))
            clock.call("layer_norm", f"{at}.ln2", 110, (FULL, LOW, size, 0))
            clock.call("linear", f"{at}.mlp.up", 1500, (FULL, LOW, 768 * 3072 * 4, 1))
            clock.call("gelu", f"{at}.mlp.act", 500)
            clock.call("linear", f"{at}.mlp.down", 1500, (FULL, LOW, 768 * 3072 * 4, 1))
            clock.call("add", at, 70, (LOW, FULL, size, 0))
        clock.call("layer_norm", "GPT: ln", 110, (FULL, LOW, size, 0))
        clock.call("linear", "GPT: head", 2600, (FULL, LOW, 768 * 8000 * 4, 1))
        clock.call("cross_entropy", "", 900, (LOW, FULL, 8 * 256 * 8000 * 4, 0))
        clock.backward(begin)
        for _ in range(6):
            clock.call("add_", "", 700)
    calls = layers * steps
    return summed(
        list(clock.rows.values()),
        title="examples/gpt.py",
        seconds=clock.now,
        ping_pong=[
            {
                "ops": [
                    {"op": "matmul", "module": "GPT: blocks.*.attn", "dtype": LOW},
                    {"op": "div", "module": "GPT: blocks.*.attn", "dtype": FULL},
                    {"op": "masked_fill", "module": "GPT: blocks.*.attn", "dtype": FULL},
                    {"op": "softmax", "module": "GPT: blocks.*.attn", "dtype": FULL},
                    {"op": "dropout", "module": "GPT: blocks.*.attn.drop", "dtype": LOW},
                ],
                "path": [LOW, FULL, LOW],
                "count": calls,
                "seconds": calls * 0.0047,
            },
            {
                "ops": [
                    {"op": "linear", "module": "GPT: blocks.*.attn.proj", "dtype": LOW},
                    {"op": "add", "module": "GPT: blocks.*", "dtype": FULL},
                    {"op": "layer_norm", "module": "GPT: blocks.*.ln2", "dtype": LOW},
                ],
                "path": [LOW, FULL, LOW],
                "count": calls,
                "seconds": calls * 0.0024,
            },
        ],
        recast=[
            {
                "tensor": f"output of layer_norm in GPT: blocks.{i}.ln1",
                "from": FULL,
                "to": LOW,
                "times": 3 * steps,
                "needed": steps,
                "ops": ["linear"],
                "modules": [f"GPT: blocks.{i}.attn.{name}" for name in "qkv"],
                "bytes": 3 * steps * size,
                "seconds": 0.0031 - i * 1e-5,
            }
            for i in range(layers)
        ],
        never_seen=[
            {"op": op, "list": name, "rule": f"{name}: {op}, lists/hmp/{name}.txt:{line}"}
            for name, ops in [
                (
                    "lower",
                    "addmm batch_norm bmm conv1d conv2d conv3d dot group_norm instance_norm leaky_relu mm mul mv relu t",
                ),
                (
                    "fp32",
                    "binary_cross_entropy cosine_similarity ctc_loss exp gru kl_div log log_softmax mse_loss nll_loss pow rsqrt sum",
                ),
                ("promote", "addcdiv addcmul bilinear cat cross stack sub where"),
            ]
            for line, op in enumerate(ops.split(), start=1)
        ],
        missed=[
            {
                "op": "gelu",
                "calls": steps,
                "module": f"GPT: blocks.{i}.mlp.act",
                "source": "transformers/activations.py:46",
                "rule": "lower: gelu, lists/hmp-o1/lower.txt:9",
                "held_by": ["transformers.activations.ACT2FN['gelu']", "gpt.ACTIVATION"],
            }
            for i in range(layers)
        ],
        timeline={"stride": 1, "events": clock.events},
        advice=[
            {
                "text": "softmax and div run in float32 between two matmul in bfloat16: try -div in fp32.txt",
                "evidence": f"matmul -> div -> softmax -> dropout casts {calls} times each way: 23 % of the block",
            },
            {
                "text": "The output of layer_norm is cast for q, k and v each: one linear for the three would cast it once",
                "evidence": f"{layers} tensors, {3 * calls} casts where {calls} would do: 37 ms, 3.1 %",
            },
            {
                "text": "gelu was held before convert and runs past it: import it after hmp.convert, or call F.gelu",
                "evidence": f"transformers.activations.ACT2FN['gelu'] at transformers/activations.py:46, {calls} calls",
            },
            {
                "text": "cross_entropy casts the logits to float32: they are the largest tensor of the step",
                "evidence": f"{2 * steps} casts, 524 MB, 6.2 % of the block; fp32: cross_entropy, lists/hmp/fp32.txt:9",
            },
        ],
    )


HOSTILE = (
    "</script ><script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "'\"><b>bold</b>&amp;{{ 7 * 7 }}{% raw %}",
    "line\u2028and\u2029paragraph [red]markup[/red]",
    "lone \udcff surrogate \x1b[31m and <!-- <script> comment",
    "__proto__",
    "a much " + "longer " * 40 + "name",
)


def hostile() -> dict[str, Any]:
    """Every name is one that tries to be more than text."""
    rows = [
        row(
            name,
            f"{name}: {name}.{name}",
            rule=name,
            source=name,
            policy=name,
            casts=[cast(FULL, LOW, 2, 1, 10, 0.001, 1)],
        )
        for name in HOSTILE
    ]
    ops = [{"op": name, "module": name, "dtype": LOW} for name in HOSTILE]
    return summed(
        rows,
        title=HOSTILE[0],
        policies=[{"name": name, "text": name, "front_end": "autocast"} for name in HOSTILE],
        ping_pong=[{"ops": ops, "path": [FULL, LOW, FULL], "count": 2, "seconds": 0.001}],
        recast=[
            {
                "tensor": name,
                "from": FULL,
                "to": LOW,
                "times": 3,
                "needed": 1,
                "ops": [name],
                "modules": [name],
                "bytes": 3,
                "seconds": 0.1,
            }
            for name in HOSTILE
        ],
        never_seen=[{"op": name, "list": "lower", "rule": name} for name in HOSTILE],
        missed=[
            {"op": name, "calls": 1, "module": name, "source": name, "rule": name, "held_by": [name]}
            for name in HOSTILE
        ],
        timeline={"stride": 1, "events": [[i * 0.001, 0.0005, i, FULL, LOW, "cast"] for i in range(len(HOSTILE))]},
        advice=[{"text": name, "evidence": name} for name in HOSTILE[:5]],
    )


def huge(rows: int = 20_000, events: int = 65_536) -> dict[str, Any]:
    """As many rows and events as a report may have: 200 ops in 1,000 layers, a sampled timeline."""
    chance = random.Random(2)
    ops = [*RULES, *(f"custom_op_{i:03}" for i in range(200 - len(RULES)))]
    made = []
    for i in range(rows):
        op = ops[(i * 7 + i // 200) % len(ops)]
        took = chance.expovariate(2000)
        casts = [] if i % 3 else [cast(FULL, LOW, 6, 2, chance.randrange(1 << 22), took * 0.3, 4)]
        made.append(
            row(op, f"Huge: stack.{i // 160}.layers.{i // 20 % 8}.part{i % 20}", calls=6, seconds=took, casts=casts)
        )
    kinds = ["cast", "cast", "cast", "cached", "backward"]
    whole = sum(one["seconds"] for one in made) * 1.4
    starts = sorted(chance.uniform(0, whole) for _ in range(events))
    return summed(
        made,
        title="huge.py",
        timeline={
            "stride": 16,
            "events": [
                [at, 0.0 if kind == "cached" else chance.expovariate(30_000), chance.randrange(rows), *pair, kind]
                for at, kind, pair in zip(
                    starts, chance.choices(kinds, k=events), chance.choices([(FULL, LOW), (LOW, FULL)], k=events)
                )
            ],
        },
    )
