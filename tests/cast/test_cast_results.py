"""The result of a cast and its memory: numbers and strides of Tensor.to, and no memory that two live results share."""

import gc
import itertools
import subprocess
import sys
import threading

import pytest
import torch
from cast_leaves import BF16, FP16, FP32, LEAVES, numbers, pairs

from habana_mp import hmp

LARGE = 1 << 24  # elements: 32 MiB in a low dtype, from where memory is reused

pytestmark = pytest.mark.usefixtures("empty_cache")

SOURCES = {
    **LEAVES,
    "sliced-columns": lambda: numbers(6, 9)[:, 2:5],
    "negative-free-flip": lambda: numbers(6, 4).flip(0),
    "windows": lambda: numbers(10).unfold(0, 4, 2),
    "diagonal": lambda: numbers(5, 5).diagonal(),
    "batch-transposed": lambda: numbers(2, 3, 4).transpose(0, 1),
    "zero-dims": lambda: numbers(0),
    "expanded-empty": lambda: numbers(1, 0, 2).expand(5, 0, 2),
    "conj-free": lambda: torch.view_as_real(torch.complex(numbers(4), numbers(4)))[..., 1],
}


class TestResults:
    @pairs
    @pytest.mark.parametrize("layout", SOURCES)
    def test_numbers_and_strides(self, layout, source, to):
        x = SOURCES[layout]().to(source)
        result, expected = hmp.cast(x, to), x.to(to)
        assert result.dtype == to
        assert (result.shape, result.stride()) == (expected.shape, expected.stride())
        assert torch.equal(result, expected)
        assert result.storage_offset() == 0
        assert result.untyped_storage().nbytes() == expected.untyped_storage().nbytes()

    @pytest.mark.parametrize("layout", SOURCES)
    def test_views_as_they_lie(self, layout):
        """Not cast to another dtype first, which would straighten them."""
        x = SOURCES[layout]()
        for to in (BF16, FP16):
            result, expected = hmp.cast(x, to), x.to(to)
            assert torch.equal(result, expected)
            assert result.stride() == expected.stride()

    def test_a_result_may_be_resized_and_shared(self):
        y = hmp.cast(numbers(6), BF16)
        y.resize_(100)
        assert torch.equal(y[:6], numbers(6).to(BF16))
        y.share_memory_()
        assert y.is_shared()


def resident():
    with open("/proc/self/statm") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * 4096


@pytest.fixture
def large():
    x = torch.linspace(-3, 5, LARGE)
    yield x
    hmp.cache.clear()


class TestLargeResults:
    """From 1 MiB on the memory of a freed result serves the next one, of the same size or down to half of it."""

    def test_numbers(self, large):
        expected = large.to(BF16)
        for _ in range(3):
            assert torch.equal(hmp.cast(large, BF16), expected)
        assert torch.equal(hmp.cast(large.view(1 << 12, -1).t(), BF16), expected.view(1 << 12, -1).t())

    def test_live_results_have_memory_of_their_own(self, large):
        results = [hmp.cast(large, BF16) for _ in range(3)]
        assert len({result.data_ptr() for result in results}) == 3
        results[0].zero_()
        assert torch.equal(results[1], results[2])
        kept = results[1]
        view = results[2][5:]
        del results
        others = [hmp.cast(large, BF16) for _ in range(2)]
        assert not {other.data_ptr() for other in others} & {kept.data_ptr(), view.untyped_storage().data_ptr()}
        others[0].zero_()
        assert torch.equal(kept[5:], view)

    def test_freed_memory_is_used_again(self, large):
        first = hmp.cast(large, BF16)
        address = first.data_ptr()
        del first
        small = hmp.cast(large[: LARGE // 4], FP16)  # it would waste the rest
        assert small.data_ptr() != address
        del small
        second = hmp.cast(large[: LARGE - 5].flip(0), FP16)
        assert second.data_ptr() == address
        del second
        third = hmp.cast(large, FP16)
        assert third.data_ptr() == address
        assert torch.equal(third, large.to(FP16))

    def test_clear_gives_it_back(self, large):
        hmp.cast(large, BF16)
        before = resident()
        hmp.cache.clear()
        assert resident() < before - (24 << 20)

    def test_none_is_kept_while_weights_are_offloaded(self, large):
        """Whoever offloads weights wants their memory."""
        hmp.cast(large, BF16)
        before = resident()
        models = [torch.nn.Linear(256, 256) for _ in range(2)]
        for model in models:
            hmp.cache.offload(model)
        assert resident() < before - (24 << 20)
        del models[0], model
        gc.collect()
        hmp.cast(large, BF16)
        assert resident() < before - (24 << 20)
        hmp.cache.restore(models[0])
        first = hmp.cast(large, BF16)
        address = first.data_ptr()
        del first
        assert hmp.cast(large, BF16).data_ptr() == address

    @pytest.mark.parametrize("elements", [1, LARGE // 2, 2 * LARGE + 7])
    def test_a_result_may_be_resized(self, large, elements):
        y = hmp.cast(large, BF16)
        expected = y[: min(elements, LARGE)].clone()
        y.resize_(elements)
        assert torch.equal(y[: min(elements, LARGE)], expected)
        y.fill_(1)
        del y
        assert torch.equal(hmp.cast(large, BF16), large.to(BF16))

    def test_a_storage_may_be_resized_to_nothing_and_back(self, large):
        y = hmp.cast(large, BF16)
        y.untyped_storage().resize_(0)
        z = hmp.cast(large, BF16)
        y.untyped_storage().resize_(2 * LARGE)
        y.fill_(0)
        assert torch.equal(z, large.to(BF16))

    def test_copies_pickles_and_shared_memory(self, large):
        import copy

        y = hmp.cast(large, BF16)
        assert torch.equal(copy.deepcopy(y), y)
        assert torch.equal(y.clone(), y)
        y.share_memory_()
        assert torch.equal(y, large.to(BF16))

    def test_numpy_keeps_it(self, large):
        array = hmp.cast(large, FP16).numpy()
        expected = array.copy()
        for _ in range(2):
            hmp.cast(large, FP16).zero_()
        assert (array == expected).all()

    def test_freed_in_another_thread(self, large):
        box = [hmp.cast(large, BF16)]
        address = box[0].data_ptr()
        thread = threading.Thread(target=box.clear)
        thread.start()
        thread.join()
        assert hmp.cast(large, BF16).data_ptr() == address

    def test_gradients(self):
        """A large gradient lies in memory that is reused, until the leaf lets it go."""
        x = torch.ones(LARGE, dtype=BF16, requires_grad=True)
        y = hmp.cast(x, FP32)
        y.backward(torch.full((LARGE,), 3.0))
        grad_of_x = x.grad
        hmp.cast(y.detach(), BF16).zero_()
        assert grad_of_x.eq(3).all()
        x.grad = None
        assert grad_of_x.eq(3).all()

    def test_conversion_and_inference(self):
        """What ops get lies there as well."""
        hmp.convert(policy=hmp.Policy.from_ops(lower=["relu"]))
        x = torch.linspace(-1, 1, LARGE)
        expected = x.to(BF16).relu()
        for _ in range(2):
            with torch.inference_mode():
                assert torch.equal(torch.relu(x), expected)


SIZES = [0, 1, 32, 33, 64, 1000, 4096, 4097, 1 << 16]  # elements: around those of the memory that is kept


@pytest.mark.parametrize("size", SIZES)
class TestSmallResults:
    """Below, memory is kept by sizes; no two live results share any of it."""

    def test_live_results_have_memory_of_their_own(self, size):
        x = numbers(size)
        kept = []
        for turn in range(100):
            kept.append(hmp.cast(x, BF16 if turn % 2 else FP16).fill_(turn))
            if turn % 3 == 0:
                kept.pop(turn // 4)
        assert all(result.eq(result[:1]).all() for result in kept)
        begins = sorted(result.data_ptr() for result in kept if size)
        assert all(end - begin >= 2 * size for begin, end in itertools.pairwise(begins))
        assert all(begin % 64 == 0 for begin in begins)
        values = [result[0].item() for result in kept if size]
        assert len(set(values)) == len(values)

    def test_a_result_may_be_resized(self, size):
        x = numbers(size)
        y, other = hmp.cast(x, BF16), hmp.cast(x, BF16)
        for elements in (2 * size + 50, 5, 5000):
            y.resize_(elements).fill_(7)
        del y
        assert torch.equal(other, x.to(BF16))
        assert torch.equal(hmp.cast(x, BF16), other)

    def test_views_numpy_and_graphs_keep_it(self, size):
        x = numbers(size).requires_grad_()
        low = hmp.cast(x, FP16)
        array, view, squared = low.detach().numpy(), low.detach()[size // 2 :], low**2
        del low
        expected = x.detach().to(FP16)
        for _ in range(20):
            hmp.cast(x.detach(), FP16).fill_(9)
        assert torch.equal(torch.from_numpy(array.copy()), expected)
        assert torch.equal(view, expected[size // 2 :])
        (grad_of_x,) = torch.autograd.grad(squared.sum(), x)
        assert torch.equal(grad_of_x, (2 * expected).float())

    def test_freed_by_other_threads_and_after_their_end(self, size):
        x = numbers(size)
        box = []

        def make():
            box.extend(hmp.cast(x, BF16) for _ in range(40))
            del box[::2]

        for _ in range(3):
            thread = threading.Thread(target=make)
            thread.start()
            thread.join()
        fresh = [hmp.cast(x, BF16).zero_() for _ in range(40)]
        assert all(torch.equal(result, x.to(BF16)) for result in box)
        box.clear()
        fresh += [hmp.cast(x, BF16) for _ in range(40)]
        assert all(result.eq(0).all() for result in fresh[:40])


def test_results_that_live_to_the_end_of_the_process():
    program = """
import threading, torch
from habana_mp import hmp
class Kept(threading.local): pass
local, kept = Kept(), [hmp.cast(torch.ones(n), "bfloat16") for n in (1, 100, 4096, 1 << 24)]
local.tensors = [hmp.cast(torch.ones(n), "float16") for n in (1, 100, 4096, 1 << 24)]
def work():
    local.tensors = [hmp.cast(torch.ones(n), "float16") for n in (1, 100, 4096, 1 << 24)]
thread = threading.Thread(target=work); thread.start(); thread.join()
torch.kept = kept
print("end")
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
