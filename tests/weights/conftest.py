"""The weight cache with plain copies, with packed ones, and with those in 8 bits."""

from __future__ import annotations

import cached_weight
import pytest
import torch
from int8_numbers import int8

from habana_mp import hmp


@pytest.fixture
def plain_copies(monkeypatch):
    monkeypatch.setenv("HABANA_MP_PACKED_WEIGHTS", "off")


@pytest.fixture(params=["plain", pytest.param("packed", marks=cached_weight.packs), "int8"])
def in_every_layout(request, monkeypatch):
    """The test with plain copies, then with the others, which need that no graph is recorded."""
    if request.param == "plain":
        monkeypatch.setenv("HABANA_MP_PACKED_WEIGHTS", "off")
        return request.param
    monkeypatch.setattr(cached_weight, "records_graph", torch.no_grad)
    monkeypatch.delitem(cached_weight.MODES, "grad")
    if request.param == "int8":
        convert, policy = hmp.convert, cached_weight.listed("int8")
        monkeypatch.setattr(hmp, "convert", lambda **given: convert(**given or {"policy": policy}))
        monkeypatch.setattr(cached_weight, "as_copied", lambda p: int8(cached_weight.X, p, None, torch.bfloat16))
    return request.param
