"""Reports of several ranks as one, and what ranks write: %r in names of files, the rank in the log."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import fake_reports
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from click.testing import CliRunner
from ranks import WORLD, join, leave, run_ranks
from torch import nn

from habana_mp import CastReport, hmp
from habana_mp.cli import main

pytestmark = pytest.mark.xdist_group("ranks_reports")


def train(steps, softmaxes):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    for _ in range(steps):
        F.mse_loss(model(torch.ones(2, 8)), torch.ones(2, 8)).backward()
    for _ in range(softmaxes):
        torch.ones(2, 8, dtype=torch.bfloat16).softmax(-1)


def counted(softmaxes=0):
    hmp.convert()
    with hmp.report() as report:
        train(2, softmaxes)
    hmp.revert()
    return report


def worker(folder):
    rank = join(folder)
    report = counted(softmaxes=rank)
    whole = report.gather()
    assert (whole is None) == (rank > 0)
    groups = [dist.new_group([each]) for each in range(WORLD)]
    alone = report.gather(groups[rank])
    assert alone.casts() == report.casts()
    report.to_json(f"{folder}/{rank}.json")
    if whole is not None:
        whole.to_json(f"{folder}/whole.json")
    leave()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    ended = run_ranks(__file__, folder, env={"HABANA_MP_LOG": f"detail:{folder}/casts-%r.log"})
    assert [each.status for each in ended] == [0] * WORLD, "".join(each.err for each in ended)
    return folder


class TestGathered:
    @pytest.fixture
    def whole(self, folder):
        return CastReport.load(folder / "whole.json")

    def test_counts_are_sums(self, folder, whole):
        parts = [CastReport.load(folder / f"{rank}.json") for rank in range(WORLD)]
        # Two steps: x, weight and bias; mse_loss casts its first argument.
        assert [part.casts("linear") for part in parts] == [6, 6]
        assert whole.casts("linear") == 12
        for count in (CastReport.casts, CastReport.cache_hits, CastReport.backward_casts):
            assert count(whole) == sum(map(count, parts))
        values = [part.to_dict() for part in parts]
        for name in ("seconds", "op_seconds", "cast_seconds", "cast_bytes"):
            assert whole.to_dict()[name] == pytest.approx(sum(each[name] for each in values))

    def test_one_row_for_what_is_the_same(self, folder, whole):
        rows = {(row["op"], row["module"]): row for row in whole.to_dict()["rows"]}
        assert len(rows) == len(whole.to_dict()["rows"])
        assert rows["linear", "Sequential: 0"]["calls"] == 4
        assert rows["softmax", ""]["calls"] == 1, "rank 1 alone"

    def test_the_bytes_of_results_are_sums(self, folder, whole):
        made: dict[tuple[str, str], Counter[str]] = {}
        for rank in range(WORLD):
            for row in CastReport.load(folder / f"{rank}.json").to_dict()["rows"]:
                made.setdefault((row["op"], row["module"]), Counter()).update(row["made_bytes"])
        assert made["linear", "Sequential: 0"]["bfloat16"] > 0
        assert {(row["op"], row["module"]): row["made_bytes"] for row in whole.to_dict()["rows"]} == made

    def test_the_ranks_are_distinguished(self, whole):
        values = whole.to_dict()
        assert [(each["rank"], each["casts_of"].get("softmax", 0)) for each in values["ranks"]] == [(0, 0), (1, 1)]
        assert values["uneven"] == [{"op": "softmax", "casts": [0, 1]}]
        assert whole.advice[0].text == "the ranks do not cast alike: softmax has 1 cast on rank 1 and 0 on rank 0"
        assert whole.advice[0].evidence == "casts of each rank: softmax 0 / 1"

    def test_from_files_it_is_the_same(self, folder, whole):
        again = CastReport.merged(CastReport.load(folder / f"{rank}.json") for rank in range(WORLD))
        assert again.to_dict() == whole.to_dict()

    def test_table_and_page(self, whole, tmp_path):
        text = str(whole)
        assert re.search(r"convert: hmp, 2 ranks", text)
        assert re.search(r"^  rank 0 .* casts .*\n  rank 1 .* casts ", text, re.MULTILINE)
        page = whole.to_html(tmp_path / "page.html")
        assert "2 ranks: all figures are sums" in page
        assert "The ranks do not cast alike: <b>softmax</b> 0 / 1" in page

    def test_diff(self, folder, whole):
        changes = CastReport.load(folder / "0.json").diff(whole).changes
        assert ("linear", "float32", "bfloat16", 6, 12) in changes


class TestMerged:
    @pytest.mark.parametrize("fake", [fake_reports.gpt, fake_reports.hostile, fake_reports.empty, fake_reports.small])
    def test_twice_the_same(self, fake, tmp_path):
        (tmp_path / "one.json").write_text(json.dumps({"backward_seconds": 0.0, **fake()}))
        one = CastReport.load(tmp_path / "one.json")
        two = CastReport.merged([one, one])
        values, once = two.to_dict(), one.to_dict()
        assert two.casts() == 2 * one.casts()
        assert values["uneven"] == []
        assert values["timeline"] == {"seconds": once["seconds"], **once["timeline"]}, "that of the first"
        for name in ("policies", "never_seen", "title"):
            assert values[name] == once[name]
        for name, count in (("ping_pong", "count"), ("recast", "times"), ("missed", "calls")):
            assert [each[count] for each in values[name]] == [2 * each[count] for each in once[name]]
        assert str(two)
        assert two.to_html()

    def test_of_merged_ones(self):
        pairs = [CastReport.merged([counted(), counted(1)]), CastReport.merged([counted(2), counted()])]
        values = CastReport.merged(pairs).to_dict()
        assert [each["rank"] for each in values["ranks"]] == [0, 1, 2, 3]
        assert values["uneven"] == [{"op": "softmax", "casts": [0, 1, 2, 0]}]

    def test_values_of_one_alone(self, tmp_path):
        values = fake_reports.small() | {
            "low_dtype": "bfloat16",
            "projected_squares": 4.0,
            "edges": [[-1, 0, "float32", 1, 8, 0, False]],
        }
        values["rows"][0]["values"] = fake_reports.values(
            ran=fake_reports.ERROR | {"reference_squares": 1.0, "lost": 3}
        )
        both = []
        for name, each in (("with", values), ("without", fake_reports.small())):
            (tmp_path / f"{name}.json").write_text(json.dumps(each))
            both.append(CastReport.load(tmp_path / f"{name}.json"))
        for order in (both, both[::-1]):
            whole = CastReport.merged(order)
            assert whole.local_error("linear").lost == 3
            assert whole.to_dict()["projected_squares"] == 4.0
            assert whole.to_dict()["edges"] == values["edges"]

    def test_steps_are_those_of_the_first(self, tmp_path):
        both = []
        for name, steps in (("with", {"steps": [0.1, 0.2]}), ("without", {})):
            (tmp_path / f"{name}.json").write_text(json.dumps(fake_reports.small() | steps))
            both.append(CastReport.load(tmp_path / f"{name}.json"))
        assert CastReport.merged(both).to_dict()["steps"] == [0.1, 0.2]
        assert "steps" not in CastReport.merged(both[::-1]).to_dict()

    def test_policies_of_both(self):
        hmp.convert(policy="hmp-o1")
        with hmp.report() as other:
            train(1, 0)
        hmp.revert()
        values = CastReport.merged([counted(), other]).to_dict()
        assert [each["name"] for each in values["policies"]] == ["hmp", "hmp-o1"]
        assert {row["policy"] for row in values["rows"] if row["op"] == "linear"} == {"hmp", "hmp-o1"}

    def test_alone(self):
        report = counted()
        assert report.gather().casts() == report.casts()

    @pytest.mark.parametrize(
        ("reports", "error"),
        [([], ValueError), ([{}], TypeError), ([hmp.report()], RuntimeError)],
        ids=["none", "a dict", "not begun"],
    )
    def test_what_cannot_be_merged(self, reports, error):
        with pytest.raises(
            error, match=r"there is no report to merge|merged takes reports, not {}|nothing has been counted"
        ):
            CastReport.merged(reports)


class TestLog:
    def test_one_for_each_rank(self, folder):
        for rank in range(WORLD):
            first, second, *_ = (folder / f"casts-{rank}.log").read_text().splitlines()
            assert first == "casting  <built-in function linear> to_bf16", "as the guides have it (D25)"
            assert second.endswith(f" | rank {rank}")
        assert not (folder / "casts-%r.log").exists()

    @pytest.mark.parametrize(
        ("rank", "name", "ending"),
        [
            pytest.param({}, "0.log", ".py:{line}", id="no ranks"),
            pytest.param({"RANK": "3", "WORLD_SIZE": "4"}, "3.log", " | rank 3", id="a rank"),
            pytest.param(
                {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}, "2.log", " | rank 2", id="a rank of mpirun"
            ),
            pytest.param({"RANK": "x"}, "0.log", ".py:{line}", id="no number"),
        ],
    )
    def test_the_rank_of_the_environment(self, monkeypatch, tmp_path, rank, name, ending):
        for variable, value in rank.items():
            monkeypatch.setenv(variable, value)
        monkeypatch.setenv("HABANA_MP_LOG", f"detail:{tmp_path}/%r.log")
        hmp.convert()
        line = sys._getframe().f_lineno + 1
        F.linear(torch.ones(1, 2), torch.ones(1, 2))
        assert (tmp_path / name).read_text().splitlines()[1].endswith(ending.format(line=line))


SCRIPT = """
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
model(torch.ones(2, 8)).sum().backward()
dist.destroy_process_group()
time.sleep(0.1)
"""


class TestCommandLine:
    def test_each_rank_writes_its_files(self, tmp_path):
        (tmp_path / "script.py").write_text(SCRIPT)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORLD)]
        options = ["-m", "habana_mp", "report", "--json", "casts-%r.json", "--html", "casts-%r.html", "script.py"]
        done = subprocess.run(
            [*torchrun, *options],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert sorted(path.name for path in tmp_path.iterdir() if path.name != "script.py") == [
            *("casts-0.html", "casts-0.json"),
            *("casts-1.html", "casts-1.json"),
        ]
        parts = [CastReport.load(tmp_path / f"casts-{rank}.json") for rank in range(WORLD)]
        assert [part.to_dict()["rank"] for part in parts] == [0, 1]
        assert [part.casts("linear") for part in parts] == [3, 3]
        assert done.stderr.count("Rank 0 of 2:\nscript.py: ") == 1
        assert done.stderr.count("script.py: ") == 1, "one of them prints"

    @pytest.mark.parametrize("option", ["--html", "--json"])
    @pytest.mark.parametrize("name", ["casts", "-"])
    def test_one_file_for_all_is_refused(self, place_for_scripts, monkeypatch, option, name):
        Path("script.py").write_text("print('ran')")
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        done = CliRunner().invoke(main, ["report", option, name, "script.py"])
        message = f"Error: {option} {name}: 2 ranks would write it; put %r, which is the rank, into the name\n"
        assert (done.exit_code, done.stdout, done.stderr) == (2, "", message)


if __name__ == "__main__":
    worker(*sys.argv[1:])
