"""What is made of the rows of benchmarks: the page that users read, and the goals of contributors."""

import re
from pathlib import Path

import pytest
from harness import figures, goals, pages, results, summary
from harness.pages import Report
from harness.rows import Comparison, Ratio, Row, rows_of, table_of, table_of_comparisons

ROOT = Path(__file__).parent.parent.parent
OVERHEAD = "mm(8x8), nothing to cast, only mm patched: "


def section(*rows, machine="a machine", commit=""):
    return results.Section(machine, [*rows], commit)


def compared(group, **times):
    """Comparisons of one thread, by model: milliseconds of autocast, bf16 and hmp."""
    comparisons = [
        Comparison(f"{model}, batch 1, 1 thread", "ms", dict(zip(("autocast", "bf16", "hmp"), taken, strict=True)), [])
        for model, taken in times.items()
    ]
    return section(*rows_of({group: comparisons}))


OVERHEADS = section(
    Row(f"{OVERHEAD}extra", 12.4, "ns"),
    Row(f"{OVERHEAD}native call", 1000, "ns"),
    Row(f"{OVERHEAD}extra of torch.autocast", 41, "ns"),
)


def test_lines_come_from_the_rows():
    found = {
        "Inference": compared("inference", cnn=(10, 10, 5), mlp=(8, 3, 2), vit=(10, 10, 10)),
        "Decoding": compared("decoding", llama=(8, 4, 2)),
        "Compiled models": compared("compiled inference", cnn=(10, 10, 10.1)),
        "Training": compared("training step", cnn=(10, 5, 12)),
        "Overhead": OVERHEADS,
    }
    lines = summary.lines(found)
    assert [line.partition(". ")[0] for line in lines[:4]] == [
        "**Inference** is faster than `torch.autocast` (0.50 of its time, 0.25 to 1.00 by model), and faster than the model held in bfloat16 (0.67 of its time, 0.50 to 1.00 by model)",
        "**Decoding** is faster than `torch.autocast` (0.25 of its time, 0.25 to 0.25 by model), and faster than the model held in bfloat16 (0.50 of its time, 0.50 to 0.50 by model)",
        "**Compiled inference** is about as fast as `torch.autocast` (1.01 of its time, 1.01 to 1.01 by model), and about as fast as the model held in bfloat16 (1.01 of its time, 1.01 to 1.01 by model)",
        "**A training step** is slower than `torch.autocast` (1.20 of its time, 1.20 to 1.20 by model), and slower than the model held in bfloat16 (2.40 of its time, 2.40 to 2.40 by model)",
    ]
    assert lines[5].startswith(
        "**A patched op** with nothing to cast takes 12 ns more than torch's own op, which takes 1000 ns. Under `torch.autocast` the op takes 41 ns more than torch's own."
    )


def test_what_is_not_measured_is_said():
    lines = summary.lines({"Decoding": compared("decoding", llama=(8, 4, 2))})
    assert len(lines) == 6
    assert [line for line in lines if line.endswith(" not measured yet.")] == [lines[0], *lines[2:]]


def test_the_line_of_eight_bits_has_decoding_and_products():
    steps = [Row(f"decoding, {model}, batch 1, 1 thread: int8 / hmp", x, "x") for model, x in (("a", 0.5), ("b", 0.7))]
    others = [Row(f"decoding, a: int8, {what} / hmp, {what}", 9, "x") for what in ("compiled", "attention in fp32")]
    products = [Row(f"linear 4 to 8, {rows} rows, 1 thread: hmp, int8 / hmp", rows / 100, "x") for rows in (40, 50, 90)]
    others += [Row(f"linear 4 to 8, 64 rows, 1 thread: hmp, {what}", 9, "x") for what in ("weight_int8 / hmp", "int8")]
    line = summary.lines({"Decoding": section(*steps, *others), "Linear layers": section(*products)})[4]
    assert line.startswith(
        "**Eight bits**: with its linear layers in [`int8`](int8.md), a decoding step takes 0.60 of its time in bfloat16 (0.50 to 0.70 by model), "
        "and a linear layer alone 0.50 (0.40 to 0.90 by the number of rows). "
    )


def test_short_table():
    found = {
        "Decoding": compared("decoding", llama=(8, 4, 2), gpt=(10, 10, 5), t5=(10, 2, 4)),
        "Memory": section(*(Row(f"peak memory, cnn, batch 8: {name}", 100, "MiB") for name in ("hmp", "autocast"))),
    }
    assert summary.short_table(found).splitlines()[2:] == [
        "| Decoding, batch 1 | 0.40 (0.25 to 0.50) | 0.50 (0.50 to 2.00) | 3 |",
        "| Peak memory of a training step | 1.00 (1.00 to 1.00) |  | 1 |",
    ]


GOALS = """\
[[goals]]
rows = "a?"
at_least = 3
why = "Reason a."
missed = "Known of a."

[[goals]]
rows = ["b", "mm(8x8), *: extra"]
at_most = 30
why = "Reason b."

[[goals]]
rows = ["found, of *", "*"]
at_least = "all"
why = "Reason c."
"""


def test_goals_page_has_every_goal_and_why_rows_miss_it(tmp_path):
    path = tmp_path / "goals.toml"
    path.write_text(GOALS)
    found = {
        "Overhead": OVERHEADS,
        "Others": section(
            Row("a1", 2, "x"), Row("a2", 3, "x"), Row("b", 0, ""), Row("found, of 4", 4, ""), machine="m"
        ),
        "Without": section(),
    }
    found["Overhead"].rows[1:] = []
    text = goals.goals_page(found, goals.load(path))
    assert [line for line in text.splitlines() if line.startswith(("|", "## ", "Machine"))] == [
        "| section | rows with a goal | met | missed |",
        "| --- | ---: | ---: | ---: |",
        "| [Overhead](#overhead) | 1 | 1 | 0 |",
        "| [Others](#others) | 4 | 3 | 1 |",
        "| all | 5 | 4 | 1 |",
        "## Overhead",
        "Machine: a machine.",
        "| rows | goal | met |  |",
        "| --- | ---: | ---: | --- |",
        "| `b`<br>`mm(8x8), *: extra` | ≤ 30 ns | 1 of 1 | Reason b. |",
        "## Others",
        "Machine: m.",
        "| rows | goal | met |  |",
        "| --- | ---: | ---: | --- |",
        "| `a?` | ≥ 3 x | 1 of 2 | Reason a. |",
        "| `b`<br>`mm(8x8), *: extra` | ≤ 30 | 1 of 1 | Reason b. |",
        "| `found, of *`<br>`*` | all | 1 of 1 | Reason c. |",
        "| missed | measured | goal |  |",
        "| --- | ---: | ---: | --- |",
        "| a1 | 2 x | ≥ 3 x | Known of a. |",
    ]


def test_each_goal_has_its_reason_and_each_missed_row_a_sentence():
    found = goals.by_goal(
        [row for each in results.load(ROOT / "benchmarks" / "results.json").values() for row in each.rows], goals.load()
    )
    assert [goal.rows for goal in goals.load() if not goal.why] == []
    silent = [row.what for goal, rows in found.items() for row in rows if not goal.is_met(row) and not goal.missed]
    assert silent == [], "these rows miss their goal: give the reason as `missed` in benchmarks/goals.toml"


def test_tables_of_users_have_no_goals():
    ratios = [Ratio("hmp", "bf16"), Ratio("bf16", "hmp")]
    comparison = Comparison("cnn", "ms", {"bf16": 2.0, "hmp": 4.0}, ratios)
    assert table_of_comparisons([comparison]).splitlines()[0::2] == [
        "|  | bf16, ms | hmp, ms | hmp / bf16 | bf16 / hmp |",
        "| cnn | 2 | 4 | 2.00 | 0.50 |",
    ]
    assert table_of([Row("a", 1, "ms")]).splitlines() == ["| what | measured |", "| --- | ---: |", "| a | 1 ms |"]
    assert table_of([Row("a", 1, "ms", "beside")]).splitlines()[2] == "| a | 1 ms | beside |"


def test_results_come_back(tmp_path):
    rows = [Row("a", 1.25, "ms"), Row("b", 1 / 3, "", "beside"), Row("c", 0.0, "x")]
    path = tmp_path / "benchmarks" / "results.json"
    results.save(path, {"One": section(*rows), "Two": section(machine="other", commit="abcdef012")})
    again = results.load(path)
    assert [row.measured for row in again["One"].rows] == [1.25, 0.333333, 0.0]
    assert [(row.what, row.unit, row.beside) for row in again["One"].rows] == [
        ("a", "ms", ""),
        ("b", "", "beside"),
        ("c", "x", ""),
    ]
    assert (again["Two"].machine, again["Two"].commit, again["Two"].rows) == ("other", "abcdef012", [])
    assert again["One"].commit == ""


@pytest.mark.parametrize(
    ("commits", "sentence"),
    [
        pytest.param(("abcdef012", "abcdef012"), " They ran at commit abcdef012.", id="one"),
        pytest.param(
            ("abcdef012", ""),
            " They ran at commit abcdef012 (Inference), commit not known (Decoding).",
            id="of-one-run",
        ),
        pytest.param(("", ""), "", id="none"),
    ],
)
def test_the_page_of_users_names_the_commits(commits, sentence):
    found = {title: section(commit=commit) for title, commit in zip(("Inference", "Decoding"), commits, strict=True)}
    assert f"measured them on a machine.{sentence}\n" in pages.front_page(found)


def test_sections_are_in_order():
    assert pages.in_order(["Others", "Tuning", "Inference", "Overhead"]) == [
        "Inference",
        "Overhead",
        "Tuning",
        "Others",
    ]


@pytest.mark.parametrize("path", ["docs/benchmarks.md", "benchmarks/goals.md"])
def test_pages_are_those_of_the_results(path, tmp_path):
    """A page that is edited by hand, or results without their page, are stale."""
    for folder in ("docs", "benchmarks"):
        (tmp_path / folder).mkdir()
    pages.write_pages(tmp_path, results.load(ROOT / "benchmarks" / "results.json"))
    assert (tmp_path / path).read_text() == (ROOT / path).read_text()


def test_a_run_on_a_gpu_writes_its_section_alone(tmp_path):
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "benchmarks-gpu.md"
    assert (ROOT / "docs" / "benchmarks-gpu.md").read_text().startswith(pages.GPU_HEAD)
    page.write_text(pages.GPU_HEAD)
    for title in ("Training", "Inference"):
        pages.write_gpu(tmp_path, Report(title, [Row("a", 1, "ms")], "A table."), "a GPU", "abcdef012")
    sections = [
        f"## {title}\n\nMachine: a GPU. Measured at commit abcdef012.\n\nA table.\n"
        for title in ("Inference", "Training")
    ]
    assert page.read_text() == "\n".join([pages.GPU_HEAD, *sections])
    assert [*tmp_path.rglob("*.json"), *tmp_path.rglob("*.svg")] == []


def test_the_page_of_users_opens_with_six_lines():
    lines = (ROOT / "docs" / "benchmarks.md").read_text().splitlines()
    assert lines[:2] == ["# Benchmarks", ""]
    assert [line.partition(". **")[0] for line in lines[2:8]] == ["1", "2", "3", "4", "5", "6"]
    assert lines[8] == ""


def test_every_section_of_the_tables_has_results():
    text = (ROOT / "docs" / "benchmarks-tables.md").read_text()
    titles = re.findall(r"^## (.+)$", text, re.MULTILINE)
    accuracy = re.findall(r"^## (.+)$", (ROOT / "docs" / "accuracy.md").read_text(), re.MULTILINE)
    assert titles + accuracy == [*results.load(ROOT / "benchmarks" / "results.json")]
    assert [what for what in ("missed", "goal", "≤", "≥") if what in text] == []


@pytest.mark.parametrize(
    ("in_readme", "on_the_page"),
    [
        ("time of inference, batch 1", "Inference, batch 1"),
        ("time of decoding, batch 1", "Decoding, batch 1"),
        ("time of a training step", "Training step"),
    ],
    ids=lambda name: name,
)
def test_the_readme_has_the_figures_of_the_page(in_readme, on_the_page):
    def cells(path, first):
        (line,) = [line for line in (ROOT / path).read_text().splitlines() if line.startswith(f"| {first} |")]
        return [cell.strip() for cell in line.strip("|").split("|")]

    assert cells("README.md", in_readme)[4] == cells("docs/benchmarks.md", on_the_page)[1]


@pytest.mark.parametrize("sentence", figures.load(), ids=lambda sentence: f"{sentence.page}: {sentence.text[:40]}")
def test_figures_in_sentences_are_those_of_the_results(sentence):
    """Copied by hand, seven of them were those of earlier runs."""
    rows = [row for section in results.load(ROOT / "benchmarks" / "results.json").values() for row in section.rows]
    page = (ROOT / sentence.page).read_text()
    assert page == sentence.written(page, rows), "run `make bench`, or its pages.write_pages"


STEPS = figures.Sentence(
    "page.md", "A step takes {0:.1f} ms, and {1.least:.2f} to {1.most:.2f} of b.", ("step: ms", "* / b")
)
ROWS = [Row("step: ms", 12.34, "ms"), Row("x / b", 0.5, "x"), Row("y / b", 2, "x")]


def test_figures_are_written_where_the_sentence_stands():
    page = "Before 3. A step\ntakes 9.9 ms, and 0.10\nto 0.20 of b. A step takes none."
    assert STEPS.written(page, ROWS) == "Before 3. A step\ntakes 12.3 ms, and 0.50\nto 2.00 of b. A step takes none."


@pytest.mark.parametrize(
    ("page", "rows", "message"),
    [
        pytest.param("A step takes long.", ROWS, "page.md has this 0 times, not once: A step", id="no-sentence"),
        pytest.param("A step takes 1 ms, and 2 to 3 of b. " * 2, ROWS, "page.md has this 2 times", id="twice"),
        pytest.param("", ROWS[:1], "page.md: no row is named '* / b'", id="no-row"),
        pytest.param("", [*ROWS, Row("step: ms", 1, "ms")], "several rows have this name", id="several-rows"),
    ],
)
def test_figures_that_cannot_be_written(page, rows, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        STEPS.written(page, rows)
