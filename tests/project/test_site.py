"""The documentation builds without a warning, asks for nothing outside, and works from a server and from disk."""

from __future__ import annotations

import string
from pathlib import Path

import pytest

from habana_mp import hmp

pytestmark = pytest.mark.xdist_group("site")

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
def test_every_page_stands_alone_and_fits_a_phone(site, opened):
    """Tables and code scroll in themselves."""
    pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html") if path.name != "404.html")
    assert {"index.html", "api.html", "benchmarks.html", "presets.html", "threads/lists.html"} <= set(pages)
    page = opened(viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    for name in pages:
        page.goto(f"http://docs.invalid/{name}")
        assert page.evaluate("[innerWidth, document.documentElement.scrollWidth]") == [390, 390], name
        assert page.evaluate(TOO_WIDE) == [], name
        # Pictures are loaded.
        assert page.evaluate("[...document.images].filter(image => !image.naturalWidth).map(image => image.src)") == []
        assert page.problems == [], name
    page.wait_for_load_state("networkidle")
    assert page.problems == []


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


@in_browser
def test_search_while_one_types(site, page):
    """With numbers in the index, lunr failed for each beginning of two letters with a, l, m, p, r or t."""
    page.goto((site / "index.html").as_uri())
    page.keyboard.press("/")
    page.get_by_text("Type to start searching").wait_for()
    for letter in string.ascii_lowercase:
        page.locator(".md-search__input").fill("")
        page.keyboard.type(letter)
        page.wait_for_timeout(200)  # the theme asks its index once nobody has typed for a while
    assert page.locator(".md-search-result__link").count()
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
