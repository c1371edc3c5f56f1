"""A recording in a file, in the format of safetensors: numbers as tensors, all else as JSON (form.py) in a tensor of bytes."""

from __future__ import annotations

import hashlib
import math
import os
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import msgspec
import torch
from msgspec import structs
from safetensors import SafetensorError, deserialize
from safetensors.torch import save as save_tensors

import habana_mp._core as _core
from habana_mp._evidence.recordings import form
from habana_mp._evidence.recordings.form import About, Form
from habana_mp._show.writing import written

SUFFIX = ".rec"
MOST_BYTES = 20_000_000
_FORMAT = {"format": "habana_mp.recording", "version": "2"}
_HEADER = 4096  # bytes that the header of the tensors takes at most
_MORE_TEXT = 16  # bytes by which the text of a digest grows when its sample is thinned
_LEAST_SAMPLED = 16
_MOST_CHOICES = 250_000  # numbers, and those of one call beyond
_MOST_CALLS = 1 << 16  # kMostRecorded in src/probe/recording.h
# The tensors in a file, each in a row: their dtype, its name in the file, and the code of the array.
_TENSORS = {
    "recording": (torch.uint8, "U8", "B"),
    "samples": (torch.float32, "F32", "f"),
    "choices": (torch.int64, "I64", "q"),
    "losses": (torch.float64, "F64", "d"),
    "log_probabilities": (torch.float32, "F32", "f"),
}


@dataclass(frozen=True)
class Kept:
    """What is kept of a run. ``about`` is there of a run for a file. ``file`` is its file, "" of a run of this process; ``log_probabilities`` are float32, on the CPU, of shape [tokens]."""

    run: _core.Recording
    log_probabilities: torch.Tensor | None = None
    about: About | None = None
    file: str = ""


def is_recording(named: object) -> TypeGuard[str | os.PathLike[str]]:
    """Whether it is the path of a recording, not the name of a policy: recordings end in .rec."""
    return isinstance(named, (str, os.PathLike)) and os.fspath(named).endswith(SUFFIX)


def save(kept: Kept, path: str | os.PathLike[str]) -> None:
    """Write at most ``MOST_BYTES``: the last calls are left out if they do not fit and count as lost, then samples are thinned.

    Raises:
        OSError: the file cannot be written.
    """
    assert kept.about is not None  # noqa: S101 - a run for a file has it
    own = array("f", [] if kept.log_probabilities is None else kept.log_probabilities.tolist())
    losses = array("d", kept.run.losses)
    most_calls = _MOST_CALLS
    while True:
        rows, samples, choices, digests = kept.run.rows(most_calls, _MOST_CHOICES)
        text = msgspec.json.encode({"about": kept.about, **rows})
        numbers = len(own) * own.itemsize + len(losses) * losses.itemsize + len(choices)
        room = MOST_BYTES - _HEADER - numbers - len(text) - _MORE_TEXT * digests
        if room >= MOST_BYTES // 4 or not rows["calls"]:
            break
        most_calls = len(rows["calls"]) * 7 // 8
    if len(samples) > room:
        text, samples = _thinned(text, samples, room // 4)
    arrays: dict[str, array[Any]] = {
        "recording": array("B", text),
        "samples": array("f", samples),
        "choices": array("q", choices),
        "losses": losses,
        "log_probabilities": own,
    }
    checked = hashlib.sha256()
    for name in sorted(arrays):
        checked.update(arrays[name])
    tensors = {name: _tensor(each, _TENSORS[name][0]) for name, each in arrays.items()}
    written(save_tensors(tensors, {**_FORMAT, "sha256": checked.hexdigest()}), path)


def _tensor(numbers: array[Any], dtype: torch.dtype) -> torch.Tensor:
    return torch.frombuffer(numbers, dtype=dtype) if numbers else torch.empty(0, dtype=dtype, device="cpu")


def load(path: str | os.PathLike[str]) -> Kept:
    """Read what ``save`` wrote.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a recording, or it is damaged. The message has its name and the reason.
    """
    name = os.fspath(path)
    try:
        with Path(path).open("rb") as file:
            return _read(file.read(MOST_BYTES + 1), name)
    except (ValueError, msgspec.MsgspecError) as error:
        raise ValueError(f"{name}: not a recording: {error!s:.300}") from None


def _read(data: bytes, name: str) -> Kept:
    tensors = _tensors(data)
    made = msgspec.json.decode(tensors["recording"], type=Form)
    samples, choices, losses, own = (
        array(_TENSORS[each][2], tensors[each]) for each in ("samples", "choices", "losses", "log_probabilities")
    )
    form.check(made, len(samples), len(choices))
    values = _values_of(made, tensors["samples"], choices.tolist()) | {"losses": losses.tolist()}
    try:
        run = _core.recording_of(values)
    except RuntimeError:  # pybind11 casts numbers of Python
        raise ValueError("it has whole numbers of more than 64 bits") from None
    return Kept(run, torch.tensor(own.tolist(), device="cpu") if own else None, made.about, name)


def _tensors(data: bytes) -> dict[str, bytes]:
    """The bytes of the tensors, which are those of a recording, and are as they were written."""
    if len(data) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
    try:
        found: dict[str, Any] = dict(deserialize(data))  # type: ignore[no-untyped-call]
        end = 8 + int.from_bytes(data[:8], "little")
        header: dict[str, Any] = msgspec.json.decode(data[8:end], type=dict[str, Any])
    except SafetensorError as error:
        raise ValueError(str(error)) from None
    metadata = header.get("__metadata__", {})
    if {key: metadata.get(key) for key in _FORMAT} != _FORMAT:
        was = " ".join(f"{metadata.get(key)}" for key in _FORMAT)
        raise ValueError(f"its format is {was:.60}, and this habana_mp reads {' '.join(_FORMAT.values())}")
    kinds = {key: (each["dtype"], len(each["shape"])) for key, each in found.items()}
    if kinds != {key: (kind, 1) for key, (_, kind, _) in _TENSORS.items()}:
        raise ValueError(f"its tensors are {', '.join(sorted(kinds)):.100}, or of another dtype")
    tensors = {key: bytes(each["data"]) for key, each in found.items()}
    if metadata.get("sha256") != hashlib.sha256(b"".join(tensors[key] for key in sorted(tensors))).hexdigest():
        raise ValueError("it is damaged: its numbers are not those that were written")
    return tensors


def _thinned(text: bytes, samples: bytes, most: int) -> tuple[bytes, bytes]:
    """The JSON and the samples, with at most so many numbers in the samples."""
    made = msgspec.json.decode(text, type=Form)
    all_numbers, begin, apart = array("f", samples), 0, []
    for digest in made.digests():
        apart.append(all_numbers[begin : begin + digest.sampled])
        begin += digest.sampled
    _thin(made, apart, most)
    return msgspec.json.encode(made), b"".join(each.tobytes() for each in apart)


def _thin(made: Form, samples: list[array[float]], most: int) -> None:
    """Leave out each second number of the longest samples, until there are at most so many."""
    digests = made.digests()
    longest = max(map(len, samples), default=0)
    while sum(map(len, samples)) > most and longest > _LEAST_SAMPLED:
        longest = (longest + 1) // 2
        for place, digest in enumerate(digests):
            if len(samples[place]) > longest:
                samples[place] = samples[place][::2]
                digest.step, digest.sampled = digest.step * 2, len(samples[place])
    while sum(map(len, samples)) > most:  # of very many calls: those of the last ones
        place = next(place for place in reversed(range(len(samples))) if samples[place])
        samples[place], digests[place].sampled = array("f"), 0


def _values_of(made: Form, samples: bytes, choices: list[int]) -> dict[str, Any]:
    """For the core, by the names of its fields."""
    sampled = chosen = 0

    def digest(of: form.Digest) -> dict[str, Any]:
        nonlocal sampled
        begin, sampled = sampled, sampled + 4 * of.sampled
        norm = math.inf if of.norm is None else of.norm
        return {
            "hash": of.hash,
            "dtype": of.dtype,
            "sizes": of.sizes,
            "norm": norm,
            "step": of.step,
            "sample": samples[begin:sampled],
        }

    calls = []
    for each in made.calls:
        begin, chosen = chosen, chosen + each.chosen
        calls.append(
            {
                **structs.asdict(each),
                "arguments": [structs.asdict(argument) for argument in each.arguments],
                "results": [digest(result) for result in each.results],
                "choices": {"numbers": choices[begin:chosen], "width": each.width},
            }
        )
    return {
        "sites": [structs.asdict(site) for site in made.sites],
        "calls": calls,
        "lost": made.lost,
        "gradients": [{"weight": each.weight, "digest": digest(each.digest)} for each in made.gradients],
        "returned": [digest(each) for each in made.returned],
    }
