"""Each example runs with few steps, warns of nothing, and prints what it promises."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def run(*command):
    """What a script of examples/ prints."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=EXAMPLES.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    return done.stdout


def rows(text, title):
    """The numbers in the lines of a table that begin with a number, below the line that begins with the title."""
    below = text[text.index(title) :].splitlines()[1:]
    return [[float(number) for number in line.split()] for line in below if re.fullmatch(r"\s*\d+[\d.\s]+", line)]


def test_the_table_has_every_example():
    named = re.findall(r"^\| \[([\w.]+)\]\(\1\)", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(path.name for path in (*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.ipynb")))


def test_digits():
    text = run("examples/digits.py")
    assert re.search(r"test accuracy +│ +9\d\.\d% │ +9\d\.\d%", text)
    assert "casting  <built-in method conv2d of type object" in text


def test_linear():
    text = run("examples/linear.py")
    assert "y_pred torch.bfloat16   loss torch.bfloat16   weight torch.float32   grad torch.float32" in text


def test_gpt_alone():
    text = run("examples/gpt.py", "--steps", "2")
    (_, first), (_, second) = rows(text, "loss at step")
    assert second < first < 8
    assert "training: the value of" in text


def test_gpt_in_three_ways():
    text = run("examples/gpt.py", "--steps", "4", "--policy", "hmp")
    for _, float32, convert, autocast in rows(text, "loss at step"):
        assert convert == autocast == pytest.approx(float32, abs=0.01)
    assert re.findall(r"^(\S+): the value of", text, re.MULTILINE) == ["float32", "hmp.convert", "hmp.autocast"]


def test_bert():
    text = run("examples/bert.py", "--steps", "3")
    float32, autocast, gaudi = map(float, re.search(r"^first loss +(\S+) +(\S+) +(\S+)$", text, re.MULTILINE).groups())
    assert autocast == pytest.approx(float32, abs=0.01)
    assert gaudi == pytest.approx(float32, abs=0.02)
    assert text.count("%") == 3


def test_gradient_accumulation():
    text = run("examples/gradient_accumulation.py", "--steps", "3")
    assert float(re.search(r"differ by (\S+)", text)[1]) < 0.01
    assert [row[2:] for row in rows(text, "step")] == [[3, 21]] * 3


@pytest.mark.parametrize("script", ["ddp", "fsdp2"])
def test_two_processes(script):
    text = run(*TORCHRUN, f"examples/{script}.py", "--steps", "3")
    for _, two, one in rows(text, "step"):
        assert two == pytest.approx(one, abs=1e-4)
    assert "losses of all 3 steps" in text


def test_one_process_is_refused_with_what_to_do():
    done = subprocess.run([sys.executable, EXAMPLES / "ddp.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "run it on two processes: torchrun --nproc-per-node 2 examples/ddp.py\n"


def test_inference_server():
    text = run("examples/inference_server.py", "--requests", "3")
    float32, bfloat16 = (float(right) for right in re.findall(r"([\d.]+)% right   12 requests", text))
    assert bfloat16 == pytest.approx(float32, abs=3)
    assert "weights cast 4 times, their copies used 56 times" in text  # 15 requests, 4 weights


def test_find_a_nan():
    text = run("examples/find_a_nan.py", "--steps", "10")
    assert "under the policy hmp it is nan at step 0" in text
    assert "mul makes infinities in bfloat16, in the forward pass" in text
    assert "edit     +mul:fp32" in text
    line = int(re.search(r"find_a_nan\.py:(\d+)", text)[1])
    assert "finfo(torch.float32).min" in (EXAMPLES / "find_a_nan.py").read_text().splitlines()[line - 1]
    assert re.search(r"3\. with_edits\('\+mul:fp32'\): after 10 steps the loss is 0\.\d+", text)


def test_rotary(tmp_path):
    text = run("examples/rotary.py", tmp_path / "page.html")
    assert "+mul:fp32" in (tmp_path / "page.html").read_text()
    assert re.search(
        r"^\+mul:fp32: makes \d+ % of the error of the loss \(estimated: 0\.\d+ -> 0\.0\d+\), in LlamaForCausalLM: model.rotary_emb; ",
        text,
        re.MULTILINE,
    )
    errors = [float(number) for number in re.findall(r"(0\.\d+)$", text, re.MULTILINE)]
    assert len(errors) == 3
    assert errors[1] <= errors[2] < errors[0] / 10  # the edited policy, torch.autocast, hmp


def test_tune_gpt():
    text = run("examples/tune_gpt.py", "--steps", "3")
    assert re.search(r"^\d+ parts, \d+ in float32; error \S+ of 0.002 after \d+ runs$", text, re.MULTILINE)
    assert "error on the data of check: " in text
    assert "\nLists: examples/out/gpt-lists   page: examples/out/tuned.html\n" in text
    assert re.search(r"^tuned: loss of the last 20 steps [+-]\d\.\d{4} against float32$", text, re.MULTILINE)
    lists = "".join((EXAMPLES / "out" / "gpt-lists" / f"{name}.txt").read_text() for name in ("lower", "fp32"))
    assert "# in bfloat16: predicted error " in lists


def test_rl_trainer():
    text = run("examples/rl_trainer.py", "--steps", "10")
    gaps = re.findall(
        r"(\S+) nats per token over 256 tokens, largest ratio (\d\.\d+), (\S+)% of tokens beyond 1.01", text
    )
    (nats, ratio, beyond), (_, edited_ratio, edited_beyond), (last, _, _) = (map(float, gap) for gap in gaps)
    assert 1 < edited_ratio < ratio
    assert edited_beyond < beyond / 2
    assert last < nats / 2
    shares = [int(share) for share in re.findall(r"^ +(\d+)%  \w+ +Model", text, re.MULTILINE)]
    assert sum(shares) >= 89  # rounded


@pytest.fixture(scope="module")
def gallery():
    """The notebook after its cells ran in a kernel, in order: the outputs of each code cell, by the first line of the cell."""
    notebook = nbformat.read(EXAMPLES / "gallery.ipynb", as_version=4)
    codes = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.outputs for cell in codes] == [[]] * len(codes)  # it is committed without outputs
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    return {cell.source.partition("\n")[0]: cell.outputs for cell in codes}


@pytest.mark.parametrize(
    ("cell", "kind", "part"),
    [
        pytest.param("hmp.convert()", "text/html", "Policy hmp", id="policy"),
        pytest.param("step()", "text/plain", "{'output': torch.bfloat16, 'weight': torch.float32,", id="dtypes"),
        pytest.param("with hmp.report() as report:", "text/html", "<iframe sandbox", id="report"),
        pytest.param("with hmp.report(values=True) as values:", "text/html", "<iframe sandbox", id="errors"),
        pytest.param('hmp.explain("layer_norm")', "text/html", "lists/hmp/lower.txt", id="explanation"),
        pytest.param('hmp.explain("nn.Linear", "softmax", "add")', "text/html", "softmax", id="explanations"),
        pytest.param("hmp.draw(model, x)", "image/svg+xml", ">layer_norm<", id="picture"),
        pytest.param("hmp.draw(model, x, report=values)", "image/svg+xml", ">layer_norm<", id="picture of errors"),
    ],
)
def test_the_gallery_shows(gallery, cell, kind, part):
    shown = [output.data for output in gallery[cell] if output.output_type == "execute_result"]
    assert [part in each[kind] for each in shown] == [True]


@pytest.mark.parametrize(
    ("cell", "line"),
    [
        ('print(f"{report.casts()} casts', "10 casts in the forward pass, 9 in the backward pass"),
        ("with hmp.report(values=True)", r"\+linear:fp32: makes \d+ % of the error of the loss .*"),
        ("hmp.revert()", r"layer_norm +float32 -> bfloat16 +1 +0 +-1"),
    ],
    ids=["counts", "edits", "diff"],
)
def test_the_gallery_prints(gallery, cell, line):
    (outputs,) = (found for code, found in gallery.items() if code.startswith(cell))
    printed = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")
    assert re.search(f"^{line}$", printed, re.MULTILINE), printed


def test_the_gallery_warns_of_nothing(gallery):
    assert [o.text for outputs in gallery.values() for o in outputs if o.get("name") == "stderr"] == []
