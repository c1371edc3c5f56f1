"""A tensor whose storage was freed or shrunk under it, as FSDP does: a cast raises, and reads no memory that is not there."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from cached_weight import BF16, FP32, ROW, N, X, is_fresh, weight
from torch import nn

from habana_mp import hmp

FRONT_ENDS = ("convert", "autocast")
LOWER = hmp.Policy.from_ops(lower=["linear", "relu", "matmul"])


def in_force(front_end):
    if front_end == "convert":
        hmp.convert(policy=LOWER)
        return contextlib.nullcontext()
    return hmp.autocast("cpu", policy=LOWER)


# What is left of the storage, and what the error says of it.
LEFT = {"freed": (0, "storage was freed"), "cut-short": (16, "storage has 16")}
# How the tensor lies in its storage.
LAYOUTS = {
    "dense": lambda: torch.randn(N, N),
    "transposed": lambda: torch.randn(N, N).t(),
    "every-other-column": lambda: torch.randn(N // 2, N)[:, ::2],
    "behind-an-offset": lambda: torch.randn(N + 1, N)[1:, :-1],
    "batch-of-transposed": lambda: torch.randn(4, N, N // 4).transpose(1, 2),
    "requires-grad": lambda: torch.randn(N, N, requires_grad=True),
}
# Of a tensor and of another to compute with.
CALLS = {
    "relu": lambda x: x.relu(),
    "linear-activation": lambda x: F.linear(x, torch.randn(3, x.shape[-1])),
    "linear-weight": lambda x: F.linear(torch.randn(3, x.shape[-1]), x),
}


class TestFreed:
    @pytest.mark.parametrize("front_end", FRONT_ENDS)
    @pytest.mark.parametrize("left", LEFT)
    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize("call", CALLS)
    def test_a_tensor(self, call, layout, left, front_end):
        x = LAYOUTS[layout]()
        if call == "linear-weight" and x.dim() > 2:
            x = x[0]
        kept, words = LEFT[left]
        x.untyped_storage().resize_(kept)
        with (
            in_force(front_end),
            pytest.raises(RuntimeError, match=f"shape needs .* bytes of storage, and its {words}"),
        ):
            CALLS[call](x)

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_from_one_byte_too_few(self, layout):
        hmp.convert(policy=LOWER)
        x = LAYOUTS[layout]()
        last = x.storage_offset() + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride()))
        needed = 4 * (last + 1)
        x.untyped_storage().resize_(needed)
        torch.relu(x)
        x.untyped_storage().resize_(needed - 1)
        with pytest.raises(RuntimeError, match=f"needs {needed} bytes of storage, and its storage has {needed - 1}"):
            torch.relu(x)

    @pytest.mark.parametrize("front_end", FRONT_ENDS)
    @pytest.mark.parametrize("frozen", [False, True], ids=["trained", "frozen"])
    @pytest.mark.parametrize("used", [0, 2], ids=["never-cached", "cached"])
    def test_a_weight(self, used, frozen, front_end):
        """Neither read nor served from its copy; cast anew when it has memory again."""
        p = weight(frozen)
        numbers = p.detach().clone()
        with in_force(front_end):
            for _ in range(used):
                F.linear(X, p)
            p.untyped_storage().resize_(0)
            for _ in range(2):
                with pytest.raises(RuntimeError, match="was freed"):
                    F.linear(X, p)
            p.untyped_storage().resize_(4 * N * N)
            with torch.no_grad():
                p.copy_(2 * numbers)
            expected = F.linear(X.to(BF16), (2 * numbers).to(BF16))
            assert torch.equal(F.linear(X, p), expected)

    def test_a_copy_in_the_cache(self):
        """Freed by who finds it in the graph."""
        hmp.convert(policy=LOWER)
        p = weight()
        x = X.clone().requires_grad_()
        F.linear(x, p).grad_fn._saved_mat2.untyped_storage().resize_(0)
        assert is_fresh(p)
        with torch.no_grad():
            p[ROW] = 3
        assert is_fresh(p)

    def test_a_gradient(self):
        hmp.convert(policy=LOWER)
        x = torch.randn(N, N, requires_grad=True)
        y = torch.relu(x)
        gradient = torch.ones(N, N, dtype=BF16)

        def free(grad):
            grad.untyped_storage().resize_(0)

        node = y.grad_fn.next_functions[0][0]
        assert node.name() == "CopyBackwards"
        node.register_prehook(lambda grads: free(grads[0]))
        with pytest.raises(RuntimeError, match="was freed"):
            y.backward(gradient)

    @pytest.mark.parametrize("which", ["source", "out"])
    def test_by_hand(self, which):
        x, out = torch.randn(N, N), torch.empty(N, N, dtype=BF16)
        (x if which == "source" else out).untyped_storage().resize_(16)
        with pytest.raises(RuntimeError, match="storage has 16"):
            hmp.cast(x, BF16, out=out)
        if which == "source":
            with pytest.raises(RuntimeError, match="storage has 16"):
                hmp.cast(x, BF16)


NO_MEMORY = {
    "empty": lambda: torch.empty(0, N),
    "empty-behind-the-end": lambda: torch.randn(N, N)[N:],
    "empty-and-freed": lambda: freed(torch.empty(0, N)),
    "meta": lambda: torch.empty(N, N, device="meta"),
    "freed-meta": lambda: freed(torch.empty(N, N, device="meta")),
    "expanded": lambda: torch.randn(1, 1).expand(N, N),
    "end-of-its-storage": lambda: torch.randn(3 * N)[-N:].view(1, N),
}


def freed(tensor):
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("made", NO_MEMORY)
def test_what_needs_no_more_memory_than_it_has(made, front_end):
    x = NO_MEMORY[made]()
    with in_force(front_end):
        y = torch.relu(x)
    # A region for the CPU does not act on meta tensors.
    low = BF16 if front_end == "convert" or x.device.type == "cpu" else FP32
    assert (y.dtype, y.shape, y.device) == (low, x.shape, x.device)
    if x.device.type == "cpu":
        assert torch.equal(y.to(FP32), torch.relu(x.to(BF16)).to(FP32))


def test_a_module_on_the_meta_device():
    hmp.convert(policy=LOWER)
    with torch.device("meta"):
        module = nn.Linear(N, N)
    for _ in range(2):
        y = module(torch.empty(2, N, device="meta"))
        assert (y.dtype, y.shape) == (BF16, (2, N))
