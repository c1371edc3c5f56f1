"""The weight cache on streams that are late: each reads what it has cast itself, and memory that ended is not written too early."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp

BF16 = torch.bfloat16
WIDTH = 128
CLOSE = {"rtol": 2.0**-7, "atol": 2.0**-7}  # a bit of bfloat16: products may sum in another order


def busy(microseconds=20_000):
    """Keeps the current stream busy for so long."""
    if torch.accelerator.current_accelerator().type == "cuda":
        torch.cuda._sleep(2_000 * microseconds)
    else:
        torch.ops.late.sleep(microseconds)


def streams(device, count=2):
    """New ones, which begin when the current one has done all that it has been given."""
    made = [torch.Stream(device) for _ in range(count)]
    for each in made:
        each.wait_stream(torch.accelerator.current_stream())
    return made


def weight(device, value=None):
    numbers = torch.randn(WIDTH, WIDTH) if value is None else torch.full((WIDTH, WIDTH), value)
    return nn.Parameter(numbers.to(device))


def product(x, p):
    """In bfloat16, computed on the host."""
    return F.linear(x.cpu().to(BF16), p.detach().cpu().to(BF16)).float()


def counts():
    info = hmp.cache.info()
    return info.misses, info.refreshed, info.hits, info.entries


STEPS = {
    "a stream uses its own copy": ("0 0 0", (1, 0, 2, 1)),
    "another stream casts for itself": ("0 1 1", (2, 0, 1, 1)),
    "streams that take turns cast at each turn": ("0 1 0 1", (4, 0, 0, 1)),
    "a weight that has changed is cast into the same memory": ("0 change 0 0", (1, 1, 1, 1)),
    "not into memory that another stream may read": ("0 change 1", (2, 0, 0, 1)),
}


@pytest.mark.parametrize("name", STEPS)
def test_which_stream_casts(accelerator, name):
    hmp.convert()
    steps, expected = STEPS[name]
    p, x = weight(accelerator), torch.randn(4, WIDTH, device=accelerator)
    on = streams(accelerator)
    for step in steps.split():
        if step == "change":
            p.data.mul_(2)
            torch.accelerator.synchronize()
            continue
        with torch.no_grad(), on[int(step)]:
            y = F.linear(x, p)
            torch.accelerator.synchronize()
        torch.testing.assert_close(y.cpu().float(), product(x, p), **CLOSE)
    assert counts() == expected


@pytest.mark.parametrize("which", ["side", "default"])
def test_a_stream_does_not_read_a_copy_that_another_one_still_writes(accelerator, front_end, which):
    region = front_end()
    x = torch.randn(4, WIDTH, device=accelerator)
    for _ in range(5):
        p = weight(accelerator)
        torch.accelerator.synchronize()
        expected, found = product(x, p), []
        first, second = streams(accelerator)
        if which == "default":
            first = torch.accelerator.current_stream()
        with torch.inference_mode():
            with first:
                busy()
                with region():
                    found.append(F.linear(x, p))
            for stream in (second, first, second):
                with stream, region():
                    found.append(F.linear(x, p))
        torch.accelerator.synchronize()
        for y in found:
            torch.testing.assert_close(y.cpu().float(), expected, **CLOSE)


def test_a_stream_does_not_write_a_copy_that_another_one_still_reads(accelerator, front_end):
    """The weight changes after the first stream's product is queued, and the second one casts it anew."""
    region = front_end()
    x = torch.randn(4, WIDTH, device=accelerator)
    for _ in range(5):
        p = weight(accelerator)
        torch.accelerator.synchronize()
        first, second = streams(accelerator)
        with torch.inference_mode(), first, region():
            F.linear(x, p)  # the copy is there
            torch.accelerator.synchronize()
            before = product(x, p)
            busy()
            y = F.linear(x, p)
        old = p.data  # which torch.autocast may read
        p.data = old.clone().mul_(-1)
        torch.accelerator.current_stream().synchronize()
        with torch.inference_mode(), second, region():
            z = F.linear(x, p)
        torch.accelerator.synchronize()
        torch.testing.assert_close(y.cpu().float(), before, **CLOSE)
        torch.testing.assert_close(z.cpu().float(), -before, **CLOSE)


def test_memory_of_copies_that_ended_is_not_reused_too_early(accelerator, front_end):
    """Two streams take turns with weights that change: a copy is freed while its product may be queued still."""
    region = front_end()
    x = torch.randn(4, WIDTH, device=accelerator)
    weights = [weight(accelerator, value / 8) for value in range(4)]
    on, found = streams(accelerator), []
    with torch.inference_mode():
        for turn in range(40):
            with on[turn % 2], region():
                busy(500)
                found.append((turn % 4, F.linear(x, weights[turn % 4])))
            if turn % 8 == 7:
                hmp.cache.clear()
    torch.accelerator.synchronize()
    expected = [product(x, p) for p in weights]
    for which, y in found:
        torch.testing.assert_close(y.cpu().float(), expected[which], rtol=2**-6, atol=2**-6)


def test_a_graph_keeps_its_copy(accelerator, front_end):
    """A forward pass is queued, and its weights change by .data before its backward pass, which is that of the old ones."""
    region = front_end()
    p, x = weight(accelerator), torch.randn(4, WIDTH, device=accelerator, requires_grad=True)
    with region():
        y = F.linear(x, p)
    expected = torch.ones(4, WIDTH, dtype=BF16) @ p.detach().cpu().to(BF16)
    p.data.mul_(3)
    with region(), torch.no_grad():
        F.linear(x, p)  # cast anew
    y.backward(torch.ones_like(y))
    torch.testing.assert_close(x.grad.cpu(), expected.float(), **CLOSE)


def train(model, batches, region, on=None):
    """Steps, on the streams in turn."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for turn, x in enumerate(batches):
        stream = torch.accelerator.current_stream() if on is None else on[turn % len(on)]
        stream.wait_stream(torch.accelerator.current_stream() if turn == 0 or on is None else on[(turn - 1) % len(on)])
        with stream:
            with region():
                loss = F.mse_loss(model(x).float(), x)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
    torch.accelerator.synchronize()
    return [loss.item() for loss in losses]


def net(device):
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)).to(device)


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")
@pytest.mark.parametrize("count", [1, 2], ids=["one side stream", "two in turn"])
def test_training_on_side_streams(accelerator, front_end, count):
    model = net(accelerator)
    other = copy.deepcopy(model)
    batches = [torch.randn(8, WIDTH, device=accelerator) for _ in range(6)]
    region = front_end()
    expected = train(model, batches, region)
    assert train(other, batches, region, streams(accelerator, count)) == pytest.approx(expected, rel=0.01)
    for p, q in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(q, p, **CLOSE)


def test_inputs_of_another_stream_and_of_pinned_memory(accelerator, front_end):
    """As data loaders do it: a copy from pinned memory on a side stream, record_stream, and the memory freed at once."""
    region, p = front_end(), weight(accelerator)
    hosts = [torch.randn(64, WIDTH).pin_memory() for _ in range(12)]
    (side,) = streams(accelerator, 1)
    found = []
    with torch.no_grad():
        for host in hosts:
            with side:
                x = host.to(accelerator, non_blocking=True)
            torch.accelerator.current_stream().wait_stream(side)
            x.record_stream(torch.accelerator.current_stream())
            with region():
                found.append(F.linear(x, p))
            del x
    torch.accelerator.synchronize()
    for host, y in zip(hosts, found):
        torch.testing.assert_close(y.cpu().float(), product(host, p), **CLOSE)


def test_threads_with_streams_of_their_own(accelerator, front_end):
    """They share a model. A region is of its thread."""
    if front_end.is_torch:
        pytest.skip("torch.autocast has one cache for all threads, which takes copies that other streams still write")
    region, p = front_end(), weight(accelerator)
    x = torch.randn(4, WIDTH, device=accelerator)
    expected, wrong = product(x, p), []
    on = streams(accelerator, 3)

    def work(stream):
        for turn in range(20):
            with torch.inference_mode(turn % 2 == 0), torch.no_grad(), stream, region():
                y = F.linear(x, p)
            stream.synchronize()
            if y.dtype != BF16 or not torch.allclose(y.cpu().float(), expected, **CLOSE):
                wrong.append((stream, turn, y.dtype))

    threads = [threading.Thread(target=work, args=(stream,)) for stream in on]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


@pytest.mark.skipif("torch.accelerator.device_count() < 2")
class TestTwoDevices:
    def test_replicas(self, accelerator, front_end):
        """The same model on each, at once: a copy is for the device of its weight."""
        models = [net(f"{accelerator}:0")]
        models.append(copy.deepcopy(models[0]).to(f"{accelerator}:1"))
        x = torch.randn(8, WIDTH)
        region, found = front_end(), []
        for _ in range(3):
            with region():
                found.append([model(x.to(f"{accelerator}:{i}")) for i, model in enumerate(models)])
            for model in models:
                for p in model.parameters():
                    p.data.mul_(1.1)
        for first, second in found:
            assert (first.device.index, second.device.index) == (0, 1)
            torch.testing.assert_close(first.cpu(), second.cpu(), **CLOSE)

    def test_a_weight_that_moves(self, accelerator, front_end):
        """Its copy is on the device where the weight is."""
        region, p, x = front_end(), weight(f"{accelerator}:0"), torch.randn(4, WIDTH)
        for index in (0, 1, 1, 0):
            p.data = p.data.to(f"{accelerator}:{index}")
            with torch.no_grad(), region():
                y = F.linear(x.to(p.device), p)
            assert y.device.index == index
            torch.testing.assert_close(y.cpu().float(), product(x, p), **CLOSE)

    def test_streams_of_the_second(self, accelerator, front_end):
        """The cache tells the streams of the second device apart, as it does those of the first."""
        region = front_end()
        with torch.accelerator.device_index(1):
            p, x = weight(f"{accelerator}:1"), torch.randn(4, WIDTH, device=f"{accelerator}:1")
            torch.accelerator.synchronize()
            first, second = streams(f"{accelerator}:1")
            with torch.inference_mode():
                with first:
                    busy()
                    with region():
                        F.linear(x, p)
                with second, region():
                    y = F.linear(x, p)
            torch.accelerator.synchronize()
        torch.testing.assert_close(y.cpu().float(), product(x, p), **CLOSE)
