"""A search that was killed goes on from the file of its runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from planted_faults import Model, X

from habana_mp import hmp

SEARCH = """
import os, signal, sys
from planted_faults import Model, X
from habana_mp import hmp

model, calls, killed_in = Model("cos", "sub", "var"), 0, int(sys.argv[1])

def step():
    global calls
    calls += 1
    if calls == killed_in:
        os.kill(os.getpid(), signal.SIGKILL)
    return model(X)

found = hmp.tune(step, float(sys.argv[2]), start="hmp", others="lower", cost="numbers", resume="search.json", check=step)
print(calls, found.runs, found.error, found.check_error, found.policy)
"""


def search(killed_in: int = 0, budget: float = 1e-2) -> list[str]:
    """How often the step ran, and what was found; nothing where it was killed."""
    paths = [str(Path(__file__).parents[2] / "shared/models"), str(Path(__file__).parents[3])]
    done = subprocess.run(
        [sys.executable, "-c", SEARCH, str(killed_in), str(budget)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert done.returncode == (-signal.SIGKILL if killed_in else 0), done.stderr
    return done.stdout.split(maxsplit=1)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no such signal")
def test_a_killed_search_goes_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    calls, whole = search()
    for killed_in in (4, 8):
        Path("search.json").unlink()
        assert search(killed_in) == []
        kept = Path("search.json").read_bytes()
        left, resumed = search()
        assert resumed == whole
        assert int(left) == int(calls) - (killed_in - 3)  # the two in float32 and the killed one run again
        assert Path("search.json").read_bytes() != kept
        assert [path.name for path in tmp_path.iterdir()] == ["search.json"]


class Counted:
    def __init__(self, *planted: str) -> None:
        self.model, self.calls = Model(*planted), 0

    def __call__(self) -> torch.Tensor:
        self.calls += 1
        return self.model(X)


@pytest.fixture
def kept(tmp_path):
    file = tmp_path / "search.json"
    hmp.tune(Counted("cos", "sub"), 1e-2, cost="numbers", resume=file)
    return file


def test_all_but_the_reference_is_taken_from_the_file(tmp_path):
    first, second = Counted("cos"), Counted("cos")
    whole = hmp.tune(first, 1e-2, cost="numbers", resume=tmp_path / "search.json")
    again = hmp.tune(second, 1e-2, cost="numbers", resume=str(tmp_path / "search.json"))
    assert (first.calls, second.calls) == (whole.runs, 1)
    assert again.to_dict() == whole.to_dict()


def test_with_seconds_the_runs_are_taken_from_the_file_too(tmp_path):
    first, second = Counted("cos"), Counted("cos")
    found = hmp.tune(first, 1e-2, resume=tmp_path / "search.json")
    again = hmp.tune(second, 1e-2, resume=tmp_path / "search.json")
    assert second.calls == 1
    assert again.to_dict() == found.to_dict()


@pytest.mark.parametrize("budget", [0.9, 3e-3, 1e-5])
def test_another_budget_uses_the_runs(budget, kept):
    step, alone = Counted("cos", "sub"), Counted("cos", "sub")
    found = hmp.tune(step, budget, cost="numbers", resume=kept)
    whole = hmp.tune(alone, budget, cost="numbers")
    assert (found.policy, found.error, found.runs) == (whole.policy, whole.error, whole.runs)
    assert step.calls <= alone.calls - 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cost": "seconds"}, "the file is of a search with cost='numbers', not 'seconds'"),
        ({"per": "module"}, "the file is of a search with per='op', not 'module'"),
        ({"others": "lower"}, "the file is of a search with others='start', not 'lower'"),
        ({"seed": 1}, "the file is of a search with seed=0, not 1"),
        ({"metric": "gradients"}, "the file is of a search with metric='results', not 'gradients'"),
        ({"start": "torch-cpu"}, "the file is of a search with start='name="),
    ],
    ids=["cost", "per", "others", "seed", "metric", "start"],
)
def test_a_file_of_other_settings_is_refused(options, said, kept):
    before = kept.read_bytes()
    step = Counted("cos", "sub")
    with pytest.raises(ValueError) as error:
        hmp.tune(step, 1e-2, **{"cost": "numbers", "resume": kept, **options})
    assert str(error.value).startswith(f"{kept}: {said}")
    assert str(error.value).endswith(". Use another file, or delete this one")
    assert (step.calls, kept.read_bytes()) == (0, before)


def test_a_file_of_another_step_is_refused(kept):
    before = kept.read_bytes()
    with pytest.raises(
        ValueError,
        match=r"search.json: the file is of a step with other results. Use another file, or delete this one$",
    ):
        hmp.tune(Counted(), 1e-2, cost="numbers", resume=kept)
    assert kept.read_bytes() == before


def test_a_file_of_results_of_the_same_size_is_refused(tmp_path):
    """Those behind a norm all have it."""

    def normed(*planted: str):
        model = Model(*planted)
        return lambda: torch.nn.functional.layer_norm(model(X), (16,))

    hmp.tune(normed("cos"), 1e-2, cost="numbers", resume=tmp_path / "search.json")
    with pytest.raises(ValueError, match="is of a step with other results"):
        hmp.tune(normed("var"), 1e-2, cost="numbers", resume=tmp_path / "search.json")


def test_a_file_of_another_metric_is_refused(tmp_path):
    step, file = Counted("cos"), tmp_path / "search.json"
    hmp.tune(step, 1e-2, cost="numbers", metric=lambda a, b: (a - b).abs().max(), resume=file)
    with pytest.raises(ValueError, match="is of a search with metric="):
        hmp.tune(step, 1e-2, cost="numbers", metric=lambda a, b: (a - b).abs().mean(), resume=file)


NO_FILE = "not a file of a search: "
OTHER = "not a file of a search of this version of habana_mp. Use another file"
BROKEN = "the file of a search is not complete. Delete it"


def spoilt_error(text):
    """A number that could be the error of a run, and is not."""
    found = json.loads(text)
    key = next(key for key, runs in found["results"].items() if isinstance(runs[0], list))
    found["results"][key][0][0] *= 2
    return json.dumps(found)


def changed(**changes):
    return lambda text: json.dumps({**json.loads(text), **changes})


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        (lambda _: "", NO_FILE),
        (lambda text: text[: len(text) // 2], NO_FILE),
        (lambda _: "print('hello')", NO_FILE),
        (lambda _: "[" * 100_000, NO_FILE),
        (lambda _: "\udcff\udcfe", NO_FILE),
        (lambda _: "[]", OTHER),
        (lambda _: "{}", OTHER),
        (changed(version=1), OTHER),
        (changed(format="habana_mp.report"), OTHER),
        (changed(torch="1.0"), "the file is of a search with torch='1.0', not "),
        (changed(results=3), BROKEN),
        (changed(results={"none": 3}), BROKEN),
        (changed(results={"none": [3]}), BROKEN),
        (changed(results={"none": [["a", 1.0, None]]}), BROKEN),
        (changed(results={"values x": [[]]}), BROKEN),
        (changed(sums=["large"] * 5), BROKEN),
        (changed(sums=[10**400] * 5), BROKEN),
        (changed(results={"values x": [{"rows": "text"}]}), BROKEN),
        (spoilt_error, BROKEN),
    ],
    ids=[
        *("empty", "truncated", "a script", "deep", "no text", "a list", "an object", "version", "format", "torch"),
        *("results", "no runs", "no run", "no number", "no report", "size", "400 digits", "rows", "another error"),
    ],
)
def test_a_file_of_something_else_is_refused(spoilt, said, kept):
    kept.write_bytes(spoilt(kept.read_text()).encode(errors="surrogateescape"))
    before, step = kept.read_bytes(), Counted("cos", "sub")
    with pytest.raises(ValueError) as error:
        hmp.tune(step, 1e-2, cost="numbers", resume=kept)
    assert str(error.value).startswith(f"{kept}: {said}")
    assert (step.calls, kept.read_bytes()) == (0, before)
    assert [path.name for path in kept.parent.iterdir()] == ["search.json"]


def test_a_file_that_is_too_large_is_refused(tmp_path):
    file = tmp_path / "large"
    with file.open("wb") as large:
        large.truncate((1 << 30) + 1)
    with pytest.raises(ValueError, match=r"large: not a file of a search: the file is larger than 1024 MiB$"):
        hmp.tune(Counted(), 1e-2, resume=file)
    assert file.stat().st_size == (1 << 30) + 1


@pytest.mark.parametrize(
    ("path", "error"),
    [("no/such", FileNotFoundError), (".", IsADirectoryError), ("/proc/search.json", FileNotFoundError)],
    ids=["no folder", "a folder", "a folder that takes no files"],
)
def test_a_file_that_cannot_be_read_or_written(path, error, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    step = Counted()
    with pytest.raises(error, match=path):
        hmp.tune(step, 1e-2, resume=path)
    assert step.calls == 0


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_what_ran_before_an_error_is_kept(error, tmp_path):
    file, whole = tmp_path / "search.json", Counted("cos")
    found = hmp.tune(whole, 1e-2, cost="numbers")
    step = Counted("cos")

    def fails():
        y = step()
        if step.calls == 5:
            raise error
        return y

    with pytest.raises(error):
        hmp.tune(fails, 1e-2, cost="numbers", resume=file)
    resumed = hmp.tune(step, 1e-2, cost="numbers", resume=file)
    assert (resumed.policy, resumed.runs) == (found.policy, found.runs)
    assert step.calls == 5 + whole.calls - 3
