"""Reports with values of a loss that a scaler multiplies: errors and changes are in units of the loss."""

from __future__ import annotations

import pytest
import torch

from habana_mp import hmp

MODEL = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
DATA = torch.linspace(-1, 1, 64).reshape(8, 8)


def report_of(backward) -> hmp.CastReport:
    torch.manual_seed(0)
    for parameter in MODEL.parameters():
        torch.nn.init.normal_(parameter)
    with hmp.report(values=True) as report:
        for _ in range(2):
            with hmp.autocast("cpu", policy="hmp"):
                loss = MODEL(DATA).float().square().mean()
            backward(loss)
    return report


def plain(loss: torch.Tensor) -> None:
    loss.backward()


def by_scaler(loss: torch.Tensor, scale: float = 2.0**20) -> None:
    hmp.GradScaler("cpu", init_scale=scale).scale(loss).backward(retain_graph=True)


def weighted(loss: torch.Tensor) -> None:
    (4 * loss).backward()


def twice(backward):
    """Both at one line, so that they are of one loss."""

    def run(loss: torch.Tensor) -> None:
        for scale in (2.0**10, 2.0**20):
            backward(loss, scale)

    return run


SCALED = {
    "a scaler": (by_scaler, plain, 1),
    "a scale that changes": (twice(by_scaler), twice(lambda loss, _: loss.backward(retain_graph=True)), 1),
    "a scaler of a weighted loss": (lambda loss: by_scaler(4 * loss), weighted, 1),
    "a number, which may be a weight": (weighted, plain, 4),
    "a gradient that is given": (
        lambda loss: (by_scaler(loss), loss.backward(torch.tensor(1.0))),
        lambda loss: (by_scaler(loss, 1.0), loss.backward(torch.tensor(1.0))),
        1,
    ),
}


@pytest.mark.parametrize("case", SCALED)
def test_errors_are_in_units_of_the_loss(case) -> None:
    scaled, without, factor = SCALED[case]
    found, meant = report_of(scaled), report_of(without)
    errors = [factor * each for each in meant.errors().values()]
    assert min(errors) > 0
    assert [*found.errors().values()] == pytest.approx(errors, rel=1e-3)
    assert [each.text for each in found.edits()] == [each.text for each in meant.edits()]
