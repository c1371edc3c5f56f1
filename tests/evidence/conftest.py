"""The net that is measured, with the same weights in every test."""

import pytest
import torch
from measured_net import Net


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


@pytest.fixture
def deterministic():
    """Two threads add up the gradients of x[places] in another order each time."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
