"""The data of a report: its fields, their types and units, what each is, and how it adds up. JSON, schema and checks follow from it.

Fields are in the order of the JSON. A field that may be ``UNSET`` is not in all reports; one with another default may be missing in files.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, UnsetType, field, msgpack, to_builtins

from habana_mp._report.data.base import (
    DISTINCT,
    MOST,
    MOST_COUNT,
    Adds,
    Bytes,
    BytesByDType,
    CallsByReason,
    CastFrom,
    CastTo,
    Count,
    Data,
    Decision,
    DType,
    Format,
    ListName,
    Number,
    Seconds,
    Size,
)
from habana_mp._report.data.compiled import CompiledGraph
from habana_mp._report.data.losses import ChoicesWorth, Loss
from habana_mp._report.data.values import NOT_MEASURED, Values
from habana_mp._show.module_path import ModulePath

FORMAT = "habana_mp.report"
VERSION = 1


class BackwardCasts(Data, frozen=True):
    count: Annotated[Count, "How many gradients were cast back."]
    bytes: Annotated[Bytes, "The bytes that these casts wrote."]
    seconds: Annotated[Seconds, "The time of these casts."]


class Cast(Data, frozen=True):
    from_: Annotated[CastFrom, "The dtype that the caller gave."] = field(name="from")
    to: Annotated[CastTo, "The dtype that the op got."]
    count: Annotated[Count, "How many tensors were cast. A tensor that one call gets twice counts once."]
    cached: Annotated[Count, "How many of them the weight cache had."]
    bytes: Annotated[Bytes, "The bytes that the casts wrote."]
    seconds: Annotated[Seconds, "The time of the casts."]
    backward: Annotated[BackwardCasts, "The casts of the gradients in the backward pass."]


class Row(Data, frozen=True, kw_only=True):
    op: Annotated[str, "The name of the op, without torch. or Tensor."]
    module: Annotated[
        str, 'The class of the root module and the path below it, "Net: encoder.layers.0"; "" outside of modules.'
    ]
    front_end: Annotated[
        Literal["", "convert", "autocast"], 'Which of hmp.convert and hmp.autocast decided; "" if neither did.'
    ]
    policy: Annotated[str, 'The name of the policy that was in force; "" without one.']
    decision: Annotated[Decision, "What happened to the calls: the rule, or the reason why no rule decided."]
    rule: Annotated[str, 'The rule, and the line of the list that sets it; "" without one.']
    source: Annotated[str, Adds.FIRST, "The first line of your code that made such a call."]
    instead_of: Annotated[
        Literal["", "weight_int8", "int8"],
        "Where the list names the op, and its calls ran as those of the lower list, weight_int8 or int8.",
    ] = ""
    place: Annotated[
        Count,
        Adds.KEY,
        "With values: which call of this op in the code of the module it is, from 1 on, in the order in which they first ran; 0 if that is not known.",
    ] = 0
    calls: Annotated[Count, "How many calls there were."]
    seconds: Annotated[Seconds, "The time of the calls, with their forward casts."]
    cast_seconds: Annotated[Seconds, "The time of the forward casts."]
    dtypes: Annotated[
        list[DType],
        DISTINCT,
        Adds.DISTINCT,
        "The dtypes of the arguments, before the casts; other is any dtype that has no name here.",
    ]
    runs_in: Annotated[list[DType], DISTINCT, Adds.DISTINCT, "The dtypes of the arguments, after the casts."]
    made_bytes: Annotated[BytesByDType, "The bytes of the results, by dtype."] = field(default_factory=dict)
    unmeasured: Annotated[
        CallsByReason | UnsetType,
        "How many calls were not measured, by the reason. Only with values, and only if there are such calls.",
    ] = UNSET
    unmeasured_backward: Annotated[
        CallsByReason | UnsetType,
        "How many ops of the backward pass were not measured, by the reason. Only with values, and only if there are such ops.",
    ] = UNSET
    casts: Annotated[list[Cast], "The casts of the arguments, one item for each pair of dtypes."]
    values: Annotated[
        Values | UnsetType, "What was measured of the numbers. Only with values, and only if something was measured."
    ] = UNSET

    def __post_init__(self) -> None:
        for name in ("dtypes", "runs_in"):
            if len(dtypes := getattr(self, name)) != len({*dtypes}):
                raise ValueError(f"{name} must be different ones")

    @property
    def where(self) -> ModulePath:
        return ModulePath.of(self.module)

    @property
    def measured(self) -> Values:
        """``values``, or zeros where nothing was measured."""
        return self.values or NOT_MEASURED

    @property
    def own_seconds(self) -> float:
        """Without its casts."""
        return max(0.0, self.seconds - sum(cast.seconds for cast in self.casts))

    @property
    def all_cast_seconds(self) -> float:
        """In its casts, forward and backward."""
        return sum((cast.seconds + cast.backward.seconds for cast in self.casts), 0.0)


class Link(Data, frozen=True):
    op: Annotated[str, "The name of the op."]
    module: Annotated[str, "Its module; * if only numbers differ."]
    dtype: Annotated[CastTo, "The dtype of its result."]


class PingPong(Data, frozen=True):
    ops: Annotated[list[Link], Meta(min_length=1), Adds.KEY, "The ops that the value goes through, in order."]
    path: Annotated[list[CastTo], Meta(min_length=3, max_length=3), "The three dtypes of the value."]
    count: Annotated[Count, "How often it happened."]
    seconds: Annotated[Seconds, "The time of the casts."]


class Recast(Data, frozen=True):
    tensor: Annotated[str, "Which tensor it is."]
    from_: Annotated[CastFrom, "Its dtype."] = field(name="from")
    to: Annotated[CastTo, "The dtype that it is cast to."]
    times: Annotated[Count, "How often it was cast."]
    needed: Annotated[Count, "How many casts would do."]
    ops: Annotated[list[str], "The ops that got it."]
    modules: Annotated[list[str], Meta(max_length=16), "Their modules, at most 16."]
    bytes: Annotated[Bytes, "The bytes that the casts wrote."]
    seconds: Annotated[Seconds, "The time of the casts."]


class NeverSeen(Data, frozen=True):
    op: Annotated[str, "The name in the list."]
    list: Annotated[ListName, "The list."]
    rule: Annotated[str, "The rule, and the line of the list."]


class Missed(Data, frozen=True):
    op: Annotated[str, "The name of the op."]
    calls: Annotated[Count, "How many calls there were."]
    module: Annotated[str, "The module."]
    source: Annotated[str, "The first line of your code that made such a call."]
    rule: Annotated[str, "The rule that the calls did not get."]
    held_by: Annotated[list[str], Adds.DISTINCT, "Which variables hold the plain function."]


class Event(Data, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A cast: when it began, how long it took, the number of the row, the dtype before and after, and what it was."""

    start: Seconds
    seconds: Seconds
    row: Count
    from_: CastFrom
    to: CastTo
    kind: Literal["cast", "cached", "backward"]


class Timeline(Data, frozen=True, kw_only=True):
    stride: Annotated[
        int,
        Meta(ge=1, title="a whole number, 1 or more", extra_json_schema=MOST_COUNT),
        "The sample has each cast if this is 1, every second one if it is 2, and so on.",
    ]
    seconds: Annotated[Seconds | UnsetType, "The time of the block that the sample is of. Only in a merged report."] = (
        UNSET
    )
    events: Annotated[
        list[Event],
        Meta(max_length=MOST),
        "One item for each cast: when it began, how long it took, the number of the row, the dtype before and after, and cast, cached or backward.",
    ]


class Edge(Data, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Which row made arguments of which: the number of the maker or -1, that of the row, their dtype, how many, of how many numbers, and how
    many of them were first arguments; and whether these tensors are 0-dimensional, which beside others change no dtype.
    """

    maker: Annotated[int, Meta(ge=-1, title="the number of a row, or -1"), Adds.KEY]
    row: Annotated[Count, Adds.KEY]
    dtype: DType
    count: Count
    numbers: Count
    first: Count = 0
    zero_dim: Annotated[bool, Adds.KEY] = False


# Readers of a result that are no rows: all together, and where a backward pass begins.
ALL_READERS, ROOT = -1, -2


class Read(Data, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What rounding the results of a row changes in a loss, by those that read them: the number of the row, those of two readers, -1 for all
    together, or -2 where the backward pass begins, the line of the loss or None for the outputs, and the sum of products of the two changes over backward passes.
    """

    maker: Annotated[Count, Adds.KEY]
    first: Annotated[int, Meta(ge=-2, title="the number of a row, -1 or -2"), Adds.KEY]
    second: Annotated[int, Meta(ge=-2, title="the number of a row, -1 or -2"), Adds.KEY]
    loss: Annotated[str | None, Adds.KEY]
    product: Number


class Advice(Data, frozen=True):
    """One line of advice, and its evidence.

    Example:
        >>> with hmp.report() as r:
        ...     y = model(x)
        >>> [line.text for line in r.advice]
    """

    text: Annotated[str, "What to do."]
    evidence: Annotated[str, "The reason."]

    def __str__(self) -> str:
        return f"{self.text}\n    {self.evidence}"


class ToTake(Data, frozen=True):
    edits: Annotated[
        list[str], "The edits, as Policy.with_edits takes them. Empty if none takes away a tenth of the error."
    ]
    text: Annotated[str, "What they leave of the error, and their time."]


class InForce(Data, frozen=True):
    name: Annotated[str, "The name of the policy."]
    text: Annotated[str, "The policy as text, which Policy.load reads."]
    front_end: Annotated[Literal["convert", "autocast"], "Whether hmp.convert or hmp.autocast put it in force."]


class Totals(Data, frozen=True, kw_only=True):
    """Of all rows, or of those of one rank."""

    seconds: Annotated[Seconds, "The time of the block, without that of measuring values."]
    op_seconds: Annotated[Seconds, "The time of all calls of ops, with their casts: the sum over the rows."]
    backward_seconds: Annotated[Seconds, "The time of the backward passes."] = 0.0
    optimizer_seconds: Annotated[Seconds, "The time of the steps of optimizers."] = 0.0
    cast_seconds: Annotated[Seconds, "The time of all casts, with those of the backward pass."]
    casts: Annotated[Count, "How many tensors were cast for ops in the forward pass."]
    cache_hits: Annotated[Count, "How many of these casts the weight cache had."]
    backward_casts: Annotated[Count, "How many gradients were cast back."]
    cast_bytes: Annotated[Bytes, "The bytes that all casts wrote, with those of the backward pass."]


class Rank(Totals, frozen=True, kw_only=True):
    rank: Annotated[Count, "The rank."]
    casts_of: Annotated[dict[str, Count], "The casts of each op."]


class Uneven(Data, frozen=True):
    op: Annotated[str, "The name of the op."]
    casts: Annotated[list[Count], Meta(min_length=1), "Its casts on each rank, in the order of ranks."]


class Report(Totals, frozen=True, kw_only=True):
    torch: Annotated[str, Adds.FIRST, "The version of torch."]
    habana_mp: Annotated[str, Adds.FIRST, "The version of habana_mp."]
    title: Annotated[str, Adds.FIRST, 'The script of habana-mp report; else "".']
    rank: Annotated[Count, Adds.FIRST, "The rank of the process. In a merged report: of the first one."] = 0
    policies: Annotated[list[InForce], "The policies that were in force."]
    rows: Annotated[
        list[Row],
        Meta(max_length=MOST),
        "One item for each op, module and decision; with values also for each place in the code.",
    ]
    ping_pong: Annotated[list[PingPong], "The values that are cast to one dtype and back."]
    recast: Annotated[list[Recast], "The tensors that are cast to one dtype more than once."]
    never_seen: Annotated[list[NeverSeen], Adds.FIRST, "The names in the lists that no call was decided by."]
    missed: Annotated[list[Missed], "The ops in a list whose calls hmp.convert did not reach."]
    timeline: Annotated[Timeline, Adds.FIRST, "A sample of the casts in time."]
    compiled: Annotated[
        list[CompiledGraph], "The graphs of torch.compile that ran. Their ops and casts are no rows."
    ] = field(default_factory=list)
    forked_casts: Annotated[
        Count,
        "How many tensors forked processes cast in the time of the block, such as the workers of a DataLoader. They are in no other count.",
    ] = 0
    backward_raised: Annotated[
        Count,
        "How many nodes of backward passes raised an error. What these passes did not reach has no part in any error.",
    ] = 0
    low_dtype: Annotated[
        Literal["bfloat16", "float16"] | UnsetType,
        Adds.FIRST,
        "The low dtype that the values are of. Only with values.",
    ] = UNSET
    formats: Annotated[
        list[Format] | UnsetType,
        Adds.FIRST,
        "The lists of ops in 8 bits that calls were also run as. Only if the report was made with formats.",
    ] = UNSET
    losses: Annotated[
        list[Loss] | UnsetType, "The losses that backward was called on, and the choices of ops. Only with values."
    ] = UNSET
    choices_worth: Annotated[
        list[ChoicesWorth] | UnsetType, "What losses and outputs change by if ops choose otherwise. Only with values."
    ] = UNSET
    projected_squares: Annotated[
        Size | UnsetType, "The squares of the random sums of outputs, all together, on average. Only with values."
    ] = UNSET
    edges: Annotated[
        list[Edge] | UnsetType,
        Adds.FIRST,
        "Which row made the arguments of which: the number of the making row or -1, the number of the row that got them, their dtype, how many, of how many numbers, how many of them were first arguments, and whether these tensors have no dimensions. Only with values.",
    ] = UNSET
    reads: Annotated[
        list[Read] | UnsetType,
        Adds.FIRST,
        "What rounding the results of a row changes in a loss, by the rows that read them: the number of the row that made them, those of two readers, -1 for all together, or -2 where the backward pass begins, the loss or null for the outputs, and the sum of the products of the two changes. Only with values, of rows with several readers.",
    ] = UNSET
    steps: Annotated[
        list[Seconds] | UnsetType,
        Adds.FIRST,
        "The time of each counted step, without that of measuring values. Only if r.step() was called. In a merged report: of the first rank.",
    ] = UNSET
    advice: Annotated[list[Advice], Meta(max_length=5), Adds.FIRST, "At most five lines of advice."]
    to_take: Annotated[
        ToTake | UnsetType,
        Adds.FIRST,
        "The first edits, which are worth taking together. Only with values, and if there are edits.",
    ] = UNSET
    ranks: Annotated[
        Annotated[list[Rank], Meta(min_length=1)] | UnsetType,
        Adds.FIRST,
        "One item for each rank, with its sums. Only in a merged report.",
    ] = UNSET
    uneven: Annotated[
        list[Uneven] | UnsetType,
        Adds.FIRST,
        "The ops that some ranks cast more often than others. Only in a merged report.",
    ] = UNSET

    # Python 3.10 evaluates no ClassVar without the type.
    needed: ClassVar[dict[str, tuple[str, ...]]] = {
        "low_dtype": ("projected_squares", "edges"),
        "ranks": ("uneven",),
        "uneven": ("ranks",),
    }

    def __post_init__(self) -> None:
        for name, others in self.needed.items():
            if getattr(self, name) is not UNSET and any(getattr(self, other) is UNSET for other in others):
                raise ValueError(f"a report with {name} must have {' and '.join(others)}")
        for path, numbers in (
            ("timeline.events", [event.row for event in self.timeline.events]),
            ("edges", [number for edge in self.edges or [] for number in (edge.maker, edge.row)]),
            ("losses", [loss.choice.row for loss in self.losses or [] if loss.choice]),
            ("reads", [number for read in self.reads or [] for number in (read.maker, read.first, read.second)]),
        ):
            if numbers and max(numbers) >= len(self.rows):
                raise ValueError(f"{path} must have numbers of {len(self.rows)} rows, not {max(numbers)}")

        known = {each.loss for each in self.losses or []}
        if unknown := {each.loss for row in self.rows for each in row.measured.losses} - known:
            raise ValueError(f"losses must have {min(unknown)!r}, which rows have")

    def __reduce__(self) -> tuple[Any, ...]:
        # Not field by field: of UNSET, pickle asks all modules whose it is.
        return _unpickled, (msgpack.encode(self),)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in the JSON."""
        return {"format": FORMAT, "version": VERSION, **to_builtins(self)}


def _unpickled(data: bytes) -> Report:
    return msgpack.decode(data, type=Report)
