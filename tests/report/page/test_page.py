"""The HTML page of a report, in a real browser without a network: any request, console message or error fails the test."""

from __future__ import annotations

import re

import fake_reports
import pytest
from page_reader import Reader, cells, ops
from playwright.sync_api import Page, expect

from habana_mp._report.form import report_of
from habana_mp._report.shown.page import page
from habana_mp._show import units
from habana_mp._show.html import framed

pytestmark = pytest.mark.unsanitized(reason="a browser does not start with the sanitizers in it")

NAMES = ["linear", "softmax", "layer_norm", "gelu", "flatten"]


def test_without_javascript_all_but_the_tables_is_there(reader: Reader) -> None:
    opened = reader.open(fake_reports.small(), java_script_enabled=False)
    expect(opened).to_have_title("train.py · cast report")
    assert opened.locator(".advice li").all_inner_texts() == [
        f"{advice['text']}\n\n{advice['evidence']}" for advice in fake_reports.small()["advice"]
    ]
    assert opened.locator(".figures > div").all_inner_texts() == [
        "time of the block\n50 ms",
        "in casts\n7.2 ms 14 %",
        "casts\n24",
        "from the cache\n12 50 %",
        "casts in backward\n16",
        "bytes cast\n3.8 MB",
    ]
    assert opened.locator(".precision .key").all_inner_texts() == ["bfloat16 59 %", "float32 13 %", "casts 28 %"]
    visible = [each.inner_text().strip() for each in opened.locator("h2").all() if each.is_visible()]
    assert visible == [
        "Advice",
        "Ping-pong",
        "Cast again",
        "Missed",
        "In no list",
        "Listed, never seen",
        "How to read it",
    ]
    expect(opened.locator("noscript p")).to_be_visible()


def test_the_line_of_an_op_and_those_of_its_modules(reader: Reader) -> None:
    opened = reader.open(fake_reports.small())
    assert ops(opened) == NAMES
    of_op = (
        "linear 2|lower\nlower: linear, lists/hmp/lower.txt:22|bf16|8|13 ms|4.5 ms|8.9 %|20|fp32 → bf16|12|12|5.5 MB"
    )
    assert cells(opened, 0) == of_op.split("|")
    button = opened.get_by_role("button", name="linear")
    expect(button).to_have_attribute("aria-expanded", "false")
    button.press("Enter")
    expect(button).to_have_attribute("aria-expanded", "true")
    assert cells(opened, 1) == "Net: fc1|lower\ntrain.py:31|bf16|4|8.0 ms|3.1 ms|6.1 %|12|fp32 → bf16|6|8|4.0 MB".split(
        "|"
    )
    assert cells(opened, 2) == "Net: fc2|lower\ntrain.py:31|bf16|4|5.0 ms|1.4 ms|2.8 %|8|fp32 → bf16|6|4|1.5 MB".split(
        "|"
    )
    assert cells(opened, 3)[0] == "softmax 1"
    button.click()
    assert cells(opened, 1)[0] == "softmax 1"


@pytest.mark.parametrize(
    ("heading", "first", "order"),
    [
        ("op", "ascending", "flatten gelu layer_norm linear softmax"),
        ("decision", "ascending", "softmax linear layer_norm gelu flatten"),
        ("calls", "descending", "linear softmax layer_norm gelu flatten"),
        ("op time", "descending", "linear softmax layer_norm gelu flatten"),
        ("share", "descending", "linear softmax layer_norm gelu flatten"),
        ("casts", "descending", "linear softmax layer_norm gelu flatten"),
        ("from → to", "ascending", "layer_norm gelu flatten softmax linear"),
        ("backward", "descending", "linear softmax layer_norm gelu flatten"),
        ("bytes", "descending", "linear softmax layer_norm gelu flatten"),
    ],
)
def test_each_column_sorts(reader: Reader, heading: str, first: str, order: str) -> None:
    opened = reader.open(fake_reports.small())
    column = opened.locator("#ops").get_by_role("columnheader", name=heading, exact=True)
    column.get_by_role("button").press("Enter")
    expect(column).to_have_attribute("aria-sort", first)
    assert opened.locator("[aria-sort]").count() == 1
    assert ops(opened) == order.split()
    column.get_by_role("button").press(" ")
    expect(column).to_have_attribute("aria-sort", {"ascending": "descending", "descending": "ascending"}[first])
    assert ops(opened) != order.split()


def test_sorting_leaves_open_what_is_open(reader: Reader) -> None:
    opened = reader.open(fake_reports.small())
    opened.get_by_role("button", name="linear").click()
    opened.get_by_role("button", name="op time").click()
    opened.get_by_role("button", name="op time").click()
    assert [cells(opened, i)[0] for i in (-3, -2, -1)] == ["linear 2", "Net: fc2", "Net: fc1"]


@pytest.mark.parametrize(
    ("text", "found", "names", "elsewhere"),
    [
        pytest.param("softmax", "1 of 6 rows", "softmax", {"ping-pong": "1 of 1", "missed": "0 of 1"}, id="op"),
        pytest.param("FC1", "1 of 6 rows", "linear", {"modules": "1 of 5", "timeline": "1 of 5"}, id="module"),
        pytest.param("lower.txt:20", "1 of 6 rows", "layer_norm", {"never-seen": "0 of 3"}, id="rule"),
        pytest.param("float32 fp32.txt", "1 of 6 rows", "softmax", {"never-seen": "0 of 3"}, id="two words"),
        pytest.param("bf16", "4 of 6 rows", "linear softmax layer_norm", {"recast": "1 of 1"}, id="short dtype"),
        pytest.param("net.py:7", "1 of 6 rows", "gelu", {"missed": "1 of 1"}, id="source"),
        pytest.param("nll", "0 of 6 rows", "", {"never-seen": "1 of 3"}, id="listed, not seen"),
    ],
)
def test_search(reader: Reader, text: str, found: str, names: str, elsewhere: dict[str, str]) -> None:
    opened = reader.open(fake_reports.small())
    opened.keyboard.press("/")
    opened.keyboard.type(text)
    expect(opened.locator("#found")).to_have_text(found)
    assert ops(opened) == names.split()
    for section, count in elsewhere.items():
        expect(opened.locator(f"#{section} .count")).to_have_text(count)
        entries = opened.locator(f"#{section} tbody tr, #{section} .listed")
        if entries.count():
            assert sum(each.is_visible() for each in entries.all()) == int(count.split()[0])
    opened.locator("#search").fill("")
    expect(opened.locator("#found")).to_be_empty()
    assert ops(opened) == NAMES


def lines(opened: Page) -> list[str]:
    return [each.inner_text() for each in opened.locator("#tree .label").all() if each.is_visible()]


def test_the_tree_of_modules(reader: Reader) -> None:
    opened = reader.open(fake_reports.small())
    whole = ["Net", "fc1 linear lower", "fc2 linear lower", "norm layer_norm lower", "softmax fp32", "gelu missed"]
    assert lines(opened) == [*whole, "outside of any module flatten unlisted"]
    bar = opened.locator("#tree .stack").first
    expect(bar).to_have_attribute("aria-label", "bfloat16 60 %, float32 12 %, casts 28 %")
    widths = [piece.bounding_box()["width"] for piece in bar.locator("i").all()]
    assert [round(100 * width / sum(widths)) for width in widths] == [60, 12, 28]
    opened.locator("#tree summary").first.click()
    assert lines(opened) == ["Net", "outside of any module flatten unlisted"]
    opened.locator("#search").fill("fc2")
    expect(opened.locator("#modules .count")).to_have_text("1 of 5")
    assert lines(opened) == ["Net", "fc2 linear lower"], "a search opens what it found"
    opened.locator("#search").fill("")
    expect(opened.locator("#modules .count")).to_have_text("5")
    assert lines(opened) == ["Net", "outside of any module flatten unlisted"], "and leaves closed what was closed"


def test_precisions(reader: Reader) -> None:
    runs_in = [["bfloat16"], ["float16"], ["float32"], ["bfloat16", "float32"], ["float64"], []]
    opened = reader.open(
        fake_reports.summed([fake_reports.row("mm", f"N: {i}", runs_in=each) for i, each in enumerate(runs_in)])
    )
    shares = ["bfloat16 17 %", "float16 17 %", "float32 17 %", "several dtypes 17 %", "other 33 %"]
    assert opened.locator(".precision .key").all_inner_texts() == shares
    assert opened.locator("#keys .key").all_inner_texts() == [
        "bfloat16",
        "float16",
        "float32",
        "several dtypes",
        "other",
    ]
    assert [each.get_attribute("aria-label") for each in opened.locator("#tree .stack").all()] == [
        ", ".join(shares),
        *(f"{name} 100 %" for name in ("bfloat16", "float16", "float32", "several dtypes", "other", "other")),
    ]


def test_a_deep_tree_opens_as_far_as_a_screen_holds(reader: Reader) -> None:
    opened = reader.open(fake_reports.gpt())
    assert lines(opened)[:5] == ["GPT", "wte embedding unlisted", "wpe embedding unlisted", "blocks", "0"]
    assert len(lines(opened)) == 22
    opened.locator("summary", has_text="blocks").press("Enter")
    assert len(lines(opened)) == 10
    opened.locator("#search").fill("blocks.7.attn softmax")
    expect(opened.locator("#modules .count")).to_have_text("1 of 150")
    assert lines(opened) == ["GPT", "blocks", "7", "attn softmax fp32"]


def test_the_timeline_tells_what_is_under_the_pointer(reader: Reader) -> None:
    opened = reader.open(fake_reports.small())
    canvas, tip, shown = (opened.locator(f"#timeline {each}") for each in ("canvas >> nth=0", ".tip", "output"))
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    lanes = opened.locator("#timeline .lanes > div").all_inner_texts()
    assert [each.split() for each in lanes] == [
        ["fp32", "→", "bf16"],
        ["bf16", "→", "fp32"],
        ["fp32", "→", "bf16", "backward"],
    ]

    def at(milliseconds: float, lane: int) -> tuple[float, float]:
        return box["x"] + box["width"] * milliseconds / 50, box["y"] + 42 * lane + 17

    opened.mouse.move(*at(2, 0))
    expect(tip).to_have_text("linear Net: fc1float32 → bfloat16at 1.00 ms, took 2.0 ms, on average 400 kB")
    opened.mouse.move(*at(18, 0))
    expect(tip).to_have_text("linear Net: fc2float32 → bfloat16, from the cacheat 18.00 ms, no copy")
    opened.mouse.move(*at(40.5, 2))
    expect(tip).to_have_text("softmax Netfloat32 → bfloat16, in backwardat 40.00 ms, took 1.0 ms, on average 100 kB")
    opened.mouse.move(*at(30, 0))
    expect(tip).to_be_hidden()
    opened.mouse.move(*at(10, 0))
    opened.mouse.down()
    opened.mouse.move(*at(20, 0), steps=3)
    opened.mouse.up()
    expect(shown).to_have_text(re.compile(r"(9\.9|10\.0)\d* ms to (19\.9|20\.0)\d* ms, 10 ms"))
    opened.mouse.dblclick(*at(10, 0))
    expect(shown).to_have_text("0.0 ms to 50.0 ms, 50 ms")
    opened.get_by_role("button", name="zoom in").click()
    expect(shown).to_have_text("12.5 ms to 37.5 ms, 25 ms")
    canvas.press("ArrowRight")
    expect(shown).to_have_text("18.8 ms to 43.8 ms, 25 ms")
    canvas.press("0")
    expect(shown).to_have_text("0.0 ms to 50.0 ms, 50 ms")


def test_the_timeline_answers_a_finger(reader: Reader) -> None:
    opened = reader.open(fake_reports.small(), has_touch=True)
    canvas = opened.locator("#timeline canvas").first
    canvas.tap(position={"x": canvas.bounding_box()["width"] * 2 / 50, "y": 17})
    expect(opened.locator("#timeline .tip")).to_contain_text("linear Net: fc1")


def test_the_timeline_dims_what_the_search_leaves_out(reader: Reader) -> None:
    pixel = """() => {
        const canvas = document.querySelector("#timeline canvas");
        return [...canvas.getContext("2d").getImageData(canvas.width * 2 / 50, 17, 1, 1).data];
    }"""
    assert reader.open(fake_reports.small()).evaluate(pixel) == [0, 114, 178, 255]
    opened = reader.open(fake_reports.small())
    opened.locator("#search").fill("softmax")
    expect(opened.locator("#timeline .count")).to_have_text("2 of 5")
    assert opened.evaluate(pixel)[3] < 64


def test_dark_and_light(reader: Reader) -> None:
    colours = set()
    for scheme in ("light", "dark"):
        opened = reader.open(fake_reports.small(), color_scheme=scheme)
        style = "each => { const style = getComputedStyle(each); return [style.color, style.backgroundColor]; }"
        text, back = (sum(map(int, each[4:-1].split(", "))) for each in opened.locator("body").evaluate(style))
        assert (text < 150 and back > 700) if scheme == "light" else (text > 600 and back < 100)
        colours.add(opened.locator("#tree i.bfloat16").first.evaluate("each => getComputedStyle(each).backgroundColor"))
    assert len(colours) == 2


def test_print_leaves_out_what_only_a_screen_can_use(reader: Reader) -> None:
    opened = reader.open(fake_reports.gpt(), color_scheme="light")  # a page of its own, which stays as if printed
    opened.emulate_media(media="print")
    expect(opened.locator("nav")).to_be_hidden()
    expect(opened.locator("#timeline .tools")).to_be_hidden()
    expect(opened.locator(".advice")).to_be_visible()


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
def test_hostile_names_stay_text(reader: Reader, scripts: bool) -> None:
    opened = reader.open(fake_reports.hostile(), java_script_enabled=scripts)
    assert opened.title() == f"{fake_reports.HOSTILE[0]} · cast report"
    assert opened.locator("h1").inner_text() == f"{fake_reports.HOSTILE[0]} cast report"
    # HTML cannot hold a lone surrogate; JSON can.
    written = [name.replace("\udcff", "\\udcff") for name in fake_reports.HOSTILE]
    assert opened.locator("#missed td:first-child").all_text_contents() == written
    assert opened.locator(".advice li p:first-child").all_text_contents() == written[:5]
    assert opened.locator("script").count() == 2
    assert opened.locator("img, main b b").count() == 0
    if scripts:
        for button in opened.locator("#ops .open").all():
            button.click()
        names = set(fake_reports.HOSTILE)
        assert set(opened.locator("#ops .open").all_text_contents()) == names
        assert set(opened.locator("#ops tr.module th").all_text_contents()) == {
            f"{name}: {name}.{name}" for name in names
        }
        opened.locator("#search").fill("__proto__")
        expect(opened.locator("#found")).to_have_text("1 of 7 rows")


def test_no_script_but_its_own_runs(reader: Reader) -> None:
    opened = reader.open(fake_reports.small())
    opened.evaluate("""() => {
        document.body.append(Object.assign(document.createElement("script"), {textContent: "document.title = 'owned'"}));
        document.body.insertAdjacentHTML("beforeend", `<img src="data:," onerror="document.title = 'owned'">`);
        return fetch("https://example.org").catch(() => 0);
    }""")
    opened.wait_for_timeout(50)
    assert opened.title() == "train.py · cast report"
    assert len(reader.complaints) >= 3
    assert all("Content Security Policy" in each for each in reader.complaints)
    reader.complaints.clear()


def test_an_empty_report_says_so(reader: Reader) -> None:
    opened = reader.open(fake_reports.empty())
    assert opened.locator("h1").inner_text() == "Cast report"
    expect(opened.locator(".advice")).to_contain_text("No op was seen in this block.")
    assert opened.locator("main section").count() == 0


def test_a_missed_op_is_one_line_for_all_its_modules(reader: Reader) -> None:
    opened = reader.open(fake_reports.gpt())
    held = "transformers.activations.ACT2FN['gelu'], gpt.ACTIVATION"
    expected = ["gelu", "24", held, "GPT: blocks.0.mlp.act and 11 more", "transformers/activations.py:46"]
    assert opened.locator("#missed td").all_inner_texts() == [*expected, "lower: gelu, lists/hmp-o1/lower.txt:9"]


def test_the_graphs_of_compiled_code(reader: Reader) -> None:
    cast = {"op": "mul", "backward": False, "from": "float32", "to": "bfloat16", "rule": "", "count": 1000}
    casts = [cast, {**cast, "backward": True, "count": 2}, {**cast, "op": "", "count": 1}]
    graphs = [
        {"graph": "0/0", "rounds": "fused", "calls": 3000, "casts": casts, "unrounded": 5},
        {"graph": "1/0", "rounds": "unknown", "calls": 1, "casts": [], "unrounded": 0},
    ]
    opened = reader.open({**fake_reports.small(), "compiled": graphs})
    rows = [row.locator("td").all_inner_texts() for row in opened.locator("#compiled tbody tr").all()]
    assert rows == [
        ["0/0", "fused", "3,000", "1,003", "5", "mul 1,000 mul in backward 2 result 1"],
        ["1/0", "unknown", "1", "unknown", "", ""],
    ]


def test_modules_sort_by_their_numbers(reader: Reader) -> None:
    opened = reader.open(fake_reports.gpt())
    opened.get_by_role("button", name="without casts").click()
    opened.get_by_role("button", name="softmax").click()
    opened.get_by_role("button", name="op", exact=True).click()
    modules = opened.locator("#ops tr.module th").all_inner_texts()
    assert modules == [f"GPT: blocks.{i}.attn" for i in range(12)]


def test_sections_with_nothing_in_them_are_named_in_a_line(reader: Reader) -> None:
    opened = reader.open(fake_reports.small() | {"missed": [], "recast": []})
    assert opened.locator("#missed, #recast").count() == 0
    expect(opened.locator(".nothing")).to_have_text("Nothing found for: cast again, missed.")


def test_a_huge_report_is_shown_by_pages(reader: Reader) -> None:
    opened = reader.open(fake_reports.huge())
    expect(opened.locator("#timeline")).to_contain_text("Sampled: the timeline shows one of every 16 casts.")
    assert len(ops(opened)) == 25
    assert opened.evaluate("document.querySelectorAll('*').length") < 8000
    opened.locator("#ops").get_by_role("button", name="… and 175 more").click()
    assert len(ops(opened)) == 200
    opened.locator("#ops .open").first.click()
    assert opened.locator("#ops tr.module th").count() == 20
    opened.get_by_role("button", name="… and 80 more").click()
    assert opened.locator("#ops tr.module th").count() == 100
    opened.locator("#search").fill("stack.99.layers.3.part7 custom")
    expect(opened.locator("#found")).to_have_text("1 of 20,000 rows")
    assert len(ops(opened)) == 1


def test_the_page_in_the_frame_of_a_notebook(reader: Reader) -> None:
    notebook = "<!doctype html><meta charset='utf-8'><title>notebook</title><style>td { color: red !important }</style>"
    opened = reader.open_text(notebook + framed(page(report_of(fake_reports.hostile()))))
    inside = opened.frame_locator("iframe")
    expect(inside.locator("h1")).to_contain_text(fake_reports.HOSTILE[0])
    expect(inside.locator("#unlisted h2")).not_to_be_in_viewport()
    inside.get_by_role("link", name="In no list").click()
    expect(inside.locator("#unlisted h2")).to_be_in_viewport()
    assert inside.locator("td").first.evaluate("each => getComputedStyle(each).color") != "rgb(255, 0, 0)"
    assert opened.title() == "notebook"


SECONDS = [0, 1e-10, 1e-9, 4.4e-7, 9.96e-6, 9.94e-5, 0.0009994, 0.0009996, 0.012, 0.9996, 1.04, 9.96, 61, 12_345.6]
SIZES = [0, 7, 999, 1000, 1049, 999_400, 999_600, 3_400_000, 12_600_000_000, 5_500_000_000_000]


def test_the_page_writes_figures_as_the_terminal_does(reader: Reader) -> None:
    rows = [fake_reports.row(f"t{i:02}", calls=1, seconds=each) for i, each in enumerate(SECONDS)] + [
        fake_reports.row(f"u{i:02}", casts=[fake_reports.cast("float32", "bfloat16", 1, 0, each, each / 1e13)])
        for i, each in enumerate(SIZES)
    ]
    opened = reader.open(fake_reports.summed(rows, seconds=3.0))
    opened.get_by_role("button", name="op", exact=True).click()
    shown = [cells(opened, i) for i in range(len(rows))]
    assert [line[4] for line in shown[: len(SECONDS)]] == [units.time(each) for each in SECONDS]
    assert [line[11] for line in shown[len(SECONDS) :]] == [units.size(each) for each in SIZES]
    assert [line[6] for line in shown[len(SECONDS) :]] == [units.share(each / 1e13, 3.0) for each in SIZES]
