"""The page of hmp.compare in a browser without a network: a and b with their difference, the optimizer apart, and how it fits windows."""

from __future__ import annotations

import pytest
import torch
from measured_net import Net, loss_of
from torch import nn

from habana_mp import hmp

pytestmark = pytest.mark.unsanitized(reason="a browser does not start with the sanitizers in it")

START = hmp.Policy.load("hmp")
OTHER = START.with_edits("+gelu:fp32", "+conv2d:fp32", "+layer_norm:fp32")


class Long(nn.Module):
    """Its paths are as long as names get."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder_with_a_long_name = nn.ModuleDict({"layer_" * 12 + str(number): Net() for number in range(30)})

    def forward(self) -> torch.Tensor:
        return sum(loss_of(part) for part in self.encoder_with_a_long_name.values())


def trained(model, loss):
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def step():
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()

    return step


@pytest.fixture(scope="module")
def found():
    torch.manual_seed(0)
    return hmp.compare(trained(Net(), loss_of), START, OTHER)


@pytest.fixture(scope="module")
def large():
    torch.manual_seed(0)
    return hmp.compare(trained(Long(), lambda model: model()), None, "hmp")


def test_a_and_b_are_named_with_their_difference(reader, found):
    assert found.differing_ops() == {"layer_norm": ("lower", "fp32"), "gelu": ("first_input", "fp32")} or set(
        found.differing_ops()
    ) == {"layer_norm", "gelu"}
    opened = reader.open_text(found.to_html())
    text = opened.locator("#between").inner_text()
    assert "hmp and hmp+edits have other rules for 3 ops, 2 of them in the table below." in text
    assert "layer_norm: lower in a, fp32 in b" in text
    opened.locator("#between summary").click()
    assert "conv2d" in opened.locator("#between details").inner_text()
    assert "layer_norm lower / fp32" in str(found).splitlines()[2]
    assert found.to_dict()["policy_diff"]["ops"]["layer_norm"] == ["lower", "fp32"]


def test_without_two_policies_there_is_no_difference(reader, large):
    assert large.policy_diff is None
    assert reader.open_text(large.to_html()).locator("#between").count() == 0
    assert hmp.compare(lambda: loss_of(Net()), "hmp", "hmp").policy_diff is None


def test_the_optimizer_is_apart_from_the_model(reader, found):
    opened = reader.open_text(found.to_html())
    ops = opened.locator("#rows tbody td:first-child").all_text_contents()
    after = opened.locator("#after-backward tbody td:first-child").all_text_contents()
    assert "layer_norm" in ops
    assert {"addcdiv_", "lerp_"} & {*after}
    assert not {"addcdiv_", "lerp_"} & {*ops}
    assert "cross_entropy" not in after
    assert not [title for title in opened.locator("#depth title").all_text_contents() if "addcdiv_" in title]


@pytest.mark.parametrize("width", [320, 400, 1280])
def test_the_page_is_no_wider_than_the_window_and_at_most_ten_screens(reader, large, width):
    opened = reader.open_text(large.to_html(), color_scheme="light")
    opened.set_viewport_size({"width": width, "height": 800})
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    if width == 1280:
        assert opened.evaluate("document.documentElement.scrollHeight") <= 8000
    assert len(large.rows) > 60


def test_nothing_of_the_chart_is_cut_and_no_name_lies_on_another(reader, large):
    opened = reader.open_text(large.to_html(), color_scheme="light")
    opened.set_viewport_size({"width": 400, "height": 800})
    svg = opened.locator("#depth svg")
    picture = svg.bounding_box()
    texts = svg.locator("text")
    boxes = [texts.nth(i).bounding_box() for i in range(texts.count())]
    for i, a in enumerate(boxes):
        assert a["x"] >= picture["x"] - 1
        assert a["x"] + a["width"] <= picture["x"] + picture["width"] + 1
        for b in boxes[:i]:
            assert (
                a["y"] + a["height"] <= b["y"] + 3
                or b["y"] + b["height"] <= a["y"] + 3
                or a["x"] + a["width"] <= b["x"]
                or b["x"] + b["width"] <= a["x"]
            )
    box = opened.locator("#depth .wide")
    assert box.evaluate("each => each.scrollWidth > each.clientWidth"), "it scrolls inside its own box"
