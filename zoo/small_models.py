"""Ten kinds of models, made small, seeded and briefly trained: what benchmarks measure and what the preset "balanced" is chosen on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

WORDS, CLASSES = 200, 10


@dataclass(frozen=True)
class Trained:
    """``x`` is a batch, ``target`` has a class for each row of the logits."""

    model: nn.Module
    x: torch.Tensor
    target: torch.Tensor

    def logits(self, x: torch.Tensor | None = None) -> torch.Tensor:
        """(rows, classes), also of models that return a class or a word for each place of the input."""
        return logits_of(self.model, self.x if x is None else x)

    def loss(self) -> torch.Tensor:
        return functional.cross_entropy(self.logits().float(), self.target)


def logits_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    found: Any = model(x)
    logits = found if isinstance(found, torch.Tensor) else found.logits
    if logits.dim() == 4:  # images have their classes second
        logits = logits.movedim(1, -1)
    return logits.flatten(0, -2)


def tokens(size: int) -> torch.Tensor:
    return torch.randint(0, WORDS, (8, 48 if size <= 64 else 64))


def images(size: int) -> torch.Tensor:
    return torch.randn(16 if size <= 64 else 32, 3, 32, 32)


def mlp(size: int) -> tuple[nn.Module, torch.Tensor]:
    first = (nn.Linear(64, 2 * size), nn.GELU(), nn.LayerNorm(2 * size))
    layers = (*first, nn.Linear(2 * size, 2 * size), nn.ReLU(), nn.Linear(2 * size, CLASSES))
    return nn.Sequential(*layers), torch.randn(256, 64)


def cnn(size: int) -> tuple[nn.Module, torch.Tensor]:
    width = size // 4
    first = (nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2))
    second = (nn.Conv2d(width, 2 * width, 3, padding=1), nn.GroupNorm(4, 2 * width), nn.ReLU())
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, CLASSES))
    return nn.Sequential(*first, *second, *head).eval(), images(size)


def resnet(size: int) -> tuple[nn.Module, torch.Tensor]:
    from transformers import ResNetConfig, ResNetForImageClassification

    width = size // 4
    config = ResNetConfig(
        embedding_size=width,
        hidden_sizes=[width, 2 * width],
        depths=[2, 2],
        layer_type="basic",
        num_labels=CLASSES,
    )
    return ResNetForImageClassification(config).eval(), images(size)


def vit(size: int) -> tuple[nn.Module, torch.Tensor]:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(image_size=32, patch_size=8, num_labels=CLASSES, **_sizes(size), **_NO_DROPOUT)
    return ViTForImageClassification(config), images(size)


def bert(size: int) -> tuple[nn.Module, torch.Tensor]:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(vocab_size=WORDS, num_labels=CLASSES, **_sizes(size), **_NO_DROPOUT)
    return BertForSequenceClassification(config), tokens(size)


def gpt(size: int) -> tuple[nn.Module, torch.Tensor]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=WORDS,
        n_embd=size,
        n_layer=3,
        n_head=4,
        n_positions=64,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config), tokens(size)


def llama(size: int) -> tuple[nn.Module, torch.Tensor]:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, use_cache=False, **_sizes(size))), tokens(size)


class _Seq2Seq(nn.Module):
    """The decoder is given the words of the encoder."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(input_ids=x, decoder_input_ids=x, use_cache=False).logits
        return logits


def t5(size: int) -> tuple[nn.Module, torch.Tensor]:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=WORDS,
        d_model=size,
        d_kv=size // 4,
        d_ff=2 * size,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    return _Seq2Seq(T5ForConditionalGeneration(config)), tokens(size)


def mamba(size: int) -> tuple[nn.Module, torch.Tensor]:
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(vocab_size=WORDS, hidden_size=size, num_hidden_layers=2, state_size=8, use_cache=False)
    return MambaForCausalLM(config), tokens(size)[:, :32]


class UNet(nn.Module):
    """As those of diffusion models: group norms, silu, a time that is embedded by sin and cos, attention in the middle, a way up with joins."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2 * width))
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.norm = nn.GroupNorm(4, width)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.middle_norm = nn.GroupNorm(4, 2 * width)
        self.qkv = nn.Conv2d(2 * width, 6 * width, 1)
        self.out = nn.Conv2d(2 * width, 2 * width, 1)
        self.up = nn.Conv2d(2 * width, width, 3, padding=1)
        self.last = nn.Conv2d(2 * width, CLASSES, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        times = torch.arange(len(x), device=x.device) * 30.0
        frequencies = torch.exp(-torch.arange(self.width // 2, device=x.device) * (9.2 / (self.width // 2)))
        angles = times[:, None] * frequencies
        embedded = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        high = functional.silu(self.norm(self.first(x)))
        low = self.down(high) + embedded[:, :, None, None]
        q, k, v = self.qkv(self.middle_norm(low)).flatten(2).chunk(3, 1)
        weights = torch.softmax(q.transpose(1, 2) @ k / (2 * self.width) ** 0.5, -1)
        low = low + self.out((v @ weights.transpose(1, 2)).unflatten(2, low.shape[2:]))
        up = functional.interpolate(self.up(functional.silu(low)), scale_factor=2, mode="nearest")
        logits: torch.Tensor = self.last(torch.cat([up, high], 1))
        return logits


def unet(size: int) -> tuple[nn.Module, torch.Tensor]:
    return UNet(size // 4), images(size)[:8]


_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _sizes(size: int) -> dict[str, int]:
    return {"hidden_size": size, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 2 * size}


MODELS: dict[str, Callable[[int], tuple[nn.Module, torch.Tensor]]] = {
    "MLP": mlp,
    "CNN": cnn,
    "ResNet": resnet,
    "ViT": vit,
    "BERT": bert,
    "GPT": gpt,
    "llama": llama,
    "T5": t5,
    "Mamba": mamba,
    "UNet": unet,
}


def trained(name: str, steps: int, seed: int = 0, size: int = 64) -> Trained:
    """A model of MODELS after some steps of AdamW on one batch. ``size`` is its width."""
    torch.manual_seed(seed)
    model, x = MODELS[name](size)
    with torch.no_grad():
        logits = logits_of(model, x)
    made = Trained(model, x, torch.randint(0, logits.shape[-1], (len(logits),)))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        made.loss().backward()
        optimizer.step()
    optimizer.zero_grad()
    return made
