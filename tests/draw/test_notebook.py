"""What a notebook shows: lines of the cast log in the cell that runs, policies, explanations and drawings.

One kernel runs all cells, as a notebook's does.
"""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from habana_mp import hmp

CAST = "casting  <built-in function linear> to_bf16\n"


@pytest.fixture(scope="module")
def run():
    """Runs a cell in the kernel and returns its outputs."""
    notebook = nbformat.v4.new_notebook()
    client = NotebookClient(notebook, timeout=60, kernel_name="python3")

    def run_cell(code: str):
        notebook.cells.append(nbformat.v4.new_code_cell(code))
        return client.execute_cell(notebook.cells[-1], len(notebook.cells) - 1).outputs

    with client.setup_kernel():
        made = "import os, torch\nfrom habana_mp import hmp\nmodel = torch.nn.Linear(4, 3)\nx = torch.randn(2, 4)"
        assert run_cell(made) == []
        yield run_cell


@pytest.fixture(autouse=True)
def _reverted(run):
    yield
    assert run("hmp.revert(); os.environ.pop('HABANA_MP_LOG', None);") == []


def printed(outputs) -> str:
    assert {(output.output_type, output.get("name")) for output in outputs} <= {("stream", "stdout")}
    return "".join(output.text for output in outputs)


def shown(outputs) -> dict[str, str]:
    (output,) = outputs
    assert output.output_type == "execute_result"
    return output.data


def test_verbose_lines_stand_in_the_cell_that_runs(run) -> None:
    assert printed(run("policy = hmp.convert(isVerbose=True)")) == "hmp:verbose_mode  True\nhmp:opt_level O1\n"
    assert printed(run("y = model(x)")) == CAST
    assert printed(run("y = model(x)\ny = model(x)")) == CAST * 2
    assert run("z = y.numel()") == []


def test_lines_stand_between_those_of_print(run) -> None:
    run("policy = hmp.convert(isVerbose=True)")
    assert printed(run("print('before')\ny = model(x)\nprint('after')")) == f"before\n{CAST}after\n"


def test_the_environment_sets_the_log_of_a_notebook(run) -> None:
    assert run("os.environ['HABANA_MP_LOG'] = 'casts'\npolicy = hmp.convert()") == []
    assert printed(run("y = model(x)")) == CAST


def test_the_detail_names_the_line_of_the_cell(run) -> None:
    run("os.environ['HABANA_MP_LOG'] = 'detail'\npolicy = hmp.convert()")
    first, second = printed(run("w = 1\ny = torch.mm(x, x.t())")).splitlines()[-2:]
    assert "mm of type" in first
    assert second.endswith(":2")


def test_casts_of_a_region_stand_in_the_cell(run) -> None:
    code = "os.environ['HABANA_MP_LOG'] = 'casts'\nwith hmp.autocast('cpu'):\n    y = model(x)"
    assert printed(run(code)) == "casting  <OpOverload(op='aten.linear', overload='default')> to_bf16\n"


@pytest.mark.parametrize(
    ("code", "kind", "start"),
    [
        ("hmp.convert()", "text/html", "<div>\n  <strong>Policy hmp</strong>"),
        ("hmp.explain('layer_norm')", "text/html", "<div>\n  <strong>layer_norm</strong>"),
        ("hmp.draw(model, x)", "image/svg+xml", "<?xml"),
    ],
    ids=["policy", "explanation", "drawing"],
)
def test_the_value_of_a_cell_is_shown(run, code, kind, start) -> None:
    found = shown(run(code))
    assert found[kind].startswith(start)
    assert found["text/plain"]


class Reader(HTMLParser):
    """The rows of the tables, and the tags and titles, of a piece of HTML; it has to close what it opens."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.titles: list[str] = []
        self.tags: set[str] = set()
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs) -> None:
        self._open.append(tag)
        self.tags.add(tag)
        self.titles += [value for name, value in attrs if name == "title"]
        if tag == "tr":
            self.rows.append([])
        elif tag in {"td", "th"}:
            self.rows[-1].append("")

    def handle_endtag(self, tag) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data) -> None:
        if {"td", "th"} & set(self._open):
            self.rows[-1][-1] = f"{self.rows[-1][-1]} {data}".strip()

    @property
    def words(self) -> dict[str, list[str]]:
        return {row[0]: [" ".join(cell.split()) for cell in row[1:]] for row in self.rows}


POLICIES = [
    (
        hmp.Policy.from_ops(lower=["mm", "linear"], fp32=["softmax"], name="own"),
        {
            "lower": ["bfloat16", "2 ops linear mm"],
            "fp32": ["float32", "1 op softmax"],
            "rest": ["the dtypes of the inputs", "all other ops"],
        },
    ),
    (hmp.Policy.from_ops(rest="fp32"), {"rest": ["float32", "all other ops"]}),
    (
        hmp.Policy.from_ops(promote=["add"], rest="first_input").with_edits("+mm:error"),
        {
            "promote": ["the widest dtype of the inputs", "1 op add"],
            "error": ["an error", "1 op mm"],
            "rest": ["the dtype of the first input", "all other ops"],
        },
    ),
]


@pytest.mark.parametrize(("policy", "rows"), POLICIES, ids=["lower-fp32", "no-lists", "promote-error"])
def test_rows_of_a_policy(policy, rows) -> None:
    assert Reader(policy._repr_html_()).words == rows


@pytest.mark.parametrize("name", hmp.presets())
def test_a_preset_shows_all_its_ops_and_where_they_come_from(name) -> None:
    policy = hmp.Policy.load(name)
    read = Reader(policy._repr_html_())
    assert len(read.titles) == sum(map(len, policy.lists.values()))
    for title, ops in policy.lists.items():
        if ops:
            assert read.words[title][1].split(maxsplit=2)[2] == " ".join(ops)
    assert ("Casts of weights are not kept" in policy._repr_html_()) is not policy.cached


@pytest.mark.parametrize("op", ["layer_norm", "mm", "add", "softmax", "_foreach_add"])
def test_an_explanation_says_in_html_what_it_says_in_text(op) -> None:
    explained = hmp.explain(op)
    words = Reader(explained._repr_html_()).words
    text = str(explained)
    for title in ("rule", "policy"):
        assert f"{title:<10} {words[title][0]}" in text
    for home, effect in explained.homes.items():
        assert f"{home} → {effect}" in words["homes"][0]
    assert explained.homes or words["homes"] == ["none: no Python call reaches it"]


def test_what_files_are_called_is_no_markup(tmp_path: Path) -> None:
    folder = tmp_path / "<img src=x onerror=alert(1)>"
    folder.mkdir()
    path = folder / "\"'&amp;<b>.txt"
    path.write_text("mm\n")
    policy = hmp.Policy.from_files(path)
    for html in (policy._repr_html_(), hmp.explain("mm", policy=policy)._repr_html_()):
        assert not Reader(html).tags & {"img", "b"}
    assert f"{path}:1" in Reader(policy._repr_html_()).titles


@pytest.mark.parametrize(
    "html", [POLICIES[0][0]._repr_html_(), hmp.explain("mm")._repr_html_()], ids=["policy", "explanation"]
)
def test_colours_are_those_of_the_page(html) -> None:
    assert "color" not in html
    assert "background" not in html
    assert not Reader(html).tags & {"style", "script"}
