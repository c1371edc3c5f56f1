"""The net that is measured, with the same weights in every test."""

import pytest
import torch
from measured_net import Net


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()
