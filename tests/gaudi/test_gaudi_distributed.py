"""initialize_distributed_hpu and the backend "hccl": what a process knows of the others, and an all_reduce of two (D48)."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

TORCHRUN = {"WORLD_SIZE": "8", "RANK": "5", "LOCAL_RANK": "1"}
# environment, arguments -> the result, or the error
RANKS = {
    "D48 alone": ({}, {}, (1, -1, -1)),
    "torchrun": (TORCHRUN, {}, (8, 5, 1)),
    "mpirun": (
        {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "3"},
        {},
        (4, 3, 3),
    ),
    "D48 arguments": ({}, {"world_size": 2, "rank": 0, "local_rank": 0}, (2, 0, 0)),
    "arguments win": (TORCHRUN, {"rank": 3}, (8, 3, 1)),
    "no number": ({"WORLD_SIZE": "two"}, {}, "WORLD_SIZE='two' is not an integer"),
    "no number as argument": ({}, {"rank": "first"}, "rank='first' is not an integer"),
}


@pytest.mark.parametrize("case", RANKS)
def test_who_am_i(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    from habana_mp._gaudi.distributed import initialize_distributed_hpu

    environment, arguments, expected = RANKS[case]
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setenv("MASTER_ADDR", "")
    monkeypatch.delenv("MASTER_ADDR")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=f"^{expected}$"):
            initialize_distributed_hpu(**arguments)
        assert "MASTER_ADDR" not in os.environ
    else:
        assert initialize_distributed_hpu(**arguments) == expected
        assert (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]) == ("localhost", "29500")


REGISTERS = {
    "habana_mp.gaudi": "import habana_mp.gaudi",
    "habana_frameworks.torch": "import habana_frameworks.torch",
    "core": "import habana_frameworks.torch.core",
    "hpu": "from habana_frameworks.torch import hpu",
    "older": "from hmp import hmp",
    "no import": "import torch; torch.device('hpu')",
}


@pytest.mark.parametrize("case", REGISTERS)
def test_what_registers_hccl(tmp_path: Path, case: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"{REGISTERS[case]}\nfrom torch import distributed\n"
        "distributed.init_process_group('hccl', init_method=f'file://{__file__}.store', rank=0, world_size=1)\n"
        "print(distributed.get_backend())\ndistributed.destroy_process_group()\n"
    )
    command = [sys.executable, "-m", "habana_mp", "run", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "hccl\n", done.stderr


RANK = """
    import os
    import torch
    from torch import distributed, nn
    from habana_frameworks.torch.distributed.hccl import initialize_distributed_hpu

    world_size, rank, local_rank = initialize_distributed_hpu()
    rendezvous = "file://" + os.environ["RENDEZVOUS"]
    distributed.init_process_group("hccl", init_method=rendezvous, rank=rank, world_size=world_size)
    summed = torch.full((2,), rank + 1.0)
    distributed.all_reduce(summed)
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
    model(torch.full((1, 2), rank + 1.0)).sum().backward()
    print(distributed.get_backend(), summed.tolist(), model.module.weight.grad.tolist())
    distributed.destroy_process_group()
"""


def test_two_processes_over_hccl(tmp_path: Path) -> None:
    script = "import habana_mp.gaudi\n" + dedent(RANK)
    both = {**os.environ, "WORLD_SIZE": "2", "RENDEZVOUS": str(tmp_path / "rendezvous"), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env={**both, "RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    for process in ranks:
        out, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        assert out.strip() == "hccl [3.0, 3.0] [[1.5, 1.5]]"
