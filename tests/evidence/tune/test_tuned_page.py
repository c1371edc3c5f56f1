"""The page of hmp.tune in a browser without a network; what it complains of fails the test."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from planted_faults import LARGE, Model, X
from playwright.sync_api import expect

from habana_mp import hmp
from habana_mp._evidence.tune.shown.text import choice, moved

pytestmark = pytest.mark.unsanitized(reason="a browser does not start with the sanitizers in it")


class Hostile(torch.nn.Module):
    """Its module has the name of an element of HTML."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleDict({"<b id=spoilt>": Model("cos"), "x" * 90: Model("cos", "sub")})

    def forward(self) -> torch.Tensor:
        return sum(part(X) for part in self.parts.values())


def lost():
    model = Model()
    start = hmp.Policy.load("hmp").with_low_dtype("float16")
    return hmp.tune(lambda: model(X) + torch.exp(LARGE / 2) * 1e-8, 1e-2, cost="numbers", start=start, others="lower")


MODEL = Model("cos", "sub")
MAKE = {
    "seconds": lambda: hmp.tune(lambda: MODEL(X), 1e-2, check=lambda: MODEL(X)),
    "all lowered": lambda: hmp.tune(lambda: MODEL(X), 1e-2, start="hmp", others="lower"),
    "numbers": lambda: hmp.tune(lambda: MODEL(X), 1e-2, cost="numbers"),
    "no errors": lambda: hmp.tune(
        lambda: X * 2, 1e-9, start="hmp", others="lower", cost="numbers", metric=lambda _a, _b: 0.0
    ),
    "lost numbers": lost,
    "modules": lambda: hmp.tune(Hostile(), 1e-2, per="module", start="hmp", others="lower", cost="numbers"),
    "edits of modules": lambda: hmp.tune(Hostile(), 1e-3, per="module"),
}


@pytest.fixture(scope="module", params=MAKE)
def found(request):
    return MAKE[request.param]()


def test_the_picture_has_a_dot_for_each_point(reader, found):
    opened = reader.open_text(found.to_html())
    titles = opened.locator("#points svg circle title").all_text_contents()
    assert [title.rpartition(": error ")[0] for title in titles] == [point.name for point in found.points]
    assert opened.locator("#points svg circle.chosen").count() == 1
    above = sum(point.error > found.budget for point in found.points)
    assert opened.locator("#points svg circle.above").count() == above
    for circle in opened.locator("#points svg circle").all():
        assert 0 <= float(circle.get_attribute("cx")) <= 960
        assert 0 <= float(circle.get_attribute("cy")) <= 300


def test_the_tables_have_the_points_and_the_parts(reader, found):
    opened = reader.open_text(found.to_html())
    assert opened.locator("#points tbody tr td:first-child").all_inner_texts() == [each.name for each in found.points]
    last = [text.strip() for text in opened.locator("#points tbody tr td:last-child").all_inner_texts()]
    assert [text == "chosen" for text in last] == [point is found.chosen for point in found.points]
    names = opened.locator("#parts tbody tr td:first-child").all_inner_texts()
    assert sorted(names) == sorted(part.name for part in found.parts)
    expect(opened).to_have_title("hmp, tuned" if found.start.name == "hmp" else f"{found.start.name}, tuned")
    text = opened.locator("header").inner_text()
    assert f"of {len(found.parts)}" in text
    assert f"at most {found.most_runs}" in text


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_no_wider_than_the_window(reader, found, scheme):
    opened = reader.open_text(found.to_html(), color_scheme=scheme)
    for width in (320, 390, 768, 1280):
        opened.set_viewport_size({"width": width, "height": 900})
        assert opened.evaluate("document.documentElement.scrollWidth") <= width, opened.evaluate(
            "[...document.querySelectorAll('*')].filter(e => e.getBoundingClientRect().right > innerWidth).map(e => e.outerHTML.slice(0, 80))"
        )
    opened.context.close()


def test_names_are_text(reader):
    found, spoilt = MAKE["numbers"](), "<b id=spoilt>&amp;\"'</b>"
    own = found.parts[0].part
    part = replace(found.parts[0], part=replace(own, _entry=own._entry.replaced(modules=spoilt)))
    point = replace(found.points[-1], name=spoilt)
    found = replace(found, parts=(part, *found.parts[1:]), points=(*found.points[:-1], point), chosen=point)
    opened = reader.open_text(found.to_html())
    assert opened.locator("#spoilt").count() == 0
    assert opened.locator("#parts b").get_by_text(part.name, exact=True).count() == 1
    assert opened.locator("#points b").get_by_text(spoilt, exact=True).count() == 1
    assert spoilt in opened.locator("#points svg text.named").all_text_contents()


def test_a_point_with_the_name_of_another_is_not_chosen(reader):
    start = hmp.Policy.from_ops(lower=["linear"], name="float32")
    found = hmp.tune(lambda: MODEL(X), 1e-6, cost="numbers", start=start, others="lower")
    opened = reader.open_text(found.to_html())
    assert opened.locator("#points tbody tr td:last-child", has_text="chosen").count() == 1


def test_names_of_points_do_not_lie_on_each_other(reader, found):
    names = reader.open_text(found.to_html()).locator("#points svg text.named")
    boxes = [names.nth(i).bounding_box() for i in range(names.count())]
    assert len(boxes) >= 2
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            assert (
                a["y"] + a["height"] <= b["y"] + 3
                or b["y"] + b["height"] <= a["y"] + 3
                or (a["x"] + a["width"] <= b["x"] or b["x"] + b["width"] <= a["x"])
            )


def test_why_is_that_of_explain(reader, found):
    opened = reader.open_text(found.to_html())
    for part in found.parts:
        row = opened.locator("#parts tbody tr").filter(has=opened.get_by_text(part.name, exact=True))
        assert found.why(part) in row.first.inner_text()


def test_what_moved_comes_before_the_picture(reader, found):
    opened = reader.open_text(found.to_html())
    names = [f"{name} moves from {before} to {after}" for name, before, after, _ in moved(found)]
    assert opened.locator("#moved li p:first-child").all_inner_texts() == names[:8]
    assert (opened.locator("#moved h2").inner_text() == "What moved") == bool(names)
    assert opened.locator("#moved > p").last.inner_text() == choice(found)
    moved_at, picture_at = (opened.locator(each).bounding_box()["y"] for each in ("#moved", "#points svg"))
    assert moved_at < picture_at


def test_the_page_is_at_most_ten_screens(reader, found):
    opened = reader.open_text(found.to_html(), color_scheme="light")
    opened.set_viewport_size({"width": 1280, "height": 800})
    assert opened.evaluate("document.documentElement.scrollHeight") <= 8000
    opened.context.close()
