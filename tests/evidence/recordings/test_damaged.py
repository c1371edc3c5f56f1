"""Files that are no recordings, damaged ones and hostile ones: each raises an error with its name, and nothing else happens."""

from __future__ import annotations

import hashlib
import random

import msgspec
import pytest
import torch
from measured_net import Net, X
from safetensors import deserialize
from safetensors.torch import save

from habana_mp import hmp
from habana_mp._evidence.recordings.file import _TENSORS, load


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "a.rec"
    torch.manual_seed(0)
    with hmp.record(path) as run:
        run.returns(Net()(X))
    load(path)
    return path.read_bytes()


def damaged(data: bytes, seed: int) -> bytes:
    draw = random.Random(seed)
    place = draw.randrange(len(data))
    kind = seed % 5
    if kind == 0:
        return data[:place]
    if kind == 1:
        return data[:place] + bytes([data[place] ^ draw.randrange(1, 256)]) + data[place + 1 :]
    if kind == 2:
        return data[:place] + draw.randbytes(draw.randrange(1, 64)) + data[place:]
    if kind == 3:
        head = draw.randrange(min(600, len(data)))  # in the header
        return data[:head] + draw.randbytes(3) + data[head + 3 :]
    return draw.randbytes(place % 4096)


@pytest.mark.parametrize("first", range(0, 300, 30))
def test_a_damaged_file_raises(first, whole, here):
    for seed in range(first, first + 30):
        data = damaged(whole, seed)
        assert data != whole
        (here / "a.rec").write_bytes(data)
        with pytest.raises(ValueError, match=r"^a.rec: not a recording: \S"):
            load("a.rec")


def written_anew(data: bytes, change) -> bytes:
    """A file whose checksum is right, and whose JSON is changed."""
    tensors = {name: bytes(each["data"]) for name, each in deserialize(data)}
    values = msgspec.json.decode(tensors["recording"])
    change(values)
    tensors["recording"] = msgspec.json.encode(values)
    sha = hashlib.sha256(b"".join(tensors[name] for name in sorted(tensors))).hexdigest()
    made = {
        name: torch.frombuffer(bytearray(each), dtype=_TENSORS[name][0])
        if each
        else torch.empty(0, dtype=_TENSORS[name][0])
        for name, each in tensors.items()
    }
    return save(made, {"format": "habana_mp.recording", "version": "2", "sha256": sha})


SITE, INNER, OUTER, ARGUMENTS, RESULTS = 0, 1, 4, 5, 7
HOSTILE = {
    "another site": (lambda v: v["calls"][1].__setitem__(SITE, 10**6), "call 1 has site 1000000 of"),
    "inside of itself": (lambda v: v["calls"][1].__setitem__(OUTER, 1), "call 1 is inside of call 1, which is not before it"),
    "inside of none": (lambda v: v["calls"][1].__setitem__(OUTER, -2), "call 1 is inside of call -2"),
    "made later": (lambda v: v["calls"][1][ARGUMENTS][0].__setitem__(2, 9), "call 1 has an argument of call 9"),
    "a negative size": (lambda v: v["calls"][1][RESULTS][0].__setitem__(2, [-1]), "Expected `int` >= 0"),
    "a huge size": (lambda v: v["calls"][1][RESULTS][0].__setitem__(2, [1 << 62, 1 << 62]), "more numbers than 63 bits count"),
    "a huge hash": (lambda v: v["calls"][1][ARGUMENTS][0].__setitem__(0, 1 << 63 << 1), ""),
    "a huge size beside none": (lambda v: v["calls"][1][ARGUMENTS][0].__setitem__(5, [0, 1 << 63]), "whole numbers of more than 64 bits"),
    "more samples": (lambda v: v["calls"][1][RESULTS][0].__setitem__(5, 10**9), "has 1000000000 samples"),
    "step 3": (lambda v: v["calls"][1][RESULTS][0].__setitem__(4, 3), "each 3th number, which is no power of 2"),
    "step 0": (lambda v: v["calls"][1][RESULTS][0].__setitem__(4, 0), "Expected `int` >= 1"),
    "no dtype": (lambda v: v["calls"][1][RESULTS][0].__setitem__(1, "float33"), "no dtype of torch: float33"),
    "a text for a number": (lambda v: v["calls"][1].__setitem__(SITE, "0"), "Expected `int`, got `str`"),
    "one more field": (lambda v: v["calls"][1].append(1), "Expected `array` of"),
    "another key": (lambda v: v.__setitem__("code", "import os"), "unknown field `code`"),
    "fewer calls": (lambda v: v["calls"].clear(), "samples, and the file has"),
    "nested": (lambda v: v.__setitem__("lost", [[[[]]]]), "Expected `int`, got `array`"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_raises(name, whole, here):
    change, said = HOSTILE[name]
    (here / "a.rec").write_bytes(written_anew(whole, change))
    with pytest.raises(ValueError, match=rf"^a.rec: not a recording: .*{said}"):
        load("a.rec")


def test_a_file_of_safetensors_that_is_no_recording_raises(here):
    (here / "a.rec").write_bytes(save({"weight": torch.ones(3)}))
    with pytest.raises(ValueError, match=r"its format is None None, and this habana_mp reads habana_mp.recording 2"):
        hmp.compare("a.rec", "a.rec")


def test_a_policy_that_names_a_file_is_not_read(whole, here):
    (here / "a.rec").write_bytes(written_anew(whole, lambda v: v["about"].__setitem__("policy", "/etc/passwd")))
    found = hmp.compare("a.rec", "a.rec")
    assert (found.same, found.policy_diff) == (True, None)


@pytest.mark.parametrize("path", ["none.rec", "folder.rec"])
def test_what_cannot_be_read_raises_an_error_of_the_system(path, here):
    (here / "folder.rec").mkdir()
    with pytest.raises(OSError, match=path):
        hmp.compare(path, path)


def test_a_file_without_end_raises(here):
    (here / "a.rec").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match=r"a.rec: not a recording: it has more than 20,000,000 bytes"):
        hmp.compare("a.rec", "a.rec")
