"""What the page of a report has of errors, and how it fits windows of all sizes."""

from __future__ import annotations

import fake_reports
import pytest
from page_reader import Reader, ops
from playwright.sync_api import expect

pytestmark = pytest.mark.unsanitized(reason="a browser does not start with the sanitizers in it")


def measured() -> dict:
    """A report with values, in which an op loses numbers and another makes most of the error."""
    error = {"squares": 1e-4, "reference_squares": 1.0, "largest": 0.1, "reference_largest": 1.0, "lost": 0}
    report = fake_reports.small() | {
        "low_dtype": "bfloat16",
        "projected_squares": 0.0,
        "edges": [],
        "steps": [0.02, 0.03],
        "optimizer_seconds": 0.001,
    }
    for number, row in enumerate(report["rows"]):
        lost = {**error, "lost": 3} if row["op"] == "softmax" else error
        row["values"] = fake_reports.values(
            calls=row["calls"],
            ran=lost,
            low=error,
            backward=error,
            losses=[fake_reports.loss(81.0 if number == 0 else 0.01, 1.0)],
            ran_seconds=0.002,
            other_seconds=0.003,
        )
        row["made_bytes"] = {"bfloat16": 1000}
    return fake_reports.with_losses(report)


def test_errors_have_columns_heat_and_a_picture(reader: Reader) -> None:
    opened = reader.open(measured())
    headings = opened.locator("#ops-table thead button").all_inner_texts()
    assert headings[5:7] == ["error", "of all error"]
    heat = opened.locator("#ops tr.op .heat5")
    assert heat.count() == 1
    assert opened.locator("#ops .lost").all_inner_texts() == ["3 not finite"]
    assert opened.locator("#errors svg circle").count() > 2
    assert opened.locator("#errors svg circle.lost").count() == 1
    expect(opened.locator("#tree .heading")).to_contain_text("of all error")
    text = opened.locator("header").inner_text()
    assert opened.locator("header .figures > div").first.inner_text() == "time of a step\n25 ms 20 ms to 30 ms, 2 steps"
    assert "in float32 they would take" in text
    assert "bfloat16 5.0 kB" in text or "bfloat16" in text


def test_shares_of_an_error_that_is_not_known_are_not_shown(reader: Reader) -> None:
    report = measured()
    for row in report["rows"]:
        row["values"]["losses"] = [fake_reports.loss()]
    opened = reader.open(report)
    headings = opened.locator("#ops-table thead button").all_inner_texts()
    assert headings[5:7] == ["error", "cast time"]
    expect(opened.locator("#tree .heading")).not_to_contain_text("of all error")


@pytest.mark.parametrize("width", [390, 768, 1280, 1920])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_no_wider_than_the_window(reader: Reader, width: int, scheme: str) -> None:
    opened = reader.open(measured(), color_scheme=scheme)
    opened.set_viewport_size({"width": width, "height": 900})
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    if width == 1280:
        rule = opened.locator("#ops .rule").first
        assert rule.inner_text() == "fp32: softmax, lists/hmp/fp32.txt:41"
        assert rule.evaluate("each => each.scrollWidth <= each.clientWidth")
        box = rule.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= width


def test_on_a_phone_an_op_is_a_card(reader: Reader) -> None:
    opened = reader.open(measured(), color_scheme="light")
    opened.set_viewport_size({"width": 390, "height": 800})
    cell = opened.locator("#ops tr.op td").first
    assert cell.evaluate("each => getComputedStyle(each).display") == "grid"
    assert cell.evaluate("each => getComputedStyle(each, '::before').content") == '"decision"'
    expect(opened.locator("#ops-table thead")).to_be_hidden()


def test_ops_without_casts_are_folded(reader: Reader) -> None:
    opened = reader.open(fake_reports.gpt())
    folded = len({row["op"] for row in fake_reports.gpt()["rows"]}) - len(ops(opened))
    button = opened.get_by_role("button", name="without casts")
    assert button.inner_text() == f"… and {folded} without casts"
    button.click()
    assert len(ops(opened)) == len({row["op"] for row in fake_reports.gpt()["rows"]})


def test_names_of_places_do_not_lie_on_each_other(reader: Reader) -> None:
    report = measured()
    for row in report["rows"]:
        row["values"]["losses"] = [fake_reports.loss(9.0)]  # as large as the next, which is as far off
        row["module"] = "Net: " + "a_long_name." * 5
    names = reader.open(report).locator("#errors svg text.named")
    boxes = [names.nth(i).bounding_box() for i in range(names.count())]
    assert len(boxes) == 3
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            assert (
                a["y"] + a["height"] <= b["y"]
                or b["y"] + b["height"] <= a["y"]
                or (a["x"] + a["width"] <= b["x"] or b["x"] + b["width"] <= a["x"])
            )
