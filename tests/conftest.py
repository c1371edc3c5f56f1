"""Every test leaves torch as it found it: each home holds its original again, and casts are on."""

from __future__ import annotations

import gc
import shutil
import sys
from pathlib import Path

import pytest
import torch
from namespaces import snapshot

import habana_mp._core as _core
from habana_mp import _weights, hmp
from habana_mp._hpu.mapping import unmap_hpu
from habana_mp._policy.homes import homes
from habana_mp._scope import in_force

# What tests count is not to depend on a measurement. Those of the measurement, and programs of their own, say so.
_core._testing.measure_choices(False)

# Files whose tests take a second or more each: whole programs, compilers, browsers, many processes.
_SLOW = """
autocast/test_autocast_agreement
autocast/test_autocast_compile
autocast/test_autocast_process
benchmarks/test_quick_runs
benchmarks/test_trained
cast/test_memory
cli/test_cli_compare
cli/test_cli_gaudi
cli/test_cli_streams
cli/test_cli_tune
compiled/test_compiled_report
compiled/test_dynamic_shapes
compiled/test_modules
compiled/test_round_trips
compiled/test_rounding
convert/compile/test_ahead_of_time
convert/compile/test_compile
convert/compile/test_compiled_casts
convert/compile/test_compiled_int8
convert/compile/test_compiled_weights
convert/compile/test_dynamo_imports
convert/compile/test_graphs
convert/compile/test_onnx
convert/compile/test_weight_ops
convert/test_convert_interrupts
convert/test_convert_memory
devices/test_late_device
evidence/pages/test_compare_page
evidence/recordings/test_cli_recordings
evidence/recordings/test_fixture
evidence/rerun/test_compounds
evidence/rerun/test_memory
evidence/rerun/test_special_tensors
evidence/tune/test_resume
evidence/tune/test_tune_formats
evidence/tune/test_tuned_page
gaudi/test_gaudi
gaudi/test_gaudi_distributed
gaudi/test_gaudi_names
gaudi/test_gaudi_optimizers
gaudi/test_gaudi_scripts
packages/test_build
packages/test_loading
policy/list_files/test_damaged_files
policy/test_tune_presets
project/test_docs
project/test_examples
project/test_pictures
project/test_site
project/test_stub
project/test_torch_private
project/test_what_stays
ranks/test_ranks_policies
ranks/test_ranks_reports
ranks/test_ranks_trainers
report/answers/test_used_twice
report/page/test_page
report/page/test_page_errors
report/page/test_page_head
scope/test_fork
scope/test_interrupts
scope/test_locks
scope/test_many_policies
scope/test_nested_regions
tools/test_gpu
trainers/test_trainers_transformers
watch/test_log
weights/offload/test_offload_memory
weights/packed/test_packed_bits
weights/test_cache_threads
zoo/test_compiles
zoo/test_looks
zoo/test_zoo
"""

_ORIGINALS = [(home, home.function()) for home in homes()]


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items):
    tests = Path(__file__).parent
    slow = {tests / f"{name}.py" for name in _SLOW.split()}
    if missing := [str(path) for path in slow if not path.is_file()]:
        raise pytest.UsageError(f"slow tests that are not there: {missing}")
    for item in items:
        if item.path in slow:
            item.add_marker("slow")
    # A group is for one worker: the other is not to wait for it at the end.
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


@pytest.fixture(scope="module", autouse=True)
def _what_is_there_stays():
    """Half a million objects of torch and pytest are not looked through again: by the first region after each revert for exported weights, and by
    full collections.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _converted_by_none(monkeypatch):
    # What imports Habana's names sets them, for the processes that it starts. Set first, so that they are gone at the end too.
    for variable in ("HABANA_MP_LOG", "PYTHONPATH", "HABANA_MP_DEVICE", "DS_ACCELERATOR"):
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    yield
    hmp.revert()
    unmap_hpu()  # a script for Gaudi maps it
    _weights.close_cache()  # regions of autocast leave it open
    _core._testing.measure_choices(False)
    off = _core.casts_off()
    _core.set_casts_off(False)
    assert not [home.label for home, original in _ORIGINALS if getattr(home.owner, home.attribute) is not original]
    assert not off


@pytest.fixture
def fresh_dynamo():
    """Nothing is compiled before the test and after it."""
    import torch._dynamo

    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@pytest.fixture
def no_accelerator():
    """Accelerators of a process share what they were made with, those of ``transformers.Trainer`` too: none is left by others, or to them."""
    state = pytest.importorskip("accelerate.state").AcceleratorState
    state._reset_state(reset_partial_state=True)
    yield
    state._reset_state(reset_partial_state=True)


@pytest.fixture
def empty_cache():
    """The cache of weights with nothing in it, and no counts from before."""
    torch.manual_seed(0)
    hmp.cache.clear()


@pytest.fixture
def autocast_as_it_was():
    """The test leaves torch.autocast off, with its cache on and at no depth."""
    yield
    assert not torch._C._is_any_autocast_enabled()
    assert torch.is_autocast_cache_enabled()
    assert torch.autocast_increment_nesting() == 1
    torch.autocast_decrement_nesting()


@pytest.fixture
def pristine():
    """What the namespaces of torch hold before the test converts."""
    return snapshot()


@pytest.fixture
def place_for_scripts(tmp_path, monkeypatch):
    """An empty folder that is the current one. What the command line changes in this process to run a script there is undone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(in_force, "cli_policy", None)
    monkeypatch.setattr(in_force, "is_cli_default", False)
    return tmp_path


@pytest.fixture(scope="module")
def browser():
    """Chromium, one for the tests of a file."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=30_000)  # as for actions: machines may be busy

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def one_reader(browser, tmp_path_factory):
    from page_reader import Reader

    return Reader(browser, tmp_path_factory.mktemp("page"))


@pytest.fixture
def reader(one_reader):
    """Opens pages in the browser; the test fails for what a page complains of."""
    yield one_reader
    complaints, one_reader.complaints = one_reader.complaints, []
    assert complaints == []
