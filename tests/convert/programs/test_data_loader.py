"""Workers that a data loader forks, under convert."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from habana_mp import hmp

BF16, FP32 = torch.bfloat16, torch.float32


def collate(samples):
    """Runs converted ops in the worker, casts on and off."""
    stacked = torch.stack(samples)
    with hmp.disable_casts():
        off = torch.mm(stacked, stacked.t())
    on = torch.mm(stacked, stacked.t())
    return stacked, on, off, F.softmax(on, -1)


def doubled(samples):
    return torch.mm(samples[0], samples[0])


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

    def test_workers_that_are_spawned_cast_nothing(self):
        hmp.convert()
        loader = DataLoader(
            [torch.eye(4)] * 2, batch_size=2, num_workers=1, collate_fn=doubled, multiprocessing_context="spawn"
        )
        assert next(iter(loader)).dtype == FP32
        assert doubled([torch.eye(4)]).dtype == BF16

    def test_worker_made_inside_disable_casts(self):
        """A forked process starts as the thread that forked it."""
        hmp.convert()
        loader = DataLoader(
            list(torch.ones(2, 4)), batch_size=2, num_workers=1, collate_fn=collate, multiprocessing_context="fork"
        )
        with hmp.disable_casts():
            (batch,) = list(loader)
        assert [t.dtype for t in batch] == [FP32, FP32, FP32, FP32]
