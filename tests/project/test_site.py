"""The documentation builds without a warning, asks for nothing outside, works from a server and from disk, and has every public name."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import habana_mp
from habana_mp import hmp

ROOT = Path(__file__).parent.parent.parent

in_browser = pytest.mark.unsanitized(reason="a browser does not start with the sanitizers in it")


@pytest.fixture
def page(opened):
    return opened()


# Elements that reach beyond the window, and are in nothing that scrolls or that hides them.
TOO_WIDE = """() => {
    const kept = (element) => !element.matches(".md-content") && (getComputedStyle(element).overflowX !== "visible" || kept(element.parentElement));
    return [...document.querySelectorAll(".md-content *")]
        .filter((each) => each.getBoundingClientRect().right > innerWidth + 1 && !kept(each.parentElement))
        .map((each) => each.outerHTML.slice(0, 100));
}"""


@in_browser
def test_every_page_stands_alone(site, page):
    pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html") if path.name != "404.html")
    assert {"index.html", "api.html", "benchmarks.html", "presets.html", "threads/lists.html"} <= set(pages)
    for name in pages:
        page.goto(f"http://docs.invalid/{name}")
        assert page.problems == [], name
        # Pictures are loaded.
        assert page.evaluate("[...document.images].filter(image => !image.naturalWidth).map(image => image.src)") == []
    page.wait_for_load_state("networkidle")
    assert page.problems == []


@in_browser
def test_no_page_is_wider_than_a_phone(site, opened):
    """Tables and code scroll in themselves."""
    page = opened(viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    for path in sorted(site.glob("*.html")):
        page.goto(f"http://docs.invalid/{path.name}")
        assert page.evaluate("[innerWidth, document.documentElement.scrollWidth]") == [390, 390], path.name
        assert page.evaluate(TOO_WIDE) == [], path.name


@in_browser
@pytest.mark.parametrize("served", [True, False], ids=["from a server", "from disk"])
def test_search(site, page, served):
    page.goto("http://docs.invalid/index.html" if served else (site / "index.html").as_uri())
    page.keyboard.press("/")
    page.keyboard.type("refreshed")
    found = page.locator('.md-search-result__link[href*="cache.html"]').first
    found.wait_for()
    found.click()
    page.wait_for_url("**/cache.html?h=refreshed*")
    assert page.locator("h1").inner_text().startswith("The weight cache")
    assert page.problems == []


def shown(page):
    return page.locator("#preset-table tbody tr:visible th").all_inner_texts()


@in_browser
def test_table_of_presets(page):
    page.goto("http://docs.invalid/presets.html")
    everything = shown(page)
    lists = [ops for name in hmp.presets() for ops in hmp.Policy.load(name).lists.values()]
    listed = {op.partition("@")[0] for ops in lists for op in ops}
    assert listed <= set(everything)
    heads = page.locator("#preset-table thead button").all_inner_texts()
    assert heads == ["op", *hmp.presets()]
    cells = page.locator("#preset-table tbody tr", has=page.get_by_text("softmax", exact=True)).locator("td")
    rules = [hmp.Policy.load(name).rule("softmax").action for name in hmp.presets()]
    assert [text.replace("·", "rest") for text in cells.all_inner_texts()] == rules
    assert "lists/hmp/fp32.txt:" in cells.nth(hmp.presets().index("hmp")).get_attribute("title")

    search = page.locator("#presets-search")
    search.fill("norm hmp:lower")
    assert shown(page) == ["batch_norm", "group_norm", "instance_norm", "layer_norm"]
    search.fill("")
    page.locator("#preset-table thead button", has_text="torch-cuda").click()
    assert (
        page.locator("#preset-table tbody tr").first.locator("td").nth(heads.index("torch-cuda") - 1).inner_text()
        == "lower"
    )
    page.locator("#preset-table thead button").first.click()
    assert shown(page) == everything
    assert page.problems == []


def test_api_has_every_public_name():
    listed = re.findall(r"^(?:::: habana_mp\.|### )(\w+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    assert sorted({name for name in listed if name != "gaudi"}) == sorted(habana_mp.__all__)


@pytest.mark.parametrize("name", habana_mp.__all__)
def test_docstring(name):
    value = getattr(habana_mp, name)
    assert value.__doc__
    members = vars(value) if isinstance(value, type) and value.__module__.startswith("habana_mp") else ()
    for member in members:
        if not member.startswith("_") and callable(getattr(value, member)):
            assert getattr(value, member).__doc__, f"{name}.{member}"


def own_examples():
    own = [getattr(habana_mp, name) for name in habana_mp.__all__]
    own = [value for value in own if getattr(value, "__module__", "").startswith("habana_mp")]
    found = [each for value in own for each in doctest.DocTestFinder().find(value, value.__name__)]
    return [pytest.param(each, id=each.name) for each in found if each.examples]


class Checker(doctest.OutputChecker):
    def check_output(self, want, got, optionflags):
        """What an example does not show may be anything."""
        return not want or super().check_output(want, got, optionflags)


@pytest.mark.parametrize("example", own_examples())
def test_example_of_a_docstring(example, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

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
