"""The weight cache with plain copies, and with packed ones."""

from __future__ import annotations

import cached_weight
import pytest
import torch


@pytest.fixture
def plain_copies(monkeypatch):
    monkeypatch.setenv("HABANA_MP_PACKED_WEIGHTS", "off")


@pytest.fixture(params=["plain", pytest.param("packed", marks=cached_weight.packs)])
def in_either_layout(request, monkeypatch):
    """The test with plain copies, then with packed ones, which need that no graph is recorded."""
    if request.param == "plain":
        monkeypatch.setenv("HABANA_MP_PACKED_WEIGHTS", "off")
    else:
        monkeypatch.setattr(cached_weight, "records_graph", torch.no_grad)
        monkeypatch.delitem(cached_weight.MODES, "grad")
    return request.param
