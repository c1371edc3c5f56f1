"""What was measured of the numbers of a row."""

from __future__ import annotations

from typing import Annotated, Any, get_origin

from msgspec import field, structs

from habana_mp._report.data.base import Adds, Count, Data, Format, Number, Seconds, Size


class Error(Data, frozen=True):
    squares: Annotated[Size, "The sum of the squared differences from float32."]
    reference_squares: Annotated[Size, "The sum of the squared float32 numbers."]
    largest: Annotated[Size, Adds.LARGEST, "The largest difference."]
    reference_largest: Annotated[Size, Adds.LARGEST, "The largest float32 number, without its sign."]
    lost: Annotated[Count, "How many numbers are infinite or NaN, and finite in float32."]


class Range(Data, frozen=True):
    numbers: Annotated[Count, "How many numbers there are."]
    largest: Annotated[Size, Adds.LARGEST, "The largest number, without its sign."]
    smallest: Annotated[Size, Adds.SMALLEST, "The smallest number except zero, without its sign. 0 if there is none."]
    over_float16: Annotated[Count, "How many numbers are too large for float16."]
    under_float16: Annotated[Count, "How many numbers become zero in float16."]
    under_e4m3: Annotated[Count, "How many numbers become zero in float8 e4m3, after the tensor is scaled."]
    under_e5m2: Annotated[Count, "How many numbers become zero in float8 e5m2, after the tensor is scaled."]


class Absorbed(Data, frozen=True):
    sums: Annotated[Count, "How many nonzero numbers the op adds."]
    lost: Annotated[Count, "How many of them were lost in the run."]
    bfloat16: Annotated[Count, "How many would be lost in bfloat16."]
    float16: Annotated[Count, "How many would be lost in float16."]
    e4m3: Annotated[Count, "How many would be lost in float8 e4m3."]
    e5m2: Annotated[Count, "How many would be lost in float8 e5m2."]


class Passes(Data, frozen=True):
    """The changes in each pass, so that it is seen which rows cancel and which add up."""

    ran: Annotated[list[Number], Adds.PASSES, "As the calls ran."] = field(default_factory=list)
    low: Annotated[list[Number], Adds.PASSES, "In the low dtype."] = field(default_factory=list)
    rounding: Annotated[list[Number], Adds.PASSES, "Where only the float32 results are rounded."] = field(
        default_factory=list
    )


_PASSES = "The change in each backward pass, with its sign, to five digits. Passes beyond the first 128 are added to these with random signs."
_SUMS = "The same of the random sums of outputs."


class LossChange(Data, frozen=True):
    loss: Annotated[str, 'The line of your code that called backward; "" if it is not known.']
    changes: Annotated[Count, "How many results got a gradient, so that their error counts in the change."]
    change: Annotated[Number, "The change of the loss because of the error, to first order."]
    change_low: Annotated[Number, "The same in the low dtype."]
    squares: Annotated[Size, "The squares of the changes in each backward pass, added up."]
    squares_low: Annotated[Size, "The same in the low dtype."]
    squares_rounding: Annotated[Size, "The same where only the float32 results are rounded."]
    passes: Annotated[Passes, _PASSES] = field(default_factory=Passes)
    choice: Annotated[
        bool,
        "Whether it is no loss, but a sum of the margins by which an op chooses: losses of the report has them.",
    ] = False


class FormatChange(Data, frozen=True):
    loss: Annotated[str, 'The line of your code that called backward; "" if it is not known.']
    change: Annotated[Number, "The change of the loss in this format, to first order."]
    squares: Annotated[Size, "The squares of the changes in each backward pass, added up."]
    passes: Annotated[list[Number], Adds.PASSES, _PASSES] = field(default_factory=list)


class FormatValues(Data, frozen=True):
    """What the calls of a row would be in 8 bits, as one of these lists has them."""

    format: Annotated[Format, "The list."]
    calls: Annotated[Count, "How many calls can run so, and were measured."]
    error: Annotated[Error, "The error of their results."]
    seconds: Annotated[Seconds, "The time of these runs, with a copy of the weight that was made before."]
    losses: Annotated[list[FormatChange], "What the errors change each loss by."]
    projected: Annotated[Size, "The sum of the squared changes of the random sums of outputs."]
    passes: Annotated[list[Number], Adds.PASSES, _SUMS] = field(default_factory=list)
    lower_seconds: Annotated[
        Seconds, "The time of the same runs in the low dtype, with such a copy. 0 where the calls did not run low."
    ] = 0.0


class Values(Data, frozen=True):
    """What was measured of the numbers of a row. The sums are described in src/report/values.h."""

    calls: Annotated[Count, "How many calls were measured."]
    unmeasured: Annotated[Count, "How many calls were not measured."]
    ran: Annotated[Error, "The error of the results, as the calls ran."]
    low: Annotated[Error, "The error of the results in the low dtype."]
    range: Annotated[Range, "The range of the results in float32."]
    absorbed: Annotated[Absorbed, "Of an addition: the numbers that change nothing."]
    ran_seconds: Annotated[Seconds, "The time of the measured calls."]
    other_seconds: Annotated[Seconds, "The time of their second runs, in the other dtype."]
    backward_calls: Annotated[Count, "How many ops of the backward pass were measured."]
    backward: Annotated[Error, "The error of the ops of the backward pass."]
    losses: Annotated[list[LossChange], "What the errors change each loss by."]
    projections: Annotated[Count, "How many random sums of outputs replaced the loss."]
    projected: Annotated[Size, "The sum of the squared changes of these sums."]
    projected_low: Annotated[Size, "The same in the low dtype."]
    projected_rounding: Annotated[Size, "The same where only the float32 results are rounded."]
    choices: Annotated[Count, "How many choices, such as indices of argmax, were made from numbers with an error."]
    flipped: Annotated[Count, "How many of them float32 would have made otherwise."]
    formats: Annotated[
        list[FormatValues],
        "What the calls would be in 8 bits. Empty where no format was asked for, or no call can run so.",
    ] = field(default_factory=list)

    passes: Annotated[Passes, _SUMS] = field(default_factory=Passes)
    backward_ran_seconds: Annotated[Seconds, "The time of the measured ops of the backward pass."] = 0.0
    backward_other_seconds: Annotated[Seconds, "The time of their second runs, in float32."] = 0.0
    ran_longest: Annotated[Seconds, Adds.LARGEST, "The longest of the times in ran_seconds."] = 0.0
    other_longest: Annotated[Seconds, Adds.LARGEST, "The longest of the times in other_seconds."] = 0.0
    backward_ran_longest: Annotated[Seconds, Adds.LARGEST, "The longest of the times in backward_ran_seconds."] = 0.0
    backward_other_longest: Annotated[Seconds, Adds.LARGEST, "The longest of the times in backward_other_seconds."] = (
        0.0
    )

    def __post_init__(self) -> None:
        if self.flipped > self.choices:
            raise ValueError(f"flipped must be at most choices ({self.choices}), not {self.flipped}")

    def in_format(self, name: str) -> FormatValues | None:
        return next((each for each in self.formats if each.format == name), None)


def _nothing(kind: Any) -> Any:
    """Zeros in all fields."""
    plain = get_origin(kind) or kind
    if plain in (int, float, list):
        return plain()
    return kind(*(_nothing(each.type.__origin__) for each in structs.fields(kind)))


NOT_MEASURED: Values = _nothing(Values)
