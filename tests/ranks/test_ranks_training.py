"""DistributedDataParallel, FSDP2 and tensor parallel on two processes have the gradients of one, under convert and autocast.

Data parallel: each process has half of the batch, and the one process takes the halves in turn. Every op is the same then, in
bfloat16 too, and the halves of a gradient are float32 when they are added: equal but for the order of float32 sums.

Tensor parallel: the second linear is cut along the dimension that it sums over. Each process rounds its half of the sum to bfloat16,
and so is the sum of the two; one process sums in float32 and rounds once. The same holds for the gradient of the first linear's
output. Each rounding is off by up to half a unit in the last of bfloat16's 8 bits, 2**-9, and where that turns the sign of a ReLU's
input, a whole term is gone. So gradients are compared by their norm, to 2**-5, which is a thirtieth of what a step changes.
"""

from __future__ import annotations

import contextlib
import sys

import pytest
import torch
import torch.nn.functional as F
from ranks import WORLD, join, leave, run_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from habana_mp import hmp

pytestmark = pytest.mark.xdist_group("ranks_training")

STEPS, MICROBATCHES = 3, 2


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.LayerNorm(64), nn.Linear(64, 64))


def batches():
    torch.manual_seed(1)
    return [(torch.randn(8, 64), torch.randint(0, 64, (8,))) for _ in range(STEPS * MICROBATCHES)]


def fsdp(module, *, reshard):
    mesh = init_device_mesh("cpu", (WORLD,))
    for layer in module:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
    return fully_shard(module, mesh=mesh, reshard_after_forward=reshard)


def tensor_parallel(module):
    mesh = init_device_mesh("cpu", (WORLD,))
    return parallelize_module(module, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


WAYS = {
    "ddp": DistributedDataParallel,
    "ddp, static graph": lambda module: DistributedDataParallel(
        module, gradient_as_bucket_view=False, static_graph=True
    ),
    "fsdp2": lambda module: fsdp(module, reshard=True),
    "fsdp2, weights kept": lambda module: fsdp(module, reshard=False),
    "tensor parallel": tensor_parallel,
}
FRONT_ENDS = {"convert": contextlib.nullcontext, "autocast": lambda: hmp.autocast("cpu", policy="hmp")}
OF_THE_NORM = 2**-5  # tensor parallel


@contextlib.contextmanager
def in_force(front_end):
    if front_end == "convert":
        hmp.convert()
    try:
        yield FRONT_ENDS[front_end]
    finally:
        hmp.revert()


def whole(value):
    return value.full_tensor() if isinstance(value, DTensor) else value.clone()


def train(module, parts, region):
    """Steps of two microbatches each, then a forward; ``parts`` are what is trained on of a batch, in turn."""
    optimizer = torch.optim.SGD(module.parameters(), 0.5)  # a step that a stale copy of a weight would show
    results = {"steps": []}
    hmp.cache.clear()
    data = batches()
    with hmp.report() as report:
        for step in range(STEPS):
            optimizer.zero_grad()
            for x, y in data[step * MICROBATCHES : (step + 1) * MICROBATCHES]:
                for part in parts:
                    with region():
                        loss = F.cross_entropy(module(part(x)), part(y)) / len(parts)
                    loss.backward()
            results["steps"].append([whole(parameter.grad) for parameter in module.parameters()])
            with hmp.disable_casts():
                optimizer.step()
        with torch.no_grad(), region():
            results["out"] = module(data[0][0])
    results["parameters"] = [whole(parameter.detach()) for parameter in module.parameters()]
    cast = {row["op"] for row in report.to_dict()["rows"] if row["casts"]}
    results["casts"] = {op: report.casts(op) for op in cast}
    results["backward_casts"] = {op: report.backward_casts(op) for op in cast}
    results["cache"] = hmp.cache.info()._asdict()
    return results


def half(rank):
    return lambda tensor: tensor.chunk(WORLD)[rank]


def everything(tensor):
    return tensor


def worker(folder):
    rank = join(folder)
    results = {}
    for front_end in FRONT_ENDS:
        for way, made in WAYS.items():
            with in_force(front_end) as region:
                parts = [everything if way == "tensor parallel" else half(rank)]
                results[front_end, way] = train(made(model()), parts, region)
    torch.save(results, f"{folder}/{rank}.pt")
    leave()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    ended = run_ranks(__file__, folder)
    assert [each.status for each in ended] == [0] * WORLD, "".join(each.err for each in ended)
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]


@pytest.fixture
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("front_end", FRONT_ENDS)
class TestAgainstOneProcess:
    @pytest.mark.usefixtures("_one_thread")
    def test_gradients_and_weights(self, ranks, front_end, way):
        tensor_parallel = way == "tensor parallel"
        with in_force(front_end) as region:
            one = train(model(), [everything] if tensor_parallel else [half(rank) for rank in range(WORLD)], region)
        for each in ranks:
            ours = each[front_end, way]
            assert ours["out"].dtype == one["out"].dtype == torch.bfloat16
            for mine, others in zip(
                [*ours["steps"], ours["parameters"]], [*one["steps"], one["parameters"]], strict=True
            ):
                assert {value.dtype for value in mine} == {torch.float32}
                for value, other in zip(mine, others, strict=True):
                    if tensor_parallel:
                        assert torch.dist(value, other) <= OF_THE_NORM * other.norm()
                    else:
                        torch.testing.assert_close(value, other, rtol=1e-5, atol=1e-6)

    def test_each_rank_counts_its_casts(self, ranks, front_end, way):
        """Input, three weights and three biases in each of seven forwards, the logits in six."""
        loss = {"convert": "cross_entropy", "autocast": "cross_entropy_loss"}[front_end]
        for each in ranks:
            assert each[front_end, way]["casts"] == {"linear": 49, loss: 6}
            # None of the input, which has no gradient; those of a DTensor, which torch casts, are not counted.
            assert each[front_end, way]["backward_casts"] == {"linear": 12 if way == "tensor parallel" else 36, loss: 6}

    def test_the_weight_cache(self, ranks, front_end, way):
        """Three weights in seven forwards: cast after each step, at hand for the second microbatch.

        Weights that FSDP2 gathers are in memory that it gives to others, and a DTensor is no plain tensor: both are cast each time.
        """
        hits = {
            "ddp": (9, 9),
            "ddp, static graph": (9, 9),
            "tensor parallel": (1, 3),
        }  # there the third linear is plain
        least, most = hits.get(way, (0, 0))
        for each in ranks:
            cache = each[front_end, way]["cache"]
            assert least <= cache["hits"] <= most
            assert not way.startswith("ddp") or cache["misses"] + cache["refreshed"] == 12
            assert not way.startswith("fsdp2") or cache["entries"] == 0

    def test_a_step_is_seen(self, ranks, front_end, way):
        """What the tolerance is not wide enough for: the gradients of another step."""
        for first, second in zip(*ranks[0][front_end, way]["steps"][:2], strict=True):
            assert torch.dist(first, second) > 30 * OF_THE_NORM * first.norm()


if __name__ == "__main__":
    worker(*sys.argv[1:])
