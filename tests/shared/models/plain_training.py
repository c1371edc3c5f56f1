"""A tiny model trained in a plain loop, which the trainers are compared with."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from habana_mp import hmp

# Casts reach into the steps of Adam where nothing keeps them out.
POLICY = hmp.Policy.load("hmp").with_edits("+sqrt:lower")
STEPS = 4
BATCH = 8


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.inner = nn.Linear(8, 16)
        self.outer = nn.Linear(16, 4)

    def forward(self, x, labels=None):
        logits = self.outer(F.softmax(self.inner(x), -1))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


# What a forward pass of Net casts: two linear layers with three tensors each; softmax and the loss take bfloat16.
CASTS = {"linear": 6, "softmax": 1, "cross_entropy": 1}


def adam(net):
    return torch.optim.Adam(net.parameters(), lr=0.1, foreach=False)


def samples():
    torch.manual_seed(5)
    return [(torch.randn(8), torch.randint(0, 4, ())) for _ in range(STEPS * BATCH)]


def batches():
    return torch.utils.data.DataLoader(samples(), batch_size=BATCH)


def train(policy=POLICY):
    """The losses and the net of a loop with convert, whose optimizer steps in disable_casts."""
    net = Net()
    optimizer = adam(net)
    losses = []
    if policy is not None:
        hmp.convert(policy=policy)
    try:
        for x, labels in batches():
            loss = net(x, labels)["loss"]
            loss.backward()
            with hmp.disable_casts():
                optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    finally:
        hmp.revert()
    return losses, net


def same(net, other):
    return all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))
