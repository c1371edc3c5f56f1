"""The drawing that hmp.draw returns: its SVG, the files it is saved to, and what cannot be drawn."""

from __future__ import annotations

import weakref
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch
from drawn_models import block, converted, linear
from PIL import Image
from torch import nn
from torch.nn import functional as F

from habana_mp import hmp


def deep(length: int) -> torch.Tensor:
    x = torch.ones(2, requires_grad=True)
    for _ in range(length):
        x = x * 2
    return x


def nograd() -> torch.Tensor:
    with torch.no_grad():
        return linear()[0](torch.randn(2, 4))


WRONG = [
    ("no-graph", lambda: hmp.draw(nograd()), ValueError, "no tensor in what draw was given has a graph: .*no_grad"),
    ("integers", lambda: hmp.draw(torch.ones(2, dtype=torch.int)), ValueError, "has a graph"),
    ("none", lambda: hmp.draw(None), TypeError, r"takes a torch.nn.Module, or .* is a NoneType without a tensor"),
    ("function", lambda: hmp.draw(F.linear), TypeError, "builtin_function_or_method without a tensor"),
    ("module-without-tensor", lambda: hmp.draw(nn.Module()), NotImplementedError, "forward"),
    ("arguments", lambda: hmp.draw(deep(1), torch.ones(2)), TypeError, "need a torch.nn.Module, not a Tensor"),
    ("depth-of-tensor", lambda: hmp.draw(deep(1), depth=1), TypeError, "need a torch.nn.Module, not a Tensor"),
    ("depth", lambda: hmp.draw(*linear(), depth=-1), ValueError, "0 or more, not -1"),
    ("depth-type", lambda: hmp.draw(*linear(), depth="1"), ValueError, "0 or more, not '1'"),
    (
        "too-many",
        lambda: hmp.draw(deep(5000)),
        ValueError,
        r"5,002 nodes, and at most 1,000 are possible. Use hmp.draw\(model, x\)",
    ),
    (
        "too-wide",
        lambda: hmp.draw(nn.Sequential(*(nn.ReLU() for _ in range(1000))), torch.ones(2)),
        ValueError,
        "1,002 nodes, and at most 1,000 are possible. Use a smaller depth",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), [pytest.param(*row[1:], id=row[0]) for row in WRONG])
def test_wrong_input(call, error, message) -> None:
    with pytest.raises(error, match=message):
        call()


SVG = "{http://www.w3.org/2000/svg}"


def groups(svg: str, kind: str) -> list[ET.Element]:
    return [group for group in ET.fromstring(svg).iter(f"{SVG}g") if group.get("class") == kind]


def test_svg_has_every_node_and_nested_frames() -> None:
    model, x = block()
    with hmp.autocast("cpu"):
        drawing = hmp.draw(model, x)
    svg = drawing._repr_svg_()
    assert len(groups(svg, "node")) == len(drawing.nodes)
    assert {frame.find(f"{SVG}text").text for frame in groups(svg, "cluster")} == {
        "Block",
        "norm: LayerNorm",
        "attention: Attention",
        "qkv: Linear",
        "proj: Linear",
        "mlp: Sequential",
        "0: Linear",
        "2: Linear",
    }
    assert any("1: GELU" in text for text in ET.fromstring(svg).itertext())


def test_tensors_have_no_frames() -> None:
    assert groups(hmp.draw(deep(1))._repr_svg_(), "cluster") == []


def test_saved_files(tmp_path: Path) -> None:
    drawing = hmp.draw(*linear())
    drawing.save(tmp_path / "x.svg")
    drawing.save(str(tmp_path / "x.PNG"))
    assert (tmp_path / "x.svg").read_text() == drawing._repr_svg_()
    with Image.open(tmp_path / "x.PNG") as image:
        assert image.format == "PNG"
        assert image.width > 300


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("x.gif", ValueError, "'x.gif': the name of a drawing must end in .svg or .png"),
        ("x", ValueError, "'x': the name of a drawing"),
        ("no/folder/x.svg", FileNotFoundError, "no/folder"),
        (3, TypeError, "not '?int"),
    ],
)
def test_files_that_cannot_be_saved(path, error, message, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        hmp.draw(*linear()).save(path)


def test_without_graphviz_the_error_says_what_to_install(monkeypatch) -> None:
    drawing = hmp.draw(*linear())
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(RuntimeError, match="apt-get install graphviz"):
        drawing._repr_svg_()


@pytest.mark.parametrize(
    ("name", "shown"),
    [('<script>\\N&"', '<script>\\N&"'), ("\x1b[31m\x00", "\ufffd[31m\ufffd"), ("\udcff", "\ufffd")],
    ids=["markup", "control", "surrogate"],
)
@pytest.mark.parametrize("layers", [nn.Linear(4, 3), nn.Sequential(nn.Linear(4, 3), nn.ReLU())], ids=["node", "frame"])
def test_names_are_text_and_no_markup(name: str, shown: str, layers: nn.Module) -> None:
    model = nn.Sequential()
    model.add_module(name, layers)
    svg = hmp.draw(model, torch.randn(2, 4))._repr_svg_()
    assert "<script" not in svg
    assert any(shown in text for text in ET.fromstring(svg).itertext())


def test_the_same_model_gives_the_same_source() -> None:
    model, x = block()
    assert hmp.draw(model, x).source == hmp.draw(model, x).source


def test_repr_is_short() -> None:
    with converted():
        assert repr(hmp.draw(*linear())) == "<Drawing of 8 nodes with 3 casts: save it, or show it in Jupyter>"


def test_a_drawing_keeps_no_tensor_alive() -> None:
    model, x = linear()
    weight = weakref.ref(model.weight)
    drawing = hmp.draw(model, x)
    del model
    assert weight() is None
    assert drawing.nodes
