"""DistributedDataParallel, FSDP2 and forking data loaders under convert.

Two processes over gloo train on half a batch each; their gradients are those of one process on the whole batch. The file is also
the program that the processes run.
"""

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from habana_mp import hmp

BF16, FP32 = torch.bfloat16, torch.float32


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4))


def batch():
    torch.manual_seed(1)
    return torch.randn(8, 8), torch.randint(0, 4, (8,))


def ddp(module):
    return DistributedDataParallel(module)


def ddp_without_a_view(module):
    return DistributedDataParallel(
        module, gradient_as_bucket_view=False, static_graph=True, find_unused_parameters=True
    )


def fsdp(module):
    mesh = init_device_mesh("cpu", (2,))
    for layer in module:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(module, mesh=mesh)


WAYS = {"ddp": ddp, "ddp-static-graph": ddp_without_a_view, "fsdp2": fsdp}


def whole(value):
    return value.full_tensor() if isinstance(value, DTensor) else value


def worker(rank, folder):
    """Each way in turn, in one process group: starting processes is what costs."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    x, y = (part.chunk(2)[rank] for part in batch())
    results = {}
    hmp.convert()
    for name, way in WAYS.items():
        module = way(model())
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        for _ in range(2):
            optimizer.zero_grad()
            out = module(x)
            F.cross_entropy(out, y).backward()
            with hmp.disable_casts():
                optimizer.step()
        gradients = [whole(parameter.grad) for parameter in module.parameters()]
        parameters = [whole(parameter.detach()) for parameter in module.parameters()]
        results[name] = {"out": out.dtype, "gradients": gradients, "parameters": parameters}
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def by_one_process():
    """The mean of what the two halves give, as the processes make it: a half batch is a matmul of its own."""
    x, y = batch()
    module = model()
    for _ in range(2):
        module.zero_grad()
        for half in range(2):
            (F.cross_entropy(module(x.chunk(2)[half]), y.chunk(2)[half]) / 2).backward()
        gradients = [parameter.grad for parameter in module.parameters()]
        with torch.no_grad(), hmp.disable_casts():
            for parameter in module.parameters():
                parameter -= 0.1 * parameter.grad
    return gradients, list(module.parameters())


@pytest.fixture
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_one_thread")
def test_two_processes_end_where_one_does(tmp_path):
    ranks = [
        subprocess.Popen([sys.executable, __file__, str(rank), tmp_path], stderr=subprocess.PIPE) for rank in range(2)
    ]
    errors = [process.communicate(timeout=120)[1].decode() for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], "".join(errors)
    hmp.convert()
    gradients, parameters = by_one_process()
    trained = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for way in WAYS:
        for rank in range(2):
            ours = trained[rank][way]
            assert ours["out"] == BF16, way
            for key, expected in (("gradients", gradients), ("parameters", parameters)):
                assert {value.dtype for value in ours[key]} == {FP32}, way
                for value, other in zip(ours[key], expected, strict=True):
                    torch.testing.assert_close(value, other, rtol=1e-6, atol=1e-7)
                assert all(map(torch.equal, ours[key], trained[0][way][key])), way


def collate(samples):
    """Runs converted ops in the worker, casts on and off."""
    stacked = torch.stack(samples)
    with hmp.disable_casts():
        off = torch.mm(stacked, stacked.t())
    on = torch.mm(stacked, stacked.t())
    return stacked, on, off, F.softmax(on, -1)


class TestDataLoader:
    @pytest.mark.filterwarnings(
        "ignore:This process .* is multi-threaded:DeprecationWarning"
    )  # Python 3.12 of any fork
    def test_workers_that_fork(self, capfd):
        data = list(torch.linspace(-1, 1, 32).view(8, 4))
        hmp.convert(isVerbose=True)  # the log is open in the workers too
        loader = DataLoader(data, batch_size=2, num_workers=2, collate_fn=collate, multiprocessing_context="fork")
        for _ in range(2):
            with hmp.disable_casts():
                assert torch.mm(torch.eye(2), torch.eye(2)).dtype == FP32
            batches = list(loader)
            assert [[t.dtype for t in batch] for batch in batches] == [[FP32, BF16, FP32, FP32]] * 4
        for (stacked, on, off, soft), samples in zip(batches, zip(data[::2], data[1::2], strict=True), strict=True):
            expected = collate(list(samples))
            assert all(map(torch.equal, (stacked, on, off, soft), expected))

    def test_worker_made_inside_disable_casts(self):
        """A forked process starts as the thread that forked it."""
        hmp.convert()
        loader = DataLoader(
            list(torch.ones(2, 4)), batch_size=2, num_workers=1, collate_fn=collate, multiprocessing_context="fork"
        )
        with hmp.disable_casts():
            (batch,) = list(loader)
        assert [t.dtype for t in batch] == [FP32, FP32, FP32, FP32]


if __name__ == "__main__":
    worker(int(sys.argv[1]), sys.argv[2])
