"""A function that was compiled under convert follows what is in force, and compiled code is kept: in the process, on disk."""

import torch
import torch._dynamo
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache

from habana_mp import hmp

BF16, FP32 = torch.bfloat16, torch.float32


class TestRecompilation:
    """A compiled function follows what is in force, and what is compiled is kept."""

    def test_follows_convert_revert_disable_casts(self):
        counter = CompileCounter()
        function = torch.compile(lambda a: (torch.mm(a, a), a @ a, F.softmax(a, -1)), backend=counter, fullgraph=True)
        a = torch.randn(4, 4)

        def dtypes():
            return [t.dtype for t in function(a)]

        plain, converted = [FP32, FP32, FP32], [BF16, BF16, FP32]
        assert dtypes() == plain
        hmp.convert()
        assert dtypes() == converted
        with hmp.disable_casts():
            assert dtypes() == plain
        assert dtypes() == converted
        hmp.convert(policy=hmp.Policy.from_ops(lower=["softmax"]))
        assert dtypes() == [FP32, FP32, BF16]
        hmp.convert(low_precision_type=torch.float16)
        assert dtypes() == [torch.float16, torch.float16, FP32]
        hmp.revert()
        assert dtypes() == plain

    def test_what_is_compiled_is_kept(self):
        counter = CompileCounter()
        function = torch.compile(lambda a: torch.mm(a, a), backend=counter, fullgraph=True)
        a = torch.randn(4, 4)
        hmp.convert()
        for _ in range(3):
            function(a)
            with hmp.disable_casts():
                function(a)
        assert counter.frame_count == 2

    def test_follows_the_dtype_of_the_input(self):
        function = torch.compile(lambda a: torch.softmax(a, -1), backend="aot_eager", fullgraph=True)
        hmp.convert()
        assert [function(torch.ones(2, 2, dtype=dtype)).dtype for dtype in (FP32, BF16, torch.float64)] == [
            FP32,
            FP32,
            torch.float64,
        ]

    def test_a_forward_compiled_on_and_a_backward_run_off(self):
        weight = torch.randn(4, 4, requires_grad=True)
        function = torch.compile(lambda w: torch.mm(w, w).float().sum(), backend="aot_eager", fullgraph=True)
        hmp.convert()
        loss = function(weight)
        with hmp.disable_casts():
            loss.backward()
        compiled, weight.grad = weight.grad, None
        torch.mm(weight, weight).float().sum().backward()
        assert torch.equal(compiled, weight.grad)


class TestCaches:
    def test_key_tag(self):
        config = torch.compiler.config
        before = config.cache_key_tag
        tags = set()
        for policy in ("hmp", "hmp-o1", "hmp-o2", hmp.Policy.from_ops(lower=["mm"])):
            hmp.convert(policy=policy)
            tags.add(config.cache_key_tag)
        hmp.convert(low_precision_type=torch.float16)
        tags.add(config.cache_key_tag)
        hmp.revert()
        assert (len(tags), before in tags, config.cache_key_tag) == (5, False, before)

    def test_key_tag_of_the_user_is_kept(self):
        config = torch.compiler.config
        before = config.cache_key_tag
        try:
            config.cache_key_tag = "mine"
            hmp.convert()
            hmp.convert(policy="hmp-o1")
            assert config.cache_key_tag.startswith("mine")
            assert config.cache_key_tag.count("habana_mp") == 1
            hmp.revert()
            assert config.cache_key_tag == "mine"
        finally:
            config.cache_key_tag = before

    def test_on_disk(self):
        """Tensor.mm stands in a graph by name, whatever it casts: one cache folder, no entry shared between two policies."""
        a = torch.ones(4, 4)

        def compiled():
            torch._dynamo.reset()
            counters.clear()
            dtype = torch.compile(lambda a: a.mm(a), fullgraph=True)(a).dtype
            return (
                dtype,
                counters["aot_autograd"]["autograd_cache_hit"],
                counters["aot_autograd"]["autograd_cache_miss"],
            )

        with fresh_cache():
            seen = [compiled()]
            for policy in ("hmp", "hmp-o1", "hmp"):
                hmp.convert(policy=policy)
                seen.append(compiled())
            hmp.revert()
            seen.append(compiled())
        assert seen == [(FP32, 0, 1), (BF16, 0, 1), (BF16, 0, 1), (BF16, 1, 0), (FP32, 1, 0)]
