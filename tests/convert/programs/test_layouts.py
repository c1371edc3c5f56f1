"""Tensors of other layouts under convert: what no cast is for stays as it is."""

import pytest
import torch
import torch.nn.attention.bias
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp

BF16, FP32 = torch.bfloat16, torch.float32
A = torch.linspace(-1, 1, 16).view(4, 4)


class TestOtherLayouts:
    def test_sparse(self):
        sparse = torch.eye(4).to_sparse()
        expected = torch.sparse.sum(sparse), sparse.coalesce().values(), sparse.to_dense()
        hmp.convert()
        assert sparse.is_sparse
        assert all(
            map(torch.equal, (torch.sparse.sum(sparse), sparse.coalesce().values(), sparse.to_dense()), expected)
        )
        with hmp.disable_casts():
            assert torch.equal(sparse @ A, torch.sparse.mm(sparse, A))

    def test_sparse_matmul(self):
        """Cast like any other tensor; torch has kernels for COO in bfloat16."""
        sparse = torch.eye(4).to_sparse()
        hmp.convert()
        for call in (lambda: sparse @ A, lambda: torch.mm(sparse, A), lambda: torch.sparse.mm(sparse, A)):
            out = call()
            assert torch.allclose(out.float(), A, atol=0.01)

    def test_sparse_training(self):
        table = nn.Embedding(8, 4, sparse=True)
        optimizer = torch.optim.SparseAdam(table.parameters())
        hmp.convert()
        (table(torch.tensor([1, 2])) @ A).float().sum().backward()
        assert table.weight.grad.is_sparse
        with hmp.disable_casts():
            optimizer.step()

    @pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=["strided", "jagged"])
    @pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
    def test_nested(self, layout):
        parts = [A[:2].clone(), A[:3].clone()]
        hmp.convert()
        nested = torch.nested.nested_tensor(parts, layout=layout)
        out = F.linear(nested, A)
        assert (out.is_nested, out.dtype) == (True, BF16)
        for part, expected in zip(out.unbind(), parts, strict=True):
            assert torch.equal(part, F.linear(expected, A))
        assert F.softmax(out, -1).dtype == FP32
        assert (nested + nested).is_nested
        assert torch.nested.to_padded_tensor(out, 0.0).shape == (2, 3, 4)

    def test_nested_gradients(self):
        hmp.convert()
        weight = A.clone().requires_grad_()
        nested = torch.nested.nested_tensor([A[:2], A[:3]], layout=torch.jagged)
        torch.cat([part.float() for part in F.linear(nested, weight).unbind()]).sum().backward()
        assert weight.grad.dtype == FP32

    @pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated")
    @pytest.mark.filterwarnings("ignore:.*quantize_per_tensor.*")
    @pytest.mark.filterwarnings("ignore:.*[Qq]uantized.*deprecat.*")
    def test_quantized(self):
        hmp.convert()
        quantized = torch.quantize_per_tensor(A, 0.1, 0, torch.qint8)
        same = torch.quantize_per_tensor(A, 0.1, 0, torch.qint8)
        assert quantized.is_quantized
        assert torch.relu(quantized).is_quantized
        assert torch.cat([quantized, same]).is_quantized
        assert quantized.dequantize().dtype == FP32

    def test_complex_and_integer_and_bool_d10(self):
        hmp.convert()
        for dtype in (torch.complex64, torch.int64, torch.float64):
            t = torch.ones(2, 2).to(dtype)
            assert [torch.mm(t, t).dtype, (t * t).dtype, torch.cat([t, t]).dtype] == [dtype] * 3
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2, dtype=torch.float32)).dtype == BF16
        assert (torch.ones(2, dtype=torch.bool) & torch.ones(2, dtype=torch.bool)).dtype == torch.bool

    @pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors")
    def test_masked_tensor(self):
        """MaskedTensor has no bfloat16 of its own; ops that cast nothing work."""
        from torch.masked import masked_tensor

        t = masked_tensor(A, A > 0)
        hmp.convert()
        assert type(t + t) is type(t)
        with hmp.disable_casts():
            assert type(t * t) is type(t)

    def test_mkldnn(self):
        hmp.convert()
        t = A.to_mkldnn()
        assert torch.relu(t).to_dense().shape == (4, 4)

    def test_conjugate_and_negative_views(self):
        c = torch.tensor([[1 + 2j, 3 - 1j], [2j, 1.0]])
        expected = c.conj().imag.clone() @ c.real
        hmp.convert()
        view = c.conj().imag
        assert view.is_neg()
        assert torch.equal(view @ c.real, (view.clone().bfloat16() @ c.real.bfloat16()))
        assert torch.allclose((view @ c.real).float(), expected)
