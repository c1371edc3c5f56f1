"""The head of the page of a report: the error and what to do, and code that can be copied."""

from __future__ import annotations

import fake_reports
import pytest
import torch
from measured_net import Net, loss_of
from page_reader import Reader, ops
from playwright.sync_api import expect

from habana_mp import hmp
from habana_mp._report.findings.beginning import beginning

pytestmark = pytest.mark.unsanitized(reason="a browser does not start with the sanitizers in it")


@pytest.fixture(scope="module")
def report():
    torch.manual_seed(0)
    with hmp.autocast("cpu", policy="hmp"), hmp.report(values=True) as found:
        loss_of(Net()).backward()
        found.step()
    return found


def test_the_error_and_what_to_do_come_before_the_time(reader: Reader, report) -> None:
    opened = reader.open(report.to_dict())
    edits, head = report.edits(), beginning(report._data(), report.edits())
    assert opened.locator("header > *").evaluate_all("all => all.map((each) => each.className)")[3] == "advice"
    assert opened.locator(".advice h2").inner_text() == f"Error of the loss: {head.errors[0][1]:.2g}"
    assert opened.locator(".advice .head").inner_text() == str(head)
    foretold = opened.locator(".advice .setup").first.inner_text()
    assert f"balanced {report.presets()['balanced']:.2g}" in foretold
    assert opened.locator(".edits").first.locator("code").all_inner_texts() == [each.text for each in head.edits]
    shown = opened.locator(".edits code").all_text_contents()
    assert shown == [each.text for each in edits]
    assert opened.locator(".figures dt").first.inner_text() == "time of a step"


def test_an_edit_is_no_second_time_in_the_advice(reader: Reader, report) -> None:
    opened = reader.open(report.to_dict())
    others = opened.locator(".advice .others li p:first-child").all_inner_texts()
    assert others == [line.text for line in report.advice if not line.text.startswith("+")]


def test_ops_are_in_the_order_of_their_errors(reader: Reader, report) -> None:
    opened = reader.open(report.to_dict())
    expect(opened.locator("#ops [aria-sort]")).to_have_text("of all error")
    shares: dict[str, float] = {}
    for row in report.rows:
        shares[row.op] = shares.get(row.op, 0.0) + (row.share or 0.0)
    first = sorted((op for op in shares if shares[op] > 0), key=lambda op: -shares[op])
    assert ops(opened)[: len(first)] == first


def test_code_is_copied(reader: Reader, report) -> None:
    opened = reader.open(report.to_dict(), permissions=["clipboard-read", "clipboard-write"])
    last = opened.locator(".advice > .code")
    last.get_by_role("button").click()
    expect(last.get_by_role("button")).to_have_text("copied")
    text = last.locator("code").inner_text()
    assert text.startswith("policy = hmp.Policy.load('hmp').with_edits('+")
    assert opened.evaluate("navigator.clipboard.readText()") == text


def test_where_the_clipboard_is_refused_the_code_is_selected(reader: Reader, report) -> None:
    opened = reader.open(report.to_dict())
    opened.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('refused')); }")
    first = opened.locator(".edits .code").first
    first.get_by_role("button").click()
    expect(first.get_by_role("button")).to_have_text("selected")
    assert opened.evaluate("String(getSelection())") == first.locator("code").inner_text()


def test_without_scripts_there_are_no_buttons(reader: Reader, report) -> None:
    opened = reader.open(report.to_dict(), java_script_enabled=False)
    assert opened.locator(".advice .head").is_visible()
    assert not [each for each in opened.locator(".copy").all() if each.is_visible()]


def test_names_never_seen_are_folded_until_a_search(reader: Reader) -> None:
    opened = reader.open(fake_reports.small())
    expect(opened.locator("#never-seen .listed").first).to_be_hidden()
    opened.locator("#search").fill("nll")
    expect(opened.locator("#never-seen .listed", has_text="nll_loss")).to_be_visible()


def test_the_page_is_at_most_ten_screens(reader: Reader) -> None:
    for made in (fake_reports.gpt(), fake_reports.huge()):
        opened = reader.open(made, color_scheme="light")
        opened.set_viewport_size({"width": 1280, "height": 800})
        assert opened.evaluate("document.documentElement.scrollHeight") <= 8000
