"""Ranks under different policies fail at once and on every rank; ranks that are late or few do not hang."""

from __future__ import annotations

import os
import re
import sys
import warnings
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import WORLD, join, leave, run_ranks
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from habana_mp import Policy, hmp
from habana_mp._ranks import check

pytestmark = pytest.mark.xdist_group("ranks_policies")

# Edits that only rank 1 makes, and the differences that the error names.
EDITS = {
    "lists": (("+softmax:lower", "-mm"), ["mm: lower -> rest", "softmax: fp32 -> lower"]),
    "8 bits": (("+linear:int8", "+bmm:weight_int8"), ["bmm: lower -> weight_int8", "linear: lower -> int8"]),
}
PLACES = {
    "ddp": (lambda: DistributedDataParallel(nn.Linear(2, 2)), "DistributedDataParallel"),
    "mesh": (lambda: init_device_mesh("cpu", (WORLD,)), "a DeviceMesh"),
    "check": (hmp.check_ranks, "hmp.check_ranks()"),
}
DIFFERENT = """the ranks have different policies at {place}:
  rank 0: 'hmp', hash [0-9a-f]{{16}}
  rank 1: 'hmp\\+edits', hash [0-9a-f]{{16}}
{lines}"""
NOT_CONVERTED = """the ranks have different policies at {place}:
  rank 0: 'hmp', hash [0-9a-f]{{16}}
  rank 1: none, hmp.convert was not called"""


NOT_AT_THE_MESH = (
    "the policies of the ranks are not compared at a DeviceMesh: within 1 seconds rank 1 did not make the mesh under a conversion. "
    "Call hmp.check_ranks() after all of them are converted."
)


def raised(work):
    try:
        work()
    except RuntimeError as error:
        return str(error)
    return None


def different(rank):
    """Each place in turn; afterwards ranks that agree again go on."""
    results = {}
    for edits, (names, _) in EDITS.items():
        edited = Policy.load("hmp").with_edits(*names)
        for place, (make, _) in PLACES.items():
            hmp.convert(policy="hmp" if rank == 0 else edited)
            results[f"{edits} at {place}"] = raised(make)
            hmp.convert(policy=edited)
            results[f"{edits} at {place}, same"] = raised(make)
    formats = (Policy.from_ops(weight_int8=["linear"]), Policy.from_ops(int8=["linear"]))
    results["formats"] = raised(lambda: hmp.check_ranks(formats[rank]))
    results["given"] = raised(lambda: hmp.check_ranks(Policy.load("hmp" if rank == 0 else "hmp-o1")))
    twice = Policy.from_ops(lower=["div", "true_divide"])
    results["written"] = raised(lambda: hmp.check_ranks(twice if rank == 0 else Policy.from_ops(lower=["div"])))
    results["renamed"] = raised(lambda: hmp.check_ranks(Policy.from_ops(lower=["mm"], name=f"of-rank-{rank}")))
    hmp.revert()
    results["none"] = raised(hmp.check_ranks)
    alone = [dist.new_group([each]) for each in range(WORLD)]
    results["of another group"] = raised(
        lambda: hmp.check_ranks(Policy.load(["hmp", "hmp-o1"][rank]), group=alone[rank])
    )
    return results


def not_converted(rank):
    """Rank 1 has no conversion. Only the other one can know."""
    check._PATIENCE = timedelta(seconds=1)
    if rank == 0:
        hmp.convert()
    results = {"check": raised(PLACES["check"][0])}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        results["mesh"] = raised(PLACES["mesh"][0])
    results["warned"] = [str(each.message) for each in warned]
    results["ddp"] = raised(PLACES["ddp"][0]) if rank == 0 else raised(lambda: DistributedDataParallel(nn.Linear(2, 2)))
    return results


def late(rank):
    """Rank 1 converts after the first mesh: from then on they count meshes differently."""
    check._PATIENCE = timedelta(seconds=1)
    if rank == 0:
        hmp.convert()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        PLACES["mesh"][0]()
        hmp.convert(policy="hmp-o2")
        dist.barrier()
        return {"mesh": raised(PLACES["mesh"][0]), "warned": [str(each.message) for each in warned]}


def impatient(rank):
    """The other rank is not to time out in a collective while this one waits."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        PLACES["mesh"][0]()
    one = torch.ones(1)
    dist.all_reduce(one)
    return {"sum": one.item(), "warned": [str(each.message) for each in warned]}


def absent(rank):
    """Rank 1 does not come to check_ranks."""
    return {"check": raised(hmp.check_ranks) if rank == 0 else None}


CASES = {
    "different": different,
    "not converted": not_converted,
    "late": late,
    "impatient": impatient,
    "absent": absent,
}
SECONDS = {"absent": 2, "impatient": 8}  # how long the process group waits; else 60


def worker(folder, case):
    if case == "impatient" and os.environ["RANK"] == "0":
        hmp.convert()  # before anybody waits for this rank, as it may take seconds
    rank = join(folder, timeout=timedelta(seconds=SECONDS.get(case, 60)))
    results = CASES[case](rank)
    torch.save(results, f"{folder}/{rank}.pt")
    # Where one rank failed amid a collective there is no orderly end.
    leave() if case in ("different", "late", "impatient") else os._exit(0)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """By case, what each rank returned."""
    found = {}
    for case in CASES:
        folder = tmp_path_factory.mktemp("ranks")
        ended = run_ranks(__file__, folder, case)
        assert [each.status for each in ended] == [0] * WORLD, "".join(each.err for each in ended)
        found[case] = [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]
    return found


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("edits", EDITS)
def test_different_policies_are_reported_on_every_rank(results, edits, place):
    lines = "\n".join(f"    {line}" for line in EDITS[edits][1])
    expected = DIFFERENT.format(place=re.escape(PLACES[place][1]), lines=re.escape(lines))
    for rank in range(WORLD):
        assert re.fullmatch(expected, results["different"][rank][f"{edits} at {place}"])


def test_a_weight_in_8_bits_beside_activations_in_them(results):
    for rank in range(WORLD):
        assert results["different"][rank]["formats"].endswith("\n    linear: weight_int8 -> int8")


SAME = [f"{edits} at {place}, same" for edits in EDITS for place in PLACES]


@pytest.mark.parametrize("what", [*SAME, "renamed", "none", "of another group"])
def test_ranks_that_agree_go_on(results, what):
    assert [results["different"][rank][what] for rank in range(WORLD)] == [None, None]


def test_a_policy_of_no_conversion_is_given(results):
    for rank in range(WORLD):
        assert "rank 1: 'hmp-o1'" in results["different"][rank]["given"]


@pytest.mark.parametrize("place", ["ddp", "check"])
def test_a_rank_without_a_conversion(results, place):
    assert re.fullmatch(NOT_CONVERTED.format(place=re.escape(PLACES[place][1])), results["not converted"][0][place])


def test_a_mesh_does_not_wait_for_good(results):
    """The other rank may be late, or not be converted: that is a warning."""
    assert results["not converted"][0]["mesh"] is None
    assert results["not converted"][0]["warned"] == [NOT_AT_THE_MESH]
    assert results["not converted"][1]["warned"] == []


def test_ranks_that_have_missed_one_another_are_not_compared_at_meshes(results):
    assert [results["late"][rank]["mesh"] for rank in range(WORLD)] == [None, None]
    assert [results["late"][rank]["warned"] for rank in range(WORLD)] == [[NOT_AT_THE_MESH], []]


def test_a_mesh_waits_less_than_the_process_group(results):
    assert [results["impatient"][rank]["sum"] for rank in range(WORLD)] == [2, 2]
    assert ["in 4 seconds" in warning for warning in results["impatient"][0]["warned"]] == [True]


def test_policies_that_are_written_differently(results):
    for rank in range(WORLD):
        assert results["different"][rank]["written"].endswith(
            "the same for every op, by lists that are written differently"
        )


def test_a_rank_that_does_not_come(results):
    assert results["absent"][0]["check"] == "rank 1 did not call hmp.check_ranks() within 2 seconds"


def test_without_a_process_group_nothing_is_compared():
    hmp.convert()
    assert hmp.check_ranks() is None


@pytest.mark.parametrize("policy", ["hmp", 1], ids=repr)
def test_what_is_no_policy(policy):
    with pytest.raises(TypeError, match=re.escape(f"policy must be a Policy, as Policy.load makes it, not {policy!r}")):
        hmp.check_ranks(policy)


def test_revert_gives_torch_its_own_back():
    module = torch.nn.parallel.distributed
    before = module._verify_param_shape_across_processes, DeviceMesh._setup_world_group_and_device
    hmp.convert()
    hmp.convert(policy="hmp-o1")
    hmp.revert()
    assert (module._verify_param_shape_across_processes, DeviceMesh._setup_world_group_and_device) == before


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([1], "rank 1"), ([0, 1], "ranks 0-1"), ([0, 2, 3, 4, 7], "ranks 0, 2-4, 7"), (range(1000), "ranks 0-999")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_ranks_in_words(ranks, text):
    assert check._ranks(ranks) == text


if __name__ == "__main__":
    worker(*sys.argv[1:])
