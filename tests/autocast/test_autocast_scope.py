"""Where a region of hmp.autocast begins and ends: in other regions, in torch.autocast, in threads and generators (D27, D28, D33)."""

from __future__ import annotations

import asyncio
import threading

import pytest
import torch
from autocast_policies import BF16, FP16, FP32, PLAIN, TORCH, UNDER_A, UNDER_B, A, B, mat, results

from habana_mp import hmp

pytestmark = pytest.mark.usefixtures("autocast_as_it_was")


def test_nesting_and_leaving() -> None:
    with hmp.autocast("cpu", policy=A):
        assert results() == UNDER_A
        with hmp.autocast("cpu", policy=B):
            assert results() == UNDER_B
            with hmp.autocast("cpu", enabled=False):
                assert results() == PLAIN
            assert results() == UNDER_B
        assert results() == UNDER_A
    assert results() == PLAIN


def test_regions_for_two_devices_do_not_disturb_one_another() -> None:
    with hmp.autocast("cpu", policy=A), hmp.autocast("xpu", policy=B), hmp.autocast("xpu", enabled=False):
        assert results() == UNDER_A


def test_inside_torch_autocast_ours_rules() -> None:
    with torch.autocast("cpu", BF16):
        assert results() == TORCH
        with hmp.autocast("cpu", policy=B):
            assert results() == UNDER_B
        assert results() == TORCH


@pytest.mark.parametrize(
    ("region", "expected"),
    [
        pytest.param(lambda: torch.autocast("cpu", BF16), TORCH, id="on"),
        pytest.param(lambda: torch.autocast("cpu", FP16), (FP16, FP32, FP32), id="another-dtype"),
        pytest.param(lambda: torch.autocast("cpu", enabled=False), PLAIN, id="off"),
        pytest.param(lambda: torch.autocast("xpu", BF16), UNDER_A, id="another-device"),
    ],
)
def test_torch_autocast_inside_ours_rules(region, expected) -> None:
    """Of nested regions the inner one rules, as docs/regions.md says."""
    with hmp.autocast("cpu", policy=A):
        with region():
            assert results() == expected
            with hmp.autocast("cpu", policy=B):
                assert results() == UNDER_B
            assert results() == expected
        assert results() == UNDER_A


def test_torch_autocast_for_hpu_switches_ours_for_hpu_off() -> None:
    """D28: without an HPU both are for the tensors' own device. Scripts for Gaudi keep parts in float32 so."""
    with hmp.autocast("hpu"):
        with torch.autocast("hpu", enabled=False):
            assert results() == PLAIN
        with torch.autocast("xpu", enabled=False):
            assert (mat() @ mat()).dtype == BF16
        assert (mat() @ mat()).dtype == BF16
    with hmp.autocast("cpu", policy=A), torch.autocast("hpu", BF16):
        assert results() == UNDER_A


def test_one_instance_in_itself() -> None:
    """D33, where torch.autocast leaves autocast on."""
    region = hmp.autocast("cpu", policy=A)
    with region:
        with region, region:
            assert results() == UNDER_A
        assert results() == UNDER_A
    assert results() == PLAIN


def test_a_recursive_function() -> None:
    """D33"""

    @hmp.autocast("cpu", policy=A)
    def deep(n: int) -> list:
        return [results(), *(deep(n - 1) if n else []), results()]

    assert deep(3) == [UNDER_A] * 8
    assert results() == PLAIN


def test_a_generator_is_inside_while_it_runs() -> None:
    @hmp.autocast("cpu", policy=A)
    def two():
        yield results()
        yield results()

    found = []
    for inside in two():
        found += [inside, results()]
    assert found == [UNDER_A, PLAIN] * 2


def test_a_coroutine_is_inside_while_it_runs() -> None:
    @hmp.autocast("cpu", policy=A)
    async def step():
        before = results()
        await asyncio.sleep(0)
        return before, results()

    async def other():
        seen = [results()]
        for _ in range(3):
            await asyncio.sleep(0)
            seen.append(results())
        return seen

    async def both():
        return await asyncio.gather(step(), other(), step())

    assert asyncio.run(both()) == [(UNDER_A, UNDER_A), [PLAIN] * 4, (UNDER_A, UNDER_A)]
    assert results() == PLAIN


def test_an_object_that_is_called_as_a_coroutine() -> None:
    class Step:
        async def __call__(self):
            return results()

    assert asyncio.run(hmp.autocast("cpu", policy=A)(Step())()) == UNDER_A
    assert results() == PLAIN


@pytest.mark.parametrize("given", [3, None])
def test_only_functions_are_decorated(given) -> None:
    with pytest.raises(TypeError, match=f"autocast decorates functions, not {given}"):
        hmp.autocast("cpu", policy=A)(given)


def test_an_async_generator_is_not_decorated() -> None:
    async def batches():
        yield

    with pytest.raises(TypeError, match="autocast cannot decorate an async generator"):
        hmp.autocast("cpu", policy=A)(batches)


def test_exceptions_leave_it() -> None:
    region = hmp.autocast("cpu", policy=A)
    with pytest.raises(RuntimeError, match="cannot be multiplied"), region:
        torch.mm(mat(), mat(n=3))
    assert results() == PLAIN
    with region:
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            torch.mm(mat(), mat(n=3))
        assert results() == UNDER_A


def in_and_out(policy: hmp.Policy):
    with hmp.autocast("cpu", policy=policy):
        yield results()
    yield results()


def test_a_generator_that_disable_casts_was_round_when_it_began() -> None:
    running = in_and_out(A)
    with hmp.disable_casts():
        assert next(running) == PLAIN
    next(running)
    with hmp.autocast("cpu", policy=A):
        assert results() == UNDER_A


def test_a_generator_that_goes_on_after_the_region_round_it() -> None:
    running = in_and_out(B)
    with hmp.autocast("cpu", policy=A):
        assert next(running) == UNDER_B
    assert results() == PLAIN
    assert next(running) == PLAIN


def test_what_is_off_is_not_refused() -> None:
    """No warning (they are errors here), as torch."""
    with hmp.autocast("cpu", FP32, enabled=False):
        assert results() == PLAIN


def test_leaving_what_was_not_entered() -> None:
    with pytest.raises(RuntimeError, match="left more often than it was entered"):
        hmp.autocast("cpu").__exit__(None, None, None)


def in_thread(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def test_a_new_thread_starts_off() -> None:
    """F142"""
    with hmp.autocast("cpu", policy=A):
        assert in_thread(results) == PLAIN
        assert results() == UNDER_A


def test_plain_torch_autocast_in_another_thread() -> None:
    def theirs():
        with torch.autocast("cpu", BF16):
            return results()

    with hmp.autocast("cpu", policy=A):
        assert in_thread(theirs) == TORCH
    assert theirs() == TORCH


def test_current_hands_the_state_on() -> None:
    with hmp.autocast("cpu", policy=A), hmp.autocast("xpu", policy=B):
        state = hmp.autocast.current()

    def work():
        with state:
            inside = results(), torch.is_autocast_enabled("xpu"), torch.is_autocast_enabled("cuda")
        return inside, results()

    assert in_thread(work) == ((UNDER_A, True, False), PLAIN)
    with state:
        assert results() == UNDER_A


@pytest.mark.parametrize(
    ("outer", "expected"),
    [
        pytest.param(lambda: torch.autocast("cpu", BF16), TORCH, id="torch"),
        pytest.param(lambda: hmp.autocast("cpu", enabled=False), PLAIN, id="off"),
        pytest.param(hmp.disable_casts, PLAIN, id="disable_casts"),
    ],
)
def test_current_inside_others(outer, expected) -> None:
    with hmp.autocast("cpu", policy=A), outer():
        state = hmp.autocast.current()

    def work():
        with state:
            return results()

    assert in_thread(work) == expected


def test_many_threads_at_once() -> None:
    failed = []

    def work(policy, expected):
        for _ in range(50):
            with hmp.autocast("cpu", policy=policy):
                if results() != expected:
                    failed.append(results())
            if results() != PLAIN:
                failed.append(results())

    threads = [
        threading.Thread(target=work, args=(policy, expected)) for policy, expected in [(A, UNDER_A), (B, UNDER_B)] * 2
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_disable_casts_inside() -> None:
    """D27"""
    with hmp.autocast("cpu", policy=A):
        with hmp.disable_casts():
            assert results() == PLAIN
        assert results() == UNDER_A
    with hmp.disable_casts(), hmp.autocast("cpu", policy=A):
        assert results() == PLAIN
