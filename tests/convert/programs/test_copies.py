"""Pickle, torch.save, copy and deepcopy of models and of patched ops (D36)."""

import copy
import io
import multiprocessing
import pickle
import subprocess
import sys
import textwrap

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp

X = torch.linspace(-1, 1, 16).view(1, 2, 8)


def through_pickle(value, protocol=pickle.HIGHEST_PROTOCOL):
    return pickle.loads(pickle.dumps(value, protocol))


def through_torch_save(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


COPIES = {
    "pickle": through_pickle,
    "pickle-protocol-2": lambda value: through_pickle(value, 2),
    "torch.save": through_torch_save,
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
}
MODELS = {
    "sequential": lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.LayerNorm(8)),
    "encoder": lambda: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 8, 0.0, batch_first=True), 2, enable_nested_tensor=False
    ),
    "decoder-gelu": lambda: nn.TransformerDecoderLayer(8, 2, 8, 0.0, activation="gelu", batch_first=True),
    "lstm": lambda: nn.LSTM(8, 4, batch_first=True),
}


def run(model):
    out = model(X, X) if isinstance(model, nn.TransformerDecoderLayer) else model(X)
    return out[0] if isinstance(out, tuple) else out


def made(name):
    torch.manual_seed(0)
    return MODELS[name]()


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("model", MODELS)
class TestModels:
    def test_made_before_convert_copied_under_it(self, model, way):
        original = made(model)
        hmp.convert()
        assert torch.equal(run(COPIES[way](original)), run(original))
        hmp.revert()
        assert torch.equal(run(COPIES[way](original)), run(original))

    def test_made_and_copied_under_convert(self, model, way):
        hmp.convert()
        original = made(model)
        other = COPIES[way](original)
        assert torch.equal(run(other), run(original))
        hmp.revert()
        expected = run(made(model))
        assert torch.equal(run(other), expected)
        assert torch.equal(run(COPIES[way](other)), expected)

    def test_made_under_convert_copied_after_revert(self, model, way):
        """What captured a patched op keeps it, and it behaves as the original (D7)."""
        hmp.convert()
        original = made(model)
        hmp.revert()
        other = COPIES[way](original)
        expected = run(made(model))
        assert expected.dtype == torch.float32
        assert torch.equal(run(other), expected)
        hmp.convert()
        assert torch.equal(run(other), run(original))


OPS = {
    "torch.mm": lambda: torch.mm,
    "torch.Tensor.mm": lambda: torch.Tensor.mm,
    "torch.Tensor.__matmul__": lambda: torch.Tensor.__matmul__,
    "F.layer_norm": lambda: F.layer_norm,
    "F.relu": lambda: F.relu,
    "torch.linalg.norm": lambda: torch.linalg.norm,
    "torch._C._nn.linear": lambda: torch._C._nn.linear,
}


class TestOps:
    @pytest.mark.parametrize("way", COPIES)
    @pytest.mark.parametrize("op", OPS)
    def test_a_patched_op_is_one_object_while_converted(self, op, way):
        hmp.convert(opt_level="O2")
        patched = OPS[op]()
        assert COPIES[way](patched) is patched
        assert COPIES[way]([patched, {"op": patched}]) == [patched, {"op": patched}]

    @pytest.mark.parametrize("op", OPS)
    def test_pickled_while_converted_loads_as_the_original_after_revert(self, op):
        original = OPS[op]()
        hmp.convert(opt_level="O2")
        pickled = pickle.dumps(OPS[op]())
        assert b"habana_mp" not in pickled
        hmp.revert()
        assert pickle.loads(pickled) is original

    def test_pickled_before_convert_loads_as_the_patched_op(self):
        pickled = pickle.dumps(F.layer_norm)
        hmp.convert()
        assert pickle.loads(pickled) is F.layer_norm

    def test_partial(self):
        import functools

        hmp.convert()
        partial = through_pickle(functools.partial(F.softmax, dim=-1))
        assert partial(X.bfloat16()).dtype == torch.float32


class Captures(nn.Module):
    """Originals in places that no state of a module shows by name."""

    def __init__(self, activation=F.relu):
        super().__init__()
        self.activations = [activation]
        self.table = {"activation": activation}

    def forward(self, x):
        return self.table["activation"](self.activations[0](x))


class TestCapturedOriginals:
    """A module that captured an original before convert: pickle finds functions by name, and finds the patched op there."""

    def test_deepcopy_keeps_the_original(self):
        captured = F.relu
        layer = nn.TransformerEncoderLayer(8, 2, 8)
        hmp.convert()
        assert copy.deepcopy(layer).activation is captured
        assert copy.copy(layer).activation is captured

    def test_pickle_gives_what_stands_under_the_name(self):
        layer = nn.TransformerEncoderLayer(8, 2, 8)
        hmp.convert()
        pickled = pickle.dumps(layer)
        assert pickle.loads(pickled).activation is F.relu
        assert b"habana_mp" not in pickled
        hmp.revert()
        assert pickle.loads(pickled).activation is F.relu

    def test_the_model_is_not_changed_by_it(self):
        layer = nn.TransformerEncoderLayer(8, 2, 8)
        captured = layer.activation
        hmp.convert()
        pickle.dumps(layer)
        assert layer.activation is captured

    def test_in_a_list_or_dict_of_the_module(self):
        model = Captures()
        hmp.convert()
        assert torch.equal(copy.deepcopy(model)(X), model(X))
        other = through_pickle(model)
        assert other.activations == [F.relu]
        assert other.table == {"activation": F.relu}


class TestOtherProcesses:
    """What is pickled under convert loads where nothing is converted, and where habana_mp is absent."""

    @pytest.mark.parametrize("absent", [False, True], ids=["not-converted", "habana_mp-absent"])
    def test_load(self, absent, tmp_path):
        before = MODELS["encoder"]()
        hmp.convert()
        under = MODELS["encoder"]()
        path = tmp_path / "models.pt"
        torch.save(
            {"before": before, "under": under, "op": torch.mm, "norm": F.layer_norm, "state": under.state_dict()}, path
        )
        hmp.revert()
        torch.save([run(before), run(under)], tmp_path / "expected.pt")
        program = f"""
            import sys, torch
            if {absent}:
                sys.modules["habana_mp"] = None
            loaded = torch.load({str(path)!r}, weights_only=False)
            x = torch.linspace(-1, 1, 16).view(1, 2, 8)
            out = [loaded["before"](x), loaded["under"](x)]
            expected = torch.load({str(tmp_path / "expected.pt")!r})
            print(*map(torch.equal, out, expected), loaded["op"] is torch.mm, loaded["norm"] is torch.nn.functional.layer_norm)
        """
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(program)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.stdout, done.stderr) == ("True True True True\n", "")

    def test_state_dict_loads_with_weights_only(self, tmp_path):
        hmp.convert()
        model = MODELS["encoder"]()
        torch.save(model.state_dict(), tmp_path / "state.pt")
        state = torch.load(tmp_path / "state.pt", weights_only=True)
        assert {value.dtype for value in state.values()} == {torch.float32}
        model.load_state_dict(state)

    @pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # Python 3.12
    def test_a_forked_process_inherits_the_conversion(self):
        hmp.convert()
        queue = multiprocessing.get_context("fork").SimpleQueue()

        def child():
            torch.set_num_threads(1)  # as data loaders do: torch's own thread pool does not survive a fork
            with hmp.disable_casts():
                off = torch.mm(X[0], X[0].t()).dtype
            queue.put([str(torch.mm(X[0], X[0].t()).dtype), str(off)])

        with hmp.disable_casts():
            pass
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        assert queue.get() == ["torch.bfloat16", "torch.float32"]
        process.join()
        assert process.exitcode == 0


class TestSwapsAndViews:
    def test_module_to_and_half_under_convert(self):
        hmp.convert()
        model = MODELS["sequential"]().to(torch.bfloat16)
        assert run(model).dtype == torch.bfloat16
        assert run(model.float()).dtype == torch.bfloat16

    def test_swap_tensors(self):
        hmp.convert()
        a, b = torch.zeros(2), torch.ones(2)
        torch.utils.swap_tensors(a, b)
        assert (a.tolist(), b.tolist()) == ([1.0, 1.0], [0.0, 0.0])

    def test_share_memory_and_untyped_storage(self):
        hmp.convert()
        model = MODELS["sequential"]()
        model.share_memory()
        assert all(parameter.is_shared() for parameter in model.parameters())
