"""The weight cache on CUDA streams, and graphs captured under a policy. Nothing of it was run on a GPU yet (docs/versions.md)."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp

BF16 = torch.bfloat16
WIDTH = 512
CLOSE = {"rtol": 2.0**-7, "atol": 2.0**-7}  # a bit of bfloat16: a captured product may sum in another order

pytestmark = pytest.mark.usefixtures("cuda")


@contextlib.contextmanager
def converted():
    hmp.convert(policy="balanced")
    yield lambda **_: contextlib.nullcontext()


@contextlib.contextmanager
def in_regions():
    yield lambda **options: hmp.autocast("cuda", BF16, policy=hmp.Policy.load("balanced"), **options)


FRONT_ENDS = pytest.mark.parametrize("front_end", [converted, in_regions], ids=["convert", "region"])


def net():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)).cuda()


def change(model):
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(-1.5)


class TestStreams:
    def test_a_stream_does_not_read_a_copy_that_another_one_still_writes(self):
        """Each stream casts for itself. The first one is kept busy, so that its cast is late."""
        hmp.convert()
        p, x = nn.Parameter(torch.randn(4096, 4096, device="cuda")), torch.randn(4, 4096, device="cuda")
        first, second = torch.cuda.Stream(), torch.cuda.Stream()
        for turn in range(5):
            with torch.inference_mode():
                with hmp.disable_casts():
                    expected = F.linear(x.to(BF16), p.to(BF16))
                torch.cuda.synchronize()
                found = []
                with torch.cuda.stream(first):
                    torch.cuda._sleep(50_000_000)
                    found.append(F.linear(x, p))
                for stream in (second, first, second):
                    with torch.cuda.stream(stream):
                        found.append(F.linear(x, p))
                torch.cuda.synchronize()
            for y in found:
                torch.testing.assert_close(y, expected, **CLOSE)
            with torch.no_grad():
                p[turn].fill_(turn)
        assert hmp.cache.info().hits == 0

    def test_a_stream_uses_its_own_copy_again(self):
        hmp.convert()
        p, x = nn.Parameter(torch.randn(WIDTH, WIDTH, device="cuda")), torch.randn(4, WIDTH, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()), torch.inference_mode():
            for _ in range(3):
                F.linear(x, p)
        torch.cuda.synchronize()
        assert (hmp.cache.info().misses, hmp.cache.info().hits) == (1, 2)

    def test_memory_of_copies_that_ended_is_not_reused_too_early(self):
        """Two streams take turns with weights that change: a copy is freed while its product may be queued still."""
        hmp.convert()
        x = torch.randn(4, 2048, device="cuda")
        streams = torch.cuda.Stream(), torch.cuda.Stream()
        weights = [nn.Parameter(torch.full((2048, 2048), value / 8, device="cuda")) for value in range(4)]
        torch.cuda.synchronize()
        found = []
        with torch.inference_mode():
            for turn in range(40):
                with torch.cuda.stream(streams[turn % 2]):
                    torch.cuda._sleep(1_000_000)
                    found.append((turn % 4, F.linear(x, weights[turn % 4])))
                if turn % 8 == 7:
                    hmp.cache.clear()
            torch.cuda.synchronize()
            with hmp.disable_casts():
                expected = [F.linear(x.to(BF16), p.to(BF16)) for p in weights]
        for which, y in found:
            torch.testing.assert_close(y, expected[which], **CLOSE)


class TestGraphs:
    @FRONT_ENDS
    def test_captured_inference(self, front_end):
        """A replay casts the weights anew, so it sees that they have changed. A copy that was cached before is not in the graph."""
        with front_end() as region, torch.no_grad():
            model, x = net().eval(), torch.randn(8, WIDTH, device="cuda")

            def infer():
                with region():
                    return model(x)

            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    infer()
            torch.cuda.current_stream().wait_stream(side)
            infer()  # so that there are copies of this stream
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = infer()
            for _ in range(3):
                change(model)
                x.normal_()
                graph.replay()
                torch.testing.assert_close(y, infer(), **CLOSE)

    @FRONT_ENDS
    def test_a_captured_training_step(self, front_end):
        """Forward, backward and the optimizer's step in one graph. After a replay eager code sees the new weights."""
        with front_end() as region:
            model, x, target = net(), torch.randn(8, WIDTH, device="cuda"), torch.randn(8, WIDTH, device="cuda")
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            def step():
                optimizer.zero_grad(set_to_none=True)
                with region():
                    loss = F.mse_loss(model(x), target)
                loss.backward()
                optimizer.step()
                return loss

            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    step()
            torch.cuda.current_stream().wait_stream(side)
            eager = copy.deepcopy(model)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                loss = step()
            model.load_state_dict(eager.state_dict())

            other = torch.optim.SGD(eager.parameters(), lr=0.1)
            for _ in range(4):
                graph.replay()
                with region():
                    expected = F.mse_loss(eager(x), target)
                expected.backward()
                other.step()
                other.zero_grad()
                torch.testing.assert_close(loss, expected, **CLOSE)
                for p, q in zip(model.parameters(), eager.parameters()):
                    torch.testing.assert_close(p, q, **CLOSE)
                with torch.no_grad(), region():
                    torch.testing.assert_close(model(x), eager(x), **CLOSE)

    @FRONT_ENDS
    def test_make_graphed_callables(self, front_end):
        with front_end() as region:
            model, x = net(), torch.randn(8, WIDTH, device="cuda", requires_grad=True)
            eager = copy.deepcopy(model)
            with region(cache_enabled=False):  # torch asks for it, of its own regions too
                graphed = torch.cuda.make_graphed_callables(model, (x,))
            for _ in range(3):
                with region(cache_enabled=False):
                    y, expected = graphed(x), eager(x)
                torch.testing.assert_close(y, expected, **CLOSE)
                for each in (y, expected):
                    each.float().square().mean().backward()
                for p, q in zip(model.parameters(), eager.parameters()):
                    torch.testing.assert_close(p.grad, q.grad, **CLOSE)
                    p.grad = q.grad = None
                change(model)
                change(eager)

    @pytest.mark.filterwarnings("ignore::UserWarning")  # the compiler's advice on settings
    def test_compiled_inference_with_graphs(self):
        """mode="reduce-overhead" captures what it has compiled."""
        hmp.convert(policy="balanced")
        model, x = net().eval(), torch.randn(8, WIDTH, device="cuda")
        compiled = torch.compile(model, mode="reduce-overhead")
        with torch.no_grad():
            for _ in range(5):
                torch.compiler.cudagraph_mark_step_begin()
                torch.testing.assert_close(compiled(x).clone(), model(x), **CLOSE)
                change(model)
