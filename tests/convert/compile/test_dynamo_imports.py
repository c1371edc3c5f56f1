"""convert before and after the import of torch._dynamo, which it does not import itself."""

import subprocess
import sys
import textwrap

import pytest
from subprograms import STRICT


def run_python(program: str, *arguments: str) -> str:
    """What a fresh interpreter prints; warnings there are errors too."""
    done = subprocess.run(
        [sys.executable, *STRICT, "-c", textwrap.dedent(program), *arguments],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


class TestImportOrder:
    PROGRAM = """
        import sys, torch
        before = sys.argv[1] == "before"
        from habana_mp import hmp
        if before:
            import torch._dynamo
        hmp.convert()
        assert ("torch._dynamo" in sys.modules) is before
        layer, a = torch.nn.Linear(4, 4), torch.ones(4, 4)
        def function(a):
            return layer(a), a @ a, torch.mm(a, a), torch.softmax(a, -1), torch.nn.functional.gelu(layer(a))
        def dtypes(f):
            return [str(t.dtype) for t in f(a)]
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        assert dtypes(compiled) == dtypes(function) == [f"torch.{n}" for n in ("bfloat16", "bfloat16", "bfloat16", "float32", "bfloat16")]
        with hmp.disable_casts():
            assert dtypes(compiled) == ["torch.float32"] * 5
        hmp.revert()
        assert dtypes(compiled) == ["torch.float32"] * 5
        import torch._dynamo.trace_rules as rules
        for f in (torch.mm, torch.nn.functional.linear, torch.nn.functional.layer_norm, torch.Tensor.mm):
            assert rules.lookup(f).__name__ == "TorchInGraphFunctionVariable", f
        print("done")
    """

    @pytest.mark.parametrize("order", ["before", "after"])
    def test_dynamo_imported_before_or_after_convert(self, order):
        assert run_python(self.PROGRAM, order) == "done\n"

    @pytest.mark.parametrize("order", ["before", "after"])
    @pytest.mark.parametrize("layer", ["Conv1d(8, 8, 3)", "Conv2d(8, 8, 1)", "ConvTranspose2d(8, 8, 3)"])
    def test_inductor_imported_before_or_after_convert(self, order, layer):
        """Inductor found the patched convolution, which gave its code float32 numbers in place of bfloat16 ones: NaN."""
        program = """
            import sys, torch
            from habana_mp import hmp
            torch.manual_seed(0)
            layer = eval(f"torch.nn.{sys.argv[2]}")
            x = torch.randn(2, 8, 6, 6)[(..., 0) if layer.weight.dim() == 3 else ...]
            if sys.argv[1] == "before":
                import torch._inductor.compile_fx
            for kwargs in ({"opt_level": "O2"}, {"policy": hmp.Policy.load("balanced").with_edits("+convolution:fp32")}):
                hmp.convert(**kwargs)
                found = []
                for run in (layer, torch.compile(layer)):
                    layer.zero_grad()
                    y = run(x)
                    y.float().square().sum().backward()
                    found.append([y, *(each.grad for each in layer.parameters())])
                for a, b in zip(*found, strict=True):
                    assert (a - b).norm() < 0.02 * b.norm()  # sums of bfloat16 have another order on some CPUs
                hmp.revert()
            print("done")
        """
        assert run_python(program, order, layer) == "done\n"

    def test_nothing_is_dropped_where_nothing_was_compiled(self):
        """On a machine with CUDA torch imports Inductor to drop what it has, for a second."""
        program = """
            import logging, torch, torch._dynamo
            from habana_mp import hmp
            dropped = []
            log = logging.getLogger("torch._dynamo")
            log.setLevel(logging.INFO)
            log.addFilter(lambda record: not (record.msg == "torch._dynamo.reset" and dropped.append(1)))
            def convert_and_revert():
                dropped.clear()
                hmp.convert()
                hmp.revert()
                return len(dropped)
            print(convert_and_revert())
            torch.compile(torch.cos, backend="eager")(torch.ones(2))
            torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
            print(convert_and_revert() > 0, convert_and_revert())
        """
        assert run_python(program) == "0\nTrue 0\n"

    def test_convert_imports_no_dynamo(self):
        program = """
            import sys, torch
            from habana_mp import hmp
            hmp.convert()
            hmp.convert(opt_level="O2")
            (torch.ones(2, 2) @ torch.ones(2, 2)).sum()
            with hmp.disable_casts():
                torch.ones(2)
            hmp.revert()
            print([name for name in ("torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd") if name in sys.modules])
        """
        assert run_python(program) == "[]\n"
