"""What hmp.cache.offload raises, and that the weights are then as they were."""

import errno
import gc
import re
from pathlib import Path

import pytest
import torch
from cached_weight import casts
from offloaded import X, all_in_file, bits, net, same
from torch import nn

import habana_mp._core as _core
from habana_mp import hmp

pytestmark = pytest.mark.usefixtures("empty_cache")


class TestErrors:
    @pytest.mark.parametrize("function", ["offload", "restore"])
    @pytest.mark.parametrize(
        "given", [None, torch.ones(2), [nn.Linear(2, 2)], nn.Linear], ids=["None", "tensor", "list", "class"]
    )
    def test_no_module(self, function, given):
        with pytest.raises(TypeError, match=rf"^hmp\.cache\.{function} takes a torch\.nn\.Module, not "):
            getattr(hmp.cache, function)(given)

    def test_a_model_on_another_device(self):
        with pytest.raises(ValueError, match=r"moves weights out of the CPU's memory; '0\.weight' is on meta"):
            hmp.cache.offload(net().to("meta"))

    def test_a_model_on_two_devices(self):
        model = nn.Sequential(net(1), net(1).to("meta"))
        assert hmp.cache.offload(model)[::2] == (1, {"1.0.weight": "device"})

    def test_a_folder_that_is_not_there(self, tmp_path):
        model = net(1)
        with pytest.raises(FileNotFoundError, match=r"cannot make a file there: No such file or directory: '.*absent'"):
            hmp.cache.offload(model, tmp_path / "absent")
        assert all_in_file(model) == [False]

    def test_a_file_for_a_folder(self, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(NotADirectoryError, match="cannot make a file there"):
            hmp.cache.offload(net(1), folder=str(tmp_path / "file"))

    def test_a_folder_in_memory(self):
        with pytest.raises(ValueError, match=r"/dev/shm lies in memory \(tmpfs\), so a file there frees none"):
            hmp.cache.offload(net(1), "/dev/shm")

    def test_a_folder_for_temporary_files_that_lies_in_memory(self, monkeypatch):
        monkeypatch.setattr("tempfile.tempdir", "/dev/shm")
        model = net(1)
        hmp.cache.offload(model)
        assert all_in_file(model) == [True]
        assert "/var/tmp/#" in Path("/proc/self/maps").read_text()

    def test_a_folder_of_ones_own(self, tmp_path):
        model = net(1)
        hmp.cache.offload(model, tmp_path)
        assert str(tmp_path) in Path("/proc/self/maps").read_text()
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        "error", [OSError(errno.ENOMEM, "none left"), KeyboardInterrupt()], ids=["OSError", "interrupt"]
    )
    @pytest.mark.parametrize("step", ["write_pages", "map_pages"])
    def test_what_fails_in_the_middle_leaves_the_weights_in_memory(self, step, error, monkeypatch):
        hmp.convert()
        model = net(4)
        before = bits(model)
        with torch.no_grad():
            expected = model(X)
            original, calls = getattr(_core, step), []

            def fails(*arguments):
                calls.append(arguments)
                if len(calls) == 3:
                    raise error
                original(*arguments)

            monkeypatch.setattr(_core, step, fails)
            with pytest.raises(type(error)) as raised:
                hmp.cache.offload(model)
            monkeypatch.undo()
            assert isinstance(error, KeyboardInterrupt) or re.match(
                r"\[Errno 12\] hmp\.cache\.offload cannot move \d+ bytes there: none left: '", str(raised.value)
            )
            assert torch.equal(model(X), expected)
        assert casts() == (4, 4)
        assert all_in_file(model) == [False] * 4
        assert same(bits(model), before)
        assert hmp.cache.offload(model).weights == 4

    def test_no_descriptor_stays_open(self, tmp_path):
        model = net(1)
        gc.collect()
        before = len(list(Path("/proc/self/fd").iterdir()))
        for folder in (None, None, "/dev/shm", tmp_path / "absent"):
            with torch.no_grad():
                model[0].weight.add_(1)
            try:
                hmp.cache.offload(model, folder)
            except (OSError, ValueError):
                assert folder is not None
        gc.collect()
        assert len(list(Path("/proc/self/fd").iterdir())) == before
