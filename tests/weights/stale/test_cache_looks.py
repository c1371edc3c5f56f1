"""The weight cache and looks at a weight that change nothing: they cost one cast at most."""

import copy
import io
import pickle
import weakref

import pytest
import torch
from cached_weight import FP32, ROW, by_hand, casts, is_fresh, module_of, use, weight
from safetensors.torch import load_file, safe_open, save_file
from torch import nn

from habana_mp import hmp

pytestmark = pytest.mark.usefixtures("empty_cache")


def saved(tmp_path):
    p = weight()
    torch.save({"weight": p.detach()}, tmp_path / "weight.pt")
    save_file({"weight": p.detach()}, tmp_path / "weight.safetensors")
    return p


def opened(path):
    with safe_open(path, "pt") as file:
        return {"weight": file.get_tensor("weight")}


FILES = {
    "torch.load": lambda path: torch.load(path / "weight.pt"),
    "torch.load-mmap": lambda path: torch.load(path / "weight.pt", mmap=True),
    "safetensors": lambda path: load_file(path / "weight.safetensors"),
    "safe_open": lambda path: opened(path / "weight.safetensors"),
}
HARMLESS = {
    "state_dict": lambda p: module_of(p).state_dict(),
    "torch.save": lambda p: torch.save(p, io.BytesIO()),
    "pickle": pickle.dumps,
    "deepcopy": copy.deepcopy,
    "repr": repr,
    "norm": lambda p: p.norm().item(),
    "data_ptr": lambda p: p.data_ptr(),
    "address-of-storage": lambda p: p.untyped_storage().data_ptr(),
    "storage": lambda p: hash(p.untyped_storage()),
    "data": lambda p: p.data,
    "detach": lambda p: p.detach(),
    "clone": lambda p: p.clone(),
    "hash": hash,
    "double": lambda p: p.double(),
    "weakref": weakref.ref,
    "same-dtype": lambda p: p.float(),
    "load_state_dict": lambda p: module_of(p).load_state_dict({"weight": p}),
    "zero_grad": lambda p: module_of(p).zero_grad(),
    "optimizer": lambda p: torch.optim.SGD([p], lr=1.0),
    "view": lambda p: p.view(-1),
    "backward": lambda p: use(p).sum().backward() if p.requires_grad else None,
}


class TestKept:
    """What does not change a weight costs one cast at most; then the copy serves again."""

    @pytest.mark.parametrize("way", HARMLESS)
    def test_a_look_at_a_weight(self, way):
        hmp.convert()
        for frozen in (False, True):
            hmp.cache.clear()
            p = weight(frozen)
            use(p)
            HARMLESS[way](p)
            use(p)
            count, hits = casts()
            assert count <= 2
            use(p)
            assert casts() == (count, hits + 1)

    @pytest.mark.parametrize("how", ["assigned", "copied", "parameter"])
    @pytest.mark.parametrize("file", FILES)
    def test_weights_of_a_file(self, file, how, tmp_path):
        expected = by_hand(saved(tmp_path))
        state = FILES[file](tmp_path)
        if how == "parameter":
            p = nn.Parameter(state["weight"])
        else:
            module = module_of(weight())
            module.load_state_dict(state, assign=how == "assigned")
            p = module.weight
        del state
        hmp.convert()
        for _ in range(3):
            with torch.inference_mode():
                assert torch.equal(use(p), expected)
        assert casts() == (1, 2)
        with torch.no_grad():
            p[ROW] = 3
        assert is_fresh(p)
        del p

    def test_a_pretrained_model(self, tmp_path):
        import transformers

        config = transformers.LlamaConfig(
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            vocab_size=96,
        )
        transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
        model = transformers.LlamaForCausalLM.from_pretrained(tmp_path, dtype=FP32).eval()
        ids = torch.arange(6)[None]
        linears = sum(isinstance(module, nn.Linear) for module in model.modules())
        hmp.convert(opt_level="O1")
        with torch.inference_mode():
            first = model(ids).logits
            assert casts() == (linears, 0)
            assert torch.equal(model(ids).logits, first)
        assert casts() == (linears, linears)

    def test_the_pages_of_a_mapped_file_are_not_touched(self, tmp_path):
        """A weight that is served from its copy is not read but for some samples."""
        saved(tmp_path)
        hmp.convert()
        p = nn.Parameter(torch.load(tmp_path / "weight.pt", mmap=True)["weight"])
        first = use(p)
        assert torch.equal(use(p), first)
        assert casts() == (1, 1)
