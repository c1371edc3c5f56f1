"""The detail level's module path and source line (D26): whose forward runs, and which line of the user's."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from habana_mp._watch.where import where


class Probe(nn.Module):
    """Keeps what where() says while its forward runs."""

    seen: list[tuple[str, str]]

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(where())
        return x * x  # saved for backward, so that a checkpoint runs it again


class Net(nn.Module):
    def __init__(self, probe, **modules):
        super().__init__()
        self.probe = probe
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x):
        return self.probe(x)


class Calls(nn.Module):
    """Calls a function, or a module that it has not registered."""

    def __init__(self, call):
        super().__init__()
        self.calls = (call,)  # in a tuple, where a module is not registered

    def forward(self, x):
        return self.calls[0](x)


X = torch.ones(2, requires_grad=True)


def path_of(probe):
    ((path, _),) = probe.seen
    return path


def in_layers(probe):
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Identity(), Net(probe)])

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    return Net(Encoder())


def with_hook(probe):
    net = Net(probe)
    net.register_forward_hook(lambda *_: None)
    net.register_forward_pre_hook(lambda *_: None)
    probe.register_full_backward_hook(lambda *_: None)
    return net


def with_replaced_forward(probe):
    net = Net(probe)
    forward = net.forward

    def wrapped(*args):
        return forward(*args)

    net.forward = wrapped
    return net


class Shared(nn.Module):
    """The block is given a module that only the root has registered."""

    def __init__(self, probe):
        super().__init__()
        self.block = GivenModule()
        self.head = probe

    def forward(self, x):
        return self.block(x, self.head)


class GivenModule(nn.Module):
    def forward(self, x, module):
        return module(x)


@pytest.mark.parametrize(
    ("wrap", "path"),
    [
        pytest.param(lambda probe: probe, "Probe", id="root"),
        pytest.param(Net, "Net: probe", id="child"),
        pytest.param(lambda probe: Net(Net(probe)), "Net: probe.probe", id="grandchild"),
        pytest.param(nn.Sequential, "Sequential: 0", id="sequential"),
        pytest.param(in_layers, "Net: probe.layers.1.probe", id="module-list"),
        pytest.param(with_hook, "Net: probe", id="hooks"),
        pytest.param(with_replaced_forward, "Net: probe", id="forward-replaced"),
        pytest.param(lambda probe: Net(probe, other=probe), "Net: probe", id="two-names"),
        pytest.param(lambda probe: Net(nn.Sequential(probe), last=probe), "Net: probe.0", id="called-in-a-list"),
        pytest.param(Shared, "Shared: head", id="module-of-the-root"),
        pytest.param(lambda probe: Net(Calls(probe)), "Net: probe.(Probe)", id="not-registered"),
        pytest.param(lambda probe: Net(probe).forward, "Net: probe", id="forward-called-directly"),
        pytest.param(lambda probe: probe.forward, "Probe", id="only-forward"),
        pytest.param(
            lambda probe: Net(Calls(lambda x: checkpoint(probe, x, use_reentrant=False))),
            "Net: probe.(Probe)",
            id="checkpoint",
        ),
        pytest.param(
            lambda probe: lambda x: torch.func.functional_call(Net(probe), {}, (x,)), "Net: probe", id="functional-call"
        ),
        pytest.param(lambda probe: torch.vmap(Net(probe)), "Net: probe", id="vmap"),
    ],
)
def test_module_path(wrap, path):
    probe = Probe()
    wrap(probe)(X)
    assert path_of(probe) == path


def test_a_long_list_is_gone_through_once():
    """A model of a thousand layers asks for the path of each."""
    listed = []

    class Layers(nn.Sequential):
        def named_children(self):
            listed.append(self)
            return super().named_children()

    probes = [Probe() for _ in range(5)]
    Layers(*probes)(X)
    assert [path_of(probe) for probe in probes] == [f"Layers: {i}" for i in range(5)]
    assert len(listed) == 1


def test_a_module_that_is_moved_has_its_new_path():
    probe = Probe()
    net = nn.Sequential(nn.Sequential(probe), nn.Identity())
    net(X)
    net[0], net[1] = net[1], net[0]
    net(X)
    net[1] = probe
    net(X)
    net[1] = Probe()
    net(X)
    assert [path for path, _ in probe.seen] == ["Sequential: 0.0", "Sequential: 1.0", "Sequential: 1"]
    assert path_of(net[1]) == "Sequential: 1"


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_the_forward_that_a_checkpoint_repeats_in_backward(use_reentrant):
    probe = Probe()
    checkpoint(Net(probe), X, use_reentrant=use_reentrant).sum().backward()
    assert [path for path, _ in probe.seen] == ["Net: probe", "Net: probe"]


def test_a_hook_belongs_to_its_module():
    seen = []
    net = Net(nn.Identity())
    net.probe.register_forward_hook(lambda *_: seen.append(where()))
    net(X)
    assert seen[0][0] == "Net: probe"


def test_a_wrapper_is_the_root():
    probe = Probe()
    nn.DataParallel(Net(probe))(X)
    assert path_of(probe) == "DataParallel: module.probe"


def test_no_module():
    assert where()[0] == ""


def test_a_method_that_is_no_forward():
    class Other:
        def forward(self):
            return where()

    assert Other().forward()[0] == ""


def test_each_thread_has_its_own_modules():
    outer, inner = Probe(), Probe()

    def in_thread(x):
        thread = threading.Thread(target=Net(inner), args=(x,))
        thread.start()
        thread.join()
        return outer(x)

    Net(Calls(in_thread))(X)
    assert path_of(inner) == "Net: probe"
    assert path_of(outer) == "Net: probe.(Probe)"


def line_of(mark):
    """FILE:LINE of the line here that ends with the comment."""
    lines = Path(__file__).read_text().splitlines()
    return f"{__file__}:{next(number for number, line in enumerate(lines, 1) if line.endswith('# ' + mark))}"


def test_source_is_the_line_of_the_call():
    assert where()[1] == line_of("here")  # here


def test_source_is_outside_of_torch():
    """The caller of what torch calls; torch's own modules, functions and decorators are passed over."""
    seen = []
    layer = nn.TransformerEncoderLayer(4, 1, batch_first=True)
    layer.activation = lambda x: (seen.append(where()), x)[1]  # activation
    layer(torch.ones(1, 2, 4))
    assert seen == [("TransformerEncoderLayer", line_of("activation"))]


def test_source_of_generated_code():
    """A traced module's forward has no file of its own."""
    traced = torch.fx.symbolic_trace(nn.Sequential(nn.ReLU()))
    seen = []
    traced.get_submodule("0").register_forward_hook(lambda *_: seen.append(where()))  # hook
    traced(X)
    assert seen == [("Sequential: 0", line_of("hook"))]


def test_source_in_a_file_whose_name_is_no_utf8():
    namespace = {"where": where}
    exec(compile("def call():\n    return where()", "tr\udcffain.py", "exec"), namespace)
    assert namespace["call"]()[1] == "tr\\udcffain.py:2"


def test_source_without_a_frame_of_the_user():
    namespace = {"where": where}
    file = torch.__file__
    exec(compile("def call():\n    seen.append(where())", file, "exec"), namespace)
    namespace["seen"] = []
    thread = threading.Thread(target=namespace["call"])
    thread.start()
    thread.join()
    ((_, source),) = namespace["seen"]
    assert source.startswith(threading.__file__)


def test_nothing_is_kept_alive():
    """frame.f_locals keeps a copy of the locals until the frame ends: it must not be that of a user's forward."""
    alive = []

    class Local(nn.Module):
        def forward(self, x):
            y = x + 1
            reference = weakref.ref(y)
            where()
            del y
            gc.collect()
            alive.append(reference() is not None)
            return x

    Local()(X)
    assert alive == [False]


def test_the_callers_locals_are_not_touched():
    class Local(nn.Module):
        def forward(self, x):
            snapshot = locals()
            where()
            assert set(snapshot) == {"self", "x"}
            return x

    Local()(X)
