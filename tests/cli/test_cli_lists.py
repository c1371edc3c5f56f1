"""habana-mp lists: presets, show, diff, check and edit."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from click.testing import CliRunner, Result

from habana_mp import hmp
from habana_mp.cli import main


def lists(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["lists", *arguments])


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- presets, show


def test_presets():
    done = lists("presets")
    assert done.exit_code == 0
    title, *rows = done.stdout.splitlines()
    assert title.split() == "preset low dtype lower fp32 promote rest cache source".split()
    assert tuple(row.split()[0] for row in rows) == hmp.presets()
    assert rows[1].split() == "hmp bfloat16 25 15 18 first_input on HMP guide".split()


def test_presets_as_json():
    found = {row["name"]: row for row in json.loads(lists("presets", "--json", "-").stdout)}
    assert tuple(found) == hmp.presets()
    assert found["hpu-autocast"] == {
        "name": "hpu-autocast",
        "low_dtype": "bfloat16",
        "low_dtypes": ["bfloat16"],
        "rest": "inputs",
        "cache": False,
        "compiled": "exact",
        "source": "HPU autocast guide",
        "listed": {title: len(ops) for title, ops in hmp.Policy.load("hpu-autocast").lists.items()},
    }


@pytest.mark.parametrize("preset", hmp.presets())
def test_show_has_every_name(preset):
    policy = hmp.Policy.load(preset)
    words = lists("show", preset).stdout.split()
    assert words[0] == preset
    assert {policy.rest, str(policy.low_dtype).removeprefix("torch.")} <= {*words}
    assert {op for ops in policy.lists.values() for op in ops} <= {*words}


def test_show_as_json():
    printed = json.loads(lists("show", "torch-cuda", "--json", "-").stdout)
    assert printed["lists"] == {title: [*ops] for title, ops in hmp.Policy.load("torch-cuda").lists.items()}
    assert (printed["low_dtype"], printed["rest"], printed["cache"]) == ("float16", "inputs", True)


def test_show_marks_what_another_list_overrules():
    text = lists("show", "hmp").stdout
    assert "mul (lower)" in text
    assert text.endswith("\nA list in parentheses names the op too, and decides.\n")
    assert json.loads(lists("show", "hmp", "--json", "-").stdout)["overruled"]["promote"]["mul"] == "lower"
    assert "(" not in lists("show", "hmp-o2").stdout.partition("lower (")[2].partition("\n")[2]


# --- diff

BASE = hmp.Policy.from_ops(lower=["mm", "linear"], fp32=["softmax"], promote=["add"])


@pytest.mark.parametrize(
    ("other", "settings", "ops"),
    [
        (BASE, {}, {}),
        (BASE.with_edits("+mul:lower", "-mm"), {}, {"mm": ["lower", "rest"], "mul": ["rest", "lower"]}),
        (BASE.with_edits("+softmax:lower"), {}, {"softmax": ["fp32", "lower"]}),
        (BASE.with_edits("+mul@float16:lower"), {}, {"mul@float16": ["rest", "lower"]}),
        (
            BASE.with_edits("+mm@float16:fp32", "+mul@bfloat16:lower"),
            {},
            {"mm@float16": ["lower", "fp32"], "mul": ["rest", "lower"], "mul@bfloat16": ["rest", "lower"]},
        ),
        (BASE.with_low_dtype(torch.float16), {"low_dtype": ["bfloat16", "float16"]}, {}),
        (
            hmp.Policy.from_ops(lower=["mm", "linear"], fp32=["softmax"], promote=["add"], rest="fp32"),
            {"rest": ["inputs", "fp32"]},
            {},
        ),
        # An alias of what the other lists is the same op.
        (hmp.Policy.from_ops(lower=["mm", "linear", "__matmul__"], fp32=["softmax"], promote=["add"]), {}, {"__matmul__": ["rest", "lower"]}),
    ],
    ids=["same", "ops", "moved", "for one dtype", "for the other dtype", "low dtype", "rest", "alias"],
)  # fmt: skip
def test_diff(other, settings, ops):
    done = lists("diff", str(BASE), str(other), "--json", "-")
    printed = json.loads(done.stdout)
    assert (printed["settings"], printed["ops"]) == (settings, ops)
    plain = lists("diff", str(BASE), str(other))
    assert done.exit_code == plain.exit_code == bool(settings or ops)
    rows = [line.split()[0] for line in plain.stdout.splitlines()[1:]]
    assert rows == [*settings, *ops]


# --- check


@pytest.mark.parametrize(
    ("content", "printed"),
    [
        (b"", []),
        (b"# only a comment\n\n", []),
        (b"linear\nmm@float16 # attention\npow.Tensor_Scalar\n", []),
        (b"+linear\n-mm@bfloat16\n", []),
        (b"linear\nlienar\n", [(2, "'lienar' is not an op of torch", "Did you mean 'linear'")]),
        (b"torch.relu\n", [(1, "'torch.relu' is not an op of torch", "Did you mean 'relu'?")]),
        (b"+linear\n-rellu@float16\n", [(2, "'rellu' is not an op of torch", "Did you mean 'relu'")]),
        (b"mm mm\n\nmm,\nbmm\n", [(1, "'mm mm' is not an op name", ""), (3, "'mm,' is not an op name", "")]),
        (b"aten::mm\n", [(1, "'aten::mm' is not an op name", "(write 'mm')")]),
        (b"mm@float64\r\nmm@\rbmm", [(1, "'mm@float64' is not an entry", "float16 or bfloat16"), (2, "'mm@' is not an entry", "")]),
        (b"mm\nbmm\nmm\n", [(3, "'mm' is in line 1 already", "")]),
        (b"+mm\n+bmm\n-mm\n", [(3, "'mm' is taken out here and added in line 1", "")]),
        (b"mm\n+bmm\n", [(2, "'bmm' begins with + or -", "")]),
        (b"# for accuracy\n+mul in layers.*:fp32  # why\n+mm@float16:lower\n-bmm\n", []),
        (b"+mm:fp32\nbmm:fp32\n+exp:low\n", [(2, "'bmm:fp32' is not an edit of a policy", "neither + nor -"), (3, "'+exp:low' is not an", "'lower'")]),
        (b"mm\nbmm\n+exp:fp32\n", [(3, "'exp:fp32' is not an op name", "(leave out ':fp32'")]),
        (b"+mm:bf16\n", [(1, "'+mm:bf16' is not an edit of a policy", "Did you mean 'lower'?")]),
        (b"+mm:int8\n+softmax:int8\n", [(2, "'softmax' cannot be in the int8 list", "Accepted are linear")]),
        (b"\xef\xbb\xbf+mm:fp32\n", []),
        (b"+mm:fp32\n-rellu\n+mm:lower\n", [(2, "'rellu' is not an op of torch", "'relu'"), (3, "'mm' is in line 1 already", "")]),
        (b"\xff\xfe\nlienar\n", [(1, "'\\xff\\xfe' is not an op name", ""), (2, "'lienar' is not an op", "")]),
    ],
    ids=[
        "empty", "comments", "fine", "edits", "unknown", "path of a name", "unknown edit", "no names", "aten", "conditions", "twice",
        "in and out", "mixed", "edits of a policy", "wrong edits", "a list with an edit", "edits into no list", "edits into a list for 8 bits", "edits with a mark of UTF-8", "edits of an unknown op and of one op twice", "bytes",
    ],
)  # fmt: skip
def test_check(here, content, printed):
    Path("my.txt").write_bytes(content)
    done = lists("check", "my.txt")
    lines = done.stdout.splitlines() if printed else []
    assert done.exit_code == bool(printed)
    assert len(lines) == len(printed)
    for line, (number, begin, hint) in zip(lines, printed):
        assert line.startswith(f"my.txt:{number}: {begin}")
        assert hint in line
    found = json.loads(lists("check", "my.txt", "--json", "-").stdout)
    assert [f"{each['file']}:{each['line']}: {each['message']}" for each in found] == lines


@pytest.mark.parametrize(
    ("make", "why"),
    [
        pytest.param(lambda path: path.write_bytes(b"mm\n" * 400000), "the file is larger than 1 MiB", id="large"),
        pytest.param(lambda path: path.symlink_to("/dev/zero"), "the file is larger than 1 MiB", id="device"),
        pytest.param(os.mkfifo, "no process writes to this pipe", id="pipe"),
    ],
)
def test_check_of_a_file_that_is_no_list(here, make, why):
    make(Path("my.txt"))
    done = lists("check", "my.txt")
    assert (done.exit_code, done.stdout) == (1, f"my.txt: {why}\n")


def test_check_of_several_files(here):
    Path("a.txt").write_text("lienar\n")
    Path("b.txt").write_text("linear\n")
    Path("c.txt").write_text("linear\n\nsofmax\n")
    done = lists("check", "a.txt", "b.txt", "c.txt")
    assert [line.split(" ")[0] for line in done.stdout.splitlines()] == ["a.txt:1:", "c.txt:3:"]


@pytest.mark.parametrize("line", ["no name\n", "noname{}\n", "mm\n"], ids=["no names", "unknown", "twice"])
def test_check_stops_with_what_is_no_list(here, line):
    Path("my.txt").write_text("".join(line.format(i) for i in range(2000)))
    lines = lists("check", "my.txt").stdout.splitlines()
    assert len(lines) == 51
    assert lines[-1] == "my.txt: and more: 50 mistakes of a file are shown"


@pytest.mark.parametrize("preset", hmp.presets())
def test_the_presets_have_no_mistakes(preset):
    folder = Path(hmp.__file__).parent / "lists" / preset
    done = lists("check", str(folder))
    assert (done.exit_code, done.stdout) == (0, "no mistakes found\n")


TOML = 'low_dtype = "bfloat16"\nrest = "inputs"\n'


@pytest.mark.parametrize(
    ("changed", "printed"),
    [
        ({}, []),
        (
            {"fp32.txt": "softmax\nmm\nlinear\n"},
            ["my/fp32.txt:2: 'mm' is in the lower list", "my/fp32.txt:3: 'linear' is in the lower list"],
        ),
        ({"fp32.txt": "mm@float16\n"}, []),
        ({"lower.txt": "", "int8.txt": "mm\nlinear in head\n", "weight_int8.txt": "embedding\n"}, []),
        ({"int8.txt": "conv1d\nembedding\n"}, ["my/int8.txt:2: 'embedding' cannot be in the int8 list. Accepted are linear"]),
        ({"int8.txt": "linear\n"}, ["my/int8.txt:1: 'linear' is in the lower list"]),
        ({"promote.txt": "+add\n"}, ["my/promote.txt: names that begin with + or - edit another list"]),
        ({"lower.txt": "lienar\n", "fp32.txt": "a b\n"}, ["my/lower.txt:1: 'lienar'", "my/fp32.txt:1: 'a b'"]),
        ({"policy.toml": TOML + 'rset = "fp32"\n'}, ["my/policy.toml: 'rset' is not a key of a policy"]),
        ({"policy.toml": TOML.replace("inputs", "all")}, ["my/policy.toml: "]),
        ({"policy.toml": TOML + "="}, ["my/policy.toml: "]),
        ({"policy.toml": TOML + 'error = ["lienar"]'}, ["my/policy.toml: 'lienar' is not an op of torch"]),
        (
            {"policy.toml": 'low_dtype = "bf16"\nrest = "input"\nchache = true\n'},
            [
                "my/policy.toml: 'chache' is not a key",
                "my/policy.toml: low_dtype must be bfloat16 or float16, not 'bf16'",
                "my/policy.toml: 'input' is not a rest of a policy",
            ],
        ),
        ({"promote.txt": None}, ["my/promote.txt: No such file or directory; the folder of a policy has policy.toml, lower.txt, fp32.txt, promote.txt"]),
        ({"policy.toml": None}, ["my/policy.toml: No such file or directory; the folder of a policy has policy.toml, lower.txt, fp32.txt, promote.txt"]),
    ],
    ids=["fine", "claimed twice", "one dtype", "in 8 bits", "not in 8 bits", "claimed by int8", "edits", "two files", "key", "rest", "toml", "error list", "three in one", "no list", "no toml"],
)  # fmt: skip
def test_check_of_a_folder(here, changed, printed):
    Path("my").mkdir()
    for name, text in {
        "policy.toml": TOML,
        "lower.txt": "mm\nlinear\n",
        "fp32.txt": "softmax\n",
        "promote.txt": "add\n",
        **changed,
    }.items():
        if text is not None:
            Path("my", name).write_text(text)
    done = lists("check", "my")
    assert lists("check", "my/policy.toml").stdout == done.stdout or changed == {"policy.toml": None}
    lines = done.stdout.splitlines() if printed else []
    assert done.exit_code == bool(printed)
    assert len(lines) == len(printed)
    assert [line.startswith(begin) for line, begin in zip(lines, printed)] == [True] * len(printed), lines


# --- the hook of pre-commit

ROOT = Path(__file__).parent.parent.parent
HOOK_FILES = {
    "mine/lower.txt": True,
    "fp32.txt": True,
    "a/promote.since-2.15.txt": True,
    "fp32.before-2.9.txt": True,
    "slower.txt": False,
    "requirements.txt": False,
    "lower.txt.orig": False,
    "fp32.old.txt": False,
}


@pytest.fixture
def hook():
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    return hook


def test_the_hook_has_what_pre_commit_asks_for(hook):
    assert {"id", "name", "entry", "language"} <= set(hook)
    assert all(isinstance(hook[key], str) for key in ("id", "name", "entry", "language", "description", "files"))
    assert (hook["language"], hook["require_serial"]) == ("system", True)


@pytest.mark.parametrize("path", HOOK_FILES)
def test_the_hook_takes_list_files(hook, path):
    assert bool(re.search(hook["files"], path)) == HOOK_FILES[path]


@pytest.mark.parametrize(
    ("files", "status", "printed"),
    [
        ({"lower.txt": "linear\n"}, 0, "no mistakes found\n"),
        (
            {"lower.txt": "linear\n", "fp32.txt": "softmax\nlienar\n"},
            1,
            "fp32.txt:2: 'lienar' is not an op of torch .*\n",
        ),
    ],
    ids=["good", "bad"],
)
def test_the_entry_of_the_hook(hook, here, files, status, printed):
    """pre-commit appends the names of the files that are to be committed."""
    for name, text in files.items():
        Path(name).write_text(text)
    command, *arguments = shlex.split(hook["entry"])
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [shutil.which(command, path=path), *arguments, *files], capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stderr
    assert re.fullmatch(printed, done.stdout)


def test_the_hook_of_the_page_is_the_same(hook):
    page = (ROOT / "docs" / "editors.md").read_text()
    uses, local = re.findall(r'^```yaml title="[^"\n]*"\n(.*?)^```', page, re.MULTILINE | re.DOTALL)
    assert yaml.safe_load(uses)["repos"][0]["hooks"][0]["id"] == hook["id"]
    (written,) = yaml.safe_load(local)["repos"][0]["hooks"]
    assert {**hook, "files": written["files"]} == {**written, "description": hook["description"]}


# --- edit


@pytest.mark.parametrize(
    ("base", "edits"),
    [
        ("hmp", ["+softmax:lower", "-mm"]),
        ("hmp", ["-mm@float16", "+gelu@bfloat16:fp32"]),
        ("torch-cuda", ["+binary_cross_entropy:fp32", "+dist:error"]),
        ("hpu-autocast", ["-add", "-mm"]),
        ("hmp-o2", ["+pow.Tensor_Scalar:promote"]),
        (str(BASE), ["-linear"]),
    ],
    ids=["moved", "for one dtype", "error", "no cache", "overload", "text"],
)  # fmt: skip
def test_what_edit_writes_is_the_policy(here, base, edits):
    expected = hmp.Policy.load(base).with_edits(*edits)
    written = lists("edit", base, *edits, "--output", "deep/my-policy_1")
    assert (written.exit_code, written.stdout) == (0, "")
    loaded = hmp.Policy.load("deep/my-policy_1")
    assert loaded == expected
    assert loaded.name == "my-policy_1"
    assert hmp.convert(policy="deep/my-policy_1") == expected
    text = lists("edit", base, *edits)
    assert hmp.Policy.load(text.stdout.strip()) == expected
    assert lists("check", "deep/my-policy_1").exit_code == 0


def test_a_policy_can_be_edited_where_it_is(here):
    lists("edit", "hmp", "-mm", "--output", "my")
    done = lists("edit", "my", "-bmm", "--output", "my")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == "Note: bmm now follows its first input; +bmm:fp32 keeps it in float32\n"
    assert hmp.Policy.load("my") == hmp.Policy.load("hmp").with_edits("-mm", "-bmm")


def test_edit_keeps_the_comments_behind_names(here):
    Path("my").mkdir()
    Path("my/policy.toml").write_text(TOML)
    for name, text in {
        "lower": "mm  # fast\nlinear\n",
        "fp32": "softmax # sums\nmul in head # of rope\n",
        "promote": "",
    }.items():
        Path("my", f"{name}.txt").write_text(text)
    assert lists("edit", "my", "-linear", "+exp:fp32", "--output", "my").exit_code == 0
    assert Path("my/lower.txt").read_text().splitlines()[1:] == ["mm  # fast"]
    assert Path("my/fp32.txt").read_text().splitlines()[1:] == ["exp", "softmax  # sums", "mul in head  # of rope"]


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["nope", "-mm"], "Error: Unknown policy 'nope'"),
        (["hmp", "mm"], "Error: 'mm' is not an edit of a policy: it begins with neither + nor -. Accepted"),
        (["hmp", "+mm"], "Error: '+mm' is not an edit of a policy"),
        (["hmp", "+mm:lowest"], "Error: '+mm:lowest' is not an edit of a policy"),
        (["hmp", "-lienar"], "Error: 'lienar' is not an op of torch"),
        (["hmp", "-mm", "--output", "full"], "Error: full has files in it. Use a new folder"),
        (["hmp", "-mm", "--output", "other"], "Error: other has files in it. Use a new folder"),
        (["hmp", "-mm", "--output", "my lists"], "Error: 'my lists' is not a policy name"),
        (["hmp", "-mm", "--output", "/proc/my"], "Error: /proc/my: "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_edit_used_wrongly(here, arguments, printed):
    Path("full").mkdir()
    Path("full/letter.txt").write_text("Dear Ada")
    lists("edit", "hmp-o1", "-bmm", "--output", "other")
    before = sorted(here.rglob("*"))
    done = lists("edit", *arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith(printed)
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    assert sorted(here.rglob("*")) == before
