"""Training steps that change the state of optimizers, schedulers and scalers, with what a program can see of it."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import lr_scheduler, swa_utils

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))


def scaler(after_unscale):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
    scaler.scale(model(X).sum()).backward()
    if after_unscale:
        scaler.unscale_(optimizer)

    def step():
        y = model(X)
        if not after_unscale:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return y.detach()

    def state():
        by_optimizer = [
            (each["stage"], {**each["found_inf_per_device"]}) for each in scaler._per_optimizer_states.values()
        ]
        return [scaler.state_dict(), by_optimizer, weights(model), optimizer.state_dict()]

    return step, state


def sparse_gradients(optimizer):
    torch.manual_seed(0)
    model = nn.Embedding(5, 8, sparse=True)
    steps = {"none": None, "SparseAdam": torch.optim.SparseAdam, "Adagrad": torch.optim.Adagrad}[optimizer]
    own = steps([*model.parameters()]) if steps else None

    def step():
        y = model(torch.tensor([1, 2]))
        y.square().sum().backward()
        if own is not None:
            own.step()
        return y

    step()
    return step, lambda: [
        model.weight.grad._nnz(),
        model.weight.grad.is_coalesced(),
        model.weight.grad.to_dense(),
        model.weight,
        own.state_dict() if own else {},
    ]


SCHEDULERS = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 1),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=100),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[1]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "SWALR": lambda o: swa_utils.SWALR(o, 0.01),
}


def scheduler(name):
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    schedule = SCHEDULERS[name](optimizer)

    def step():
        optimizer.zero_grad()
        y = model(X)
        y.square().mean().backward()
        optimizer.step()
        schedule.step(*([1.0] if name == "ReduceLROnPlateau" else []))
        return y

    step()
    return step, lambda: [schedule.state_dict(), optimizer.state_dict(), weights(model)]


def optimizer(kind, **options):
    model = net()
    own = kind(model.parameters(), **options)

    def step():
        own.zero_grad()
        y = model(X)
        y.square().mean().backward()
        own.step()
        return y

    step()
    return step, lambda: [own.state_dict(), weights(model), gradients(model)]


def added_group():
    model, extra = net(), nn.Parameter(torch.ones(3))
    own = torch.optim.SGD(model.parameters(), 0.1)

    def step():
        own.add_param_group({"params": [extra]})
        return model(X)

    return step, lambda: [len(own.param_groups)]


def averaged(decay):
    model = net()
    average = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9) if decay else None)
    own = torch.optim.SGD(model.parameters(), 0.1)

    def step():
        y = model(X)
        y.square().mean().backward()
        own.step()
        average.update_parameters(model)
        return y

    step()
    return step, lambda: [average.state_dict(), weights(model)]


class Trainer:
    """What it needs it finds by methods that it calls itself."""

    def __init__(self):
        self.model = net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 0.1)
        self.scheduler = lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.scaler = torch.amp.GradScaler("cpu")
        self.mean, self.steps = torch.zeros(()), 0

    def train_step(self):
        loss = self.model(X).square().mean()
        self.scaler.scale(loss).backward()
        self.after()
        return loss

    def after(self):
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.mean = 0.9 * self.mean + MEANS["of all"].mean()
        MEANS["of all"].add_(1)
        self.steps += 1


MEANS = {"of all": torch.zeros(3)}


def trainer():
    own = Trainer()
    own.train_step()
    return own.train_step, lambda: [
        weights(own.model),
        own.optimizer.state_dict(),
        own.scheduler.state_dict(),
        own.scaler.state_dict(),
        own.mean,
        MEANS,
    ]


class LossScale:
    """As programs write one: numbers of Python, no tensors. Its counter may be one of the measurement, and stays."""

    def __init__(self):
        self.scale, self.steps = 4.0, 0

    def __call__(self, loss):
        self.steps += 1
        self.scale *= 2
        return loss * self.scale


def own_scale():
    model, scale = net(), LossScale()

    def step():
        y = model(X)
        scale(y.square().mean()).backward()
        return y

    return step, lambda: [scale.scale, gradients(model)]


def hook_of_an_optimizer():
    model, steps = net(), torch.zeros(())
    own = torch.optim.SGD(model.parameters(), 0.1)

    def note(*_):
        steps.add_(1)

    own.register_step_post_hook(note)

    def step():
        y = model(X)
        y.square().mean().backward()
        own.step()
        return y

    return step, lambda: [steps, weights(model)]


def hook_of_a_gradient():
    """The gradient is added to an attribute of the weight, as Megatron does."""
    model, largest = net(), [torch.zeros(())]
    weight = model[0].weight
    weight.main_grad = torch.zeros_like(weight)

    def add(gradient):
        weight.main_grad.add_(gradient)

    def note(found):
        largest[0] = torch.maximum(largest[0], found.grad.max())

    weight.register_hook(add)
    weight.register_post_accumulate_grad_hook(note)

    def step():
        y = model(X)
        y.square().mean().backward()
        return y

    return step, lambda: [weight.main_grad, largest, gradients(model)]


def graph_from_before():
    model = net()
    features = model(X)

    def step():
        y = features * 2
        y.square().mean().backward(retain_graph=True)
        return y

    step()
    return step, lambda: [gradients(model)]


def weights(model):
    return [*model.state_dict().values()]


def gradients(model):
    return [each.grad for each in model.parameters()]
