"""Steps that change state of all kinds: each row of RESTORED gives a step and what a program can see of the state that it changes."""

from __future__ import annotations

import collections
import random
import warnings

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.data import DataLoader, DistributedSampler, Sampler, TensorDataset
from training_state import (
    SCHEDULERS,
    X,
    added_group,
    averaged,
    gradients,
    graph_from_before,
    hook_of_a_gradient,
    hook_of_an_optimizer,
    net,
    optimizer,
    own_scale,
    scaler,
    scheduler,
    sparse_gradients,
    trainer,
)


class Averaging(nn.Module):
    """Keeps all that a module may keep without a buffer."""

    def __init__(self):
        super().__init__()
        self.net, self.count, self.mean, self.history = net(), 0, torch.zeros(8), []
        self.by_name = {"largest": torch.zeros(()), "inner": {"calls": 0}}
        self.recent, self.seen, self.array = collections.deque(maxlen=2), set(), np.zeros(8)
        self.drawn = torch.Generator().manual_seed(1)

    def forward(self, x):
        y = self.net(x + torch.randn(8, generator=self.drawn))
        with torch.no_grad():
            self.mean.mul_(0.9).add_(y.mean(0))
            self.by_name["largest"] = torch.maximum(self.by_name["largest"], y.max())
            self.array += 1
        self.by_name["inner"]["calls"] += 1
        self.count += 1
        self.history.append(y.detach())
        self.recent.append(self.count)
        self.seen.add(self.count)
        return y


def attributes_of_modules():
    model = Averaging()
    model(X)
    own = {name: value for name, value in vars(model).items() if not name.startswith("_") and name != "drawn"}
    return lambda: model(X), lambda: [{name: getattr(model, name) for name in own}, model.drawn.get_state()]


def replaced_submodule():
    model = net()

    def step():
        y = model(X)
        model[1] = nn.ReLU()
        return y

    return step, lambda: [type(each).__name__ for each in model]


def hook_that_stays():
    model = net()

    def step():
        model.register_forward_hook(lambda module, args, result: result * 2)
        return model(X)

    return step, lambda: [len(model._forward_hooks)]


def tensors_of_a_hook():
    model, largest = net(), {"0": torch.zeros(())}

    def note(module, args, result):
        largest["0"] = torch.maximum(largest["0"], result.detach().max())

    model[0].register_forward_hook(note)
    return lambda: model(X), lambda: [largest]


class Average:
    """As programs write one: the tensors in a dict are replaced by others."""

    def __init__(self, model):
        self.model, self.updates = model, 0
        self.shadow = {name: weight.detach().clone() for name, weight in model.named_parameters()}

    def update(self):
        self.updates += 1
        for name, weight in self.model.named_parameters():
            self.shadow[name] = 0.9 * self.shadow[name] + 0.1 * weight.detach()


def own_average():
    model = net()
    average = Average(model)

    def step():
        y = model(X)
        average.update()
        return y * (1 + average.shadow["0.bias"].mean())

    return step, lambda: [average.shadow]


def normed(parametrize):
    torch.manual_seed(0)
    model = parametrize(nn.Linear(8, 8))
    own = torch.optim.SGD(model.parameters(), 0.1)

    def step():
        y = model(X)
        y.square().mean().backward()
        own.step()
        return y

    return step, lambda: [model.state_dict(), gradients(model)]


def plain_tensors():
    mean, inputs, shared = torch.zeros(8), X.clone().requires_grad_(), [torch.zeros(8)]
    view = torch.zeros(16)[:8]
    with torch.inference_mode():
        inferred = torch.zeros(8)
    model = net()
    model(inputs).sum().backward()

    def step():
        y = model(inputs)
        y.square().sum().backward()
        with torch.no_grad():
            for each in (mean, shared[0], view):
                each.mul_(0.9).add_(y.mean(0))
        with torch.inference_mode():
            inferred.add_(1)
        return y * mean

    return step, lambda: [mean, inputs.grad, shared, view, inferred]


def replaced_tensors():
    mean, by_name = torch.zeros(8), {"a": torch.zeros(8)}
    model = net()

    def step():
        nonlocal mean
        mean = 0.9 * mean + model(X).detach().mean(0)
        by_name["a"] = by_name["a"] + mean
        return model(X) + by_name["a"]

    return step, lambda: [mean, by_name]


class Named(torch.Tensor):
    pass


class Wrapped(torch.Tensor):
    """Two tensors in one, as those of quantized weights."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, *_):
        return Wrapped(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
        unwrap = torch.utils._pytree.tree_map_only
        result = op(*unwrap(Wrapped, lambda each: each.inner, args), **(kwargs or {}))
        return args[0] if op._schema.is_mutable else result


def csr():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.eye(8).to_sparse_csr()


def kinds_of_tensors():
    tensors = {
        "subclass": torch.zeros(8).as_subclass(Named),
        "sparse": torch.eye(8).to_sparse(),
        "csr": csr(),
        "complex": torch.zeros(8, dtype=torch.complex64),
        "bool": torch.zeros(8, dtype=torch.bool),
        "int64": torch.zeros(8, dtype=torch.int64),
        "bfloat16": torch.zeros(8, dtype=torch.bfloat16),
        "conjugate": torch.zeros(8, dtype=torch.complex64).conj(),
        "transposed": torch.zeros(4, 8).t(),
    }
    model = net()

    def step():
        y = model(X)
        for name, each in tensors.items():
            if name in ("bool", "bfloat16"):
                each.copy_(torch.ones(8))
            elif name == "csr":
                each.mul_(2)
            elif name == "sparse":
                each.add_(each)
            else:
                each.add_(1)
        return y

    def state():
        return [
            each.to_dense() if name in ("csr", "sparse") else each.as_subclass(torch.Tensor)
            for name, each in tensors.items()
        ]

    return step, state


def wrapped_tensors():
    wrapped, model = Wrapped(torch.zeros(8)), net()

    def step():
        wrapped.inner.add_(1)
        return model(X)

    return step, lambda: [wrapped.inner]


def random_numbers():
    own, of_numpy, older, of_torch = (
        random.Random(1),
        np.random.default_rng(1),
        np.random.RandomState(1),
        torch.Generator(),
    )
    model = net()

    def step():
        drawn = own.random() + of_numpy.random() + older.rand() + random.random()
        return model(X + drawn + torch.rand(8, generator=of_torch) + torch.rand(8))

    def state():
        of_python = own.getstate(), random.getstate()
        return [
            *of_python,
            of_numpy.bit_generator.state,
            older.get_state(),
            of_torch.get_state(),
            torch.get_rng_state(),
        ]

    return step, state


def arrays():
    mean, model, by_name = np.zeros(8), net(), {"a": np.zeros(3, np.int64)}

    def step():
        y = model(X)
        mean[:] = 0.9 * mean + y.detach().float().numpy().mean(0)
        by_name["a"] = by_name["a"] + 1
        return y + torch.from_numpy(mean).float()

    return step, lambda: [mean, by_name["a"]]


def loaded_data():
    """A loader makes its iterator in the step."""
    model = net()
    loader = DataLoader(TensorDataset(torch.randn(8, 8)), 4, shuffle=True, generator=torch.Generator().manual_seed(2))
    return lambda: [model(x) for (x,) in loader], lambda: [loader.generator.get_state(), torch.get_rng_state()]


class Shuffled(Sampler):
    def __init__(self):
        self.order, self.epochs, self.drawn = [*range(8)], 0, random.Random(1)

    def __iter__(self):
        self.epochs += 1
        self.drawn.shuffle(self.order)
        yield from self.order

    def __len__(self):
        return len(self.order)


def samplers():
    model, data = net(), TensorDataset(torch.randn(8, 8))
    own, shared = Shuffled(), DistributedSampler(data, 2, 0)
    loaders = DataLoader(data, 4, sampler=own), DataLoader(data, 4, sampler=shared)

    def step():
        shared.set_epoch(shared.epoch + 1)
        return [model(x) for loader in loaders for (x,) in loader]

    return step, lambda: [own.order, own.epochs, own.drawn.getstate(), shared.epoch]


class Slots:
    __slots__ = ("mean", "numbers", "unset")

    def __init__(self):
        self.mean, self.numbers = torch.zeros(8), [torch.zeros(8)]


def slots():
    model, own = net(), Slots()

    def step():
        y = model(X)
        own.mean = 0.9 * own.mean + y.detach().mean(0)
        own.numbers[0].add_(1)
        return y * own.mean

    return step, lambda: [own.mean, own.numbers]


RESTORED = {
    "attributes of modules": attributes_of_modules,
    "a submodule that is replaced": replaced_submodule,
    "a hook that stays": hook_that_stays,
    "tensors of a hook": tensors_of_a_hook,
    "a scaler before unscale_": lambda: scaler(False),
    "a scaler between unscale_ and update": lambda: scaler(True),
    **{
        f"sparse gradients, {name}": lambda name=name: sparse_gradients(name)
        for name in ("none", "SparseAdam", "Adagrad")
    },
    **{name: lambda name=name: scheduler(name) for name in SCHEDULERS},
    **{
        f"{kind.__name__} {options or ''}".strip(): lambda kind=kind, options=options: optimizer(kind, **options)
        for kind, options in (
            (torch.optim.SGD, {"momentum": 0.9}),
            (torch.optim.AdamW, {"amsgrad": True}),
            (torch.optim.AdamW, {"fused": True}),
            (torch.optim.Rprop, {}),
            (torch.optim.Adafactor, {}),
        )
    },
    "a group of parameters that is added": added_group,
    "AveragedModel": lambda: averaged(False),
    "AveragedModel of EMA": lambda: averaged(True),
    "an average of the program's": own_average,
    "spectral_norm": lambda: normed(parametrizations.spectral_norm),
    "weight_norm": lambda: normed(parametrizations.weight_norm),
    "orthogonal": lambda: normed(parametrizations.orthogonal),
    "plain tensors": plain_tensors,
    "tensors that are replaced": replaced_tensors,
    "kinds of tensors": kinds_of_tensors,
    "wrapped tensors": wrapped_tensors,
    "generators of random numbers": random_numbers,
    "arrays": arrays,
    "a loader of data": loaded_data,
    "samplers": samplers,
    "slots": slots,
    "a loss scale of the program's": own_scale,
    "a hook of an optimizer": hook_of_an_optimizer,
    "hooks of a gradient": hook_of_a_gradient,
    "a graph from before": graph_from_before,
    "a trainer": trainer,
}
