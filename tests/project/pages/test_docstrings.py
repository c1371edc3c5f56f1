"""docs/api.md has every public name; each has a docstring with an example, which runs as it is printed."""

from __future__ import annotations

import doctest
import inspect
import pydoc
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from cached_weight import packs
from public_names import ROOT, documented, own_text

import habana_mp
from habana_mp import hmp, results

DOCUMENTED = documented()
# Their examples would change this process: each runs in one of its own.
IN_A_PROCESS = ("habana_mp.gaudi",)


def lacks_an_example(text: str) -> bool:
    """Whether a docstring has no section ``Example:`` with a line that runs."""
    return not re.search(r"^Example:\n {4}>>> ", text, re.MULTILINE)


def test_api_has_every_public_name():
    listed = re.findall(r"^(?:::: habana_mp\.|### )(\w+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    assert sorted({name for name in listed if name != "gaudi"}) == sorted(habana_mp.__all__)


def test_api_has_every_type_of_a_result():
    listed = re.findall(r"^::: habana_mp\.results\.(\w+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(results.__all__)


def annotated(value):
    """What a public function returns, or the public methods, properties and fields of a class, as their source has it."""
    if not inspect.isclass(value):
        return [getattr(value, "__annotations__", {}).get("return", "")]
    kinds = [kind for kind in value.__mro__ if kind.__module__.startswith("habana_mp")]
    found = [each for kind in kinds for name, each in inspect.get_annotations(kind).items() if name[0] != "_"]
    members = [getattr(each, "fget", each) for kind in kinds for name, each in vars(kind).items() if name[0] != "_"]
    return [
        *found,
        *(
            inspect.unwrap(getattr(each, "__func__", each)).__annotations__.get("return", "")
            for each in members
            if callable(each)
        ),
    ]


OTHERS = {"Annotated", "Any", "Callable", "None", "Self"}


@pytest.mark.parametrize("name", [name for name, value in DOCUMENTED.items() if callable(value)])
def test_types_of_results_are_public(name):
    texts = [str(getattr(each, "__forward_arg__", each)) for each in annotated(DOCUMENTED[name])]
    texts = [re.sub(r"""(['"]).*?\1""", "", text) for text in texts]  # what a field is, in words
    words = {word for text in texts for word in re.findall(r"(?<![\w.])[A-Z]\w*", text)}
    assert words - {*habana_mp.__all__, *results.__all__, *habana_mp.cache.__all__} - OTHERS == set()


@pytest.mark.parametrize("name", habana_mp.__all__)
def test_docstring(name):
    value = getattr(habana_mp, name)
    assert value.__doc__
    members = vars(value) if isinstance(value, type) and value.__module__.startswith("habana_mp") else ()
    for member in members:
        if not member.startswith("_") and callable(getattr(value, member)):
            assert getattr(value, member).__doc__, f"{name}.{member}"


@pytest.mark.parametrize("name", [name for name in habana_mp.__all__ if name not in {"GradScaler", "hmp"}])
def test_help_shows_no_comments_of_the_source(name):
    """Of a method without a docstring, pydoc shows the comment above it."""
    text = pydoc.render_doc(getattr(habana_mp, name), renderer=pydoc.plaintext)
    assert not [line for line in text.splitlines() if re.match(r"[ |]*# ", line)]


@pytest.mark.parametrize("name", [name for name, value in DOCUMENTED.items() if not inspect.ismodule(value)])
def test_public_name_has_an_example(name):
    assert not lacks_an_example(own_text(DOCUMENTED[name]))


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        pytest.param("Cast.\n\nExample:\n    >>> hmp.cast(x, torch.float16)", False, id="example"),
        pytest.param("Cast.\n\n>>> hmp.cast(x, torch.float16)", True, id="no-section"),
        pytest.param("Cast.\n\nExample:\n    hmp.cast(x, torch.float16)", True, id="not-run"),
        pytest.param("", True, id="no-docstring"),
    ],
)
def test_what_lacks_an_example(text, lacks):
    assert lacks_an_example(text) == lacks


def examples():
    objects = [(name, value) for name, value in DOCUMENTED.items() if name not in IN_A_PROCESS]
    found = [
        (f"{name}{each.name.removeprefix(value.__name__)}", each)
        for name, value in objects
        if not inspect.ismodule(value)
        for kind in (value.__mro__ if inspect.isclass(value) else (value,))
        if kind.__module__.startswith("habana_mp")
        for each in doctest.DocTestFinder().find(kind, value.__name__)
    ]
    marks = {"habana_mp.cache.choices": packs}
    return [pytest.param(each, id=name, marks=marks.get(name, ())) for name, each in found if each.examples]


class Checker(doctest.OutputChecker):
    def check_output(self, want, got, optionflags):
        """What an example does not show may be anything."""
        return not want or super().check_output(want, got, optionflags)


@pytest.mark.parametrize("example", examples())
def test_example_of_a_docstring(example, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, batch_first=True), 1)
            self.lm_head = torch.nn.Linear(8, 4)

        def forward(self, x):
            return self.lm_head(self.encoder(x))

    model = Model()
    names = {
        "hmp": hmp, "torch": torch, "np": np, "Policy": hmp.Policy, "policy": hmp.Policy.load("hmp"), "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), 0.1), "x": torch.randn(2, 3, 8), "y": torch.zeros(2, 3, 4),
        "loss_function": torch.nn.functional.mse_loss,
    }  # fmt: skip
    example.globs = names
    runner = doctest.DocTestRunner(Checker(), optionflags=doctest.ELLIPSIS)
    runner.run(example)
    assert not runner.failures, capsys.readouterr().out


@pytest.mark.parametrize("name", IN_A_PROCESS)
def test_example_in_a_process(name):
    program = f"import doctest, importlib, sys, torch; sys.exit(doctest.testmod(importlib.import_module({name!r}), extraglobs={{'torch': torch}}).failed)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
