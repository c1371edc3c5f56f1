"""habana_dataloader and habana_frameworks.mediapipe: torch's loader under Habana's name, and a media pipe that says what it lacks when it is used."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import habana_mp.gaudi  # noqa: F401 - makes the imports in the tests work

NUMBERS = TensorDataset(torch.arange(10.0))
MEDIA = "habana_frameworks.mediapipe"
WHY = "it reads and decodes images by Gaudi's hardware and libraries; use torch.utils.data.DataLoader"


@pytest.mark.filterwarnings("ignore:(pin_memory_device|'pin_memory'):UserWarning")
@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 4},
        {"batch_size": 4, "drop_last": True, "shuffle": True},
        {"batch_size": 3, "num_workers": 1, "pin_memory": True, "pin_memory_device": "hpu"},
        {"batch_size": 5, "sampler": torch.utils.data.SequentialSampler(NUMBERS), "collate_fn": len},
    ],
    ids=["batches", "shuffled", "worker", "sampler"],
)
def test_the_loader_is_torch_s(options):
    from habana_dataloader import HabanaDataLoader

    loaders = (HabanaDataLoader(dataset=NUMBERS, **options), DataLoader(NUMBERS, **options))
    made = []
    for loader in loaders:
        torch.manual_seed(0)
        made.append([batch if isinstance(batch, int) else batch[0].tolist() for batch in loader])
    assert made[0] == made[1]
    assert len(loaders[0]) == len(loaders[1])


def test_what_a_script_puts_into_the_loader_stays_there(monkeypatch):
    import habana_dataloader

    monkeypatch.setattr(habana_dataloader.HabanaDataLoader, "__len__", lambda self: 7)
    assert len(DataLoader(NUMBERS)) == 10
    assert not isinstance(NUMBERS, habana_dataloader.habana_dataset.ImageFolderWithManifest)


# As scripts import from it -> what they do with the name, and what of it is not there
USES = {
    "class": ("mediapipe", "MediaPipe", lambda it: it(device="hpu", batch_size=2), "MediaPipe"),
    "subclass": ("mediapipe", "MediaPipe", lambda it: type("ResnetPipe", (it,), {"count": 0})(), "MediaPipe"),
    "iterator": ("plugins.iterator_pytorch", "HPUResnetPytorchIterator", lambda it: it(mediapipe=None), "HPUResnetPytorchIterator"),
    "function": ("", "fn", lambda it: it.ImageDecoder(resize=[1, 1]), "fn.ImageDecoder"),
    "node": ("operators.cpu_nodes.cpu_nodes", "media_function", lambda it: it({}), "media_function"),
    "constant": ("media_types", "dtype", lambda it: it.UINT8(), "dtype.UINT8"),
    "newer-than-this-test": ("some.module.of", "later", lambda it: it(), "later"),
}  # fmt: skip


@pytest.mark.parametrize("case", USES)
def test_the_media_pipe_says_in_one_line_what_it_lacks(case):
    below, name, use, lacking = USES[case]
    module = f"{MEDIA}.{below}".rstrip(".")
    names: dict[str, object] = {}
    exec(f"from {module} import {name}", names)
    with pytest.raises(NotImplementedError) as error:
        use(names[name])
    assert str(error.value) == f"habana_mp.gaudi has no '{module}.{lacking}': {WHY}"


def test_constants_of_the_media_pipe_may_be_defaults():
    from habana_frameworks.mediapipe import fn, media_types

    def made(dtype=media_types.dtype.UINT8, node=fn.Crop):
        return dtype is media_types.dtype.UINT8, node is fn.Crop

    assert made() == (True, True)


LOADERS = """
    import torch
    import habana_frameworks.torch.core as htcore
    from torch.utils.data import DataLoader

    def with_media(dataset):
        from habana_frameworks.mediapipe.mediapipe import MediaPipe
        class Pipe(MediaPipe):
            def __init__(self, **options):
                super().__init__(**options)
        return Pipe(device="legacy")

    def with_aeon(dataset):
        from habana_dataloader.aeon_config import get_aeon_config
        return get_aeon_config(dataset)

    for make in (with_media, with_aeon):
        try:
            loader = make([1, 2])
        except Exception as error:
            print(type(error).__name__, error)
            loader = DataLoader([1, 2], pin_memory=True, pin_memory_device="hpu")
        print(sum(loader).item())
"""


def test_a_script_falls_back_to_torch_s_loader(tmp_path):
    """In the manner of ResNet's data loaders: the loader that can be imported is tried, and what it raises is caught."""
    script = tmp_path / "loaders.py"
    script.write_text(dedent(LOADERS))
    command = [sys.executable, "-m", "habana_mp", "run", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    media, first, aeon, second = done.stdout.splitlines()
    assert media == f"NotImplementedError habana_mp.gaudi has no '{MEDIA}.mediapipe.MediaPipe': {WHY}"
    assert aeon == f"ModuleNotFoundError habana_mp.gaudi has no 'habana_dataloader.aeon_config': {WHY}"
    assert (first, second) == ("3", "3")
