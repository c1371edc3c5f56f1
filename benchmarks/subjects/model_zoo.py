"""The models of the benchmarks: random weights, random inputs, nothing is fetched. Sizes are those that two CPU cores can train."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

SEQUENCE = 128
VOCABULARY = 8192
CLASSES = 10


@dataclass(frozen=True)
class Model:
    name: str
    make: Callable[[], nn.Module]
    # Of a batch: the input and the target of the loss.
    example: Callable[[int], tuple[torch.Tensor, torch.Tensor]]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def forward(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The models of transformers give a record."""
    output: Any = model(x)
    return output if isinstance(output, torch.Tensor) else output.logits


def cross_entropy(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, -2), target.flatten())


class WithoutFastPath(nn.Module):
    """torch runs its own encoder layer as one fused op where it infers. This is the layer as everybody else's attention runs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            return self.model(x)
        finally:
            torch.backends.mha.set_fastpath_enabled(before)


def cnn(width: int) -> Model:
    def make() -> nn.Module:
        def block(inputs: int, outputs: int) -> list[nn.Module]:
            return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]

        blocks = [
            *block(3, width),
            *block(width, 2 * width),
            *block(2 * width, 4 * width),
            *block(4 * width, 8 * width),
        ]
        return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, CLASSES))

    def example(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(batch, 3, 64, 64), torch.randint(CLASSES, (batch,))

    return Model("CNN", make, example, cross_entropy)


def channels_last(model: Model) -> Model:
    """The same model of images, whose weights and inputs lie channels last."""

    def make() -> nn.Module:
        made: nn.Module = model.make()
        return made.to(memory_format=torch.channels_last)

    def example(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, target = model.example(batch)
        return x.contiguous(memory_format=torch.channels_last), target

    return Model(f"{model.name}, channels last", make, example, model.loss)


def resnet(name: str, **sizes: Any) -> Model:
    """Without sizes it is the ResNet-50."""

    def make() -> nn.Module:
        from transformers import ResNetConfig, ResNetForImageClassification

        return ResNetForImageClassification(ResNetConfig(num_labels=CLASSES, **sizes))

    return Model(name, make, images, cross_entropy)


def images(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(batch, 3, 224, 224), torch.randint(CLASSES, (batch,))


def mlp(width: int, layers: int) -> Model:
    def make() -> nn.Module:
        hidden = [module for _ in range(layers - 1) for module in (nn.Linear(width, width), nn.ReLU())]
        return nn.Sequential(*hidden, nn.Linear(width, width))

    def example(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(batch, width), torch.randn(batch, width)

    return Model(f"MLP {width}x{layers}", make, example, functional.mse_loss)


def transformer_encoder(layers: int, width: int, *, fast_path: bool = True) -> Model:
    def make() -> nn.Module:
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True)
        model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        return model if fast_path else WithoutFastPath(model)

    def example(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(batch, SEQUENCE, width), torch.randn(batch, SEQUENCE, width)

    name = f"TransformerEncoder {layers}x{width}"
    return Model(name if fast_path else f"{name}, no fast path", make, example, functional.mse_loss)


def bert(layers: int, width: int) -> Model:
    def make() -> nn.Module:
        from transformers import BertConfig, BertForSequenceClassification

        config = BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=8,
            intermediate_size=4 * width,
            num_labels=CLASSES,
        )
        return BertForSequenceClassification(config)

    def example(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randint(VOCABULARY, (batch, SEQUENCE)), torch.randint(CLASSES, (batch,))

    return Model(f"BERT {layers}x{width}", make, example, cross_entropy)


def gpt2(layers: int, width: int) -> Model:
    def make() -> nn.Module:
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=width,
            n_layer=layers,
            n_head=8,
            use_cache=False,
            bos_token_id=0,
            eos_token_id=0,
        )
        return GPT2LMHeadModel(config)

    def example(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randint(VOCABULARY, (batch, SEQUENCE)), torch.randint(VOCABULARY, (batch, SEQUENCE))

    return Model(f"GPT-2 {layers}x{width}", make, example, cross_entropy)


def gpt2_decoder(layers: int, width: int) -> nn.Module:
    """With a KV cache."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, n_embd=width, n_layer=layers, n_head=8, bos_token_id=0, eos_token_id=0)
    )


def llama(layers: int, width: int) -> nn.Module:
    """With a KV cache."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=8,
            intermediate_size=4 * width,
        )
    )


def llama_prefill(layers: int, width: int) -> Model:
    """What a llama does with a prompt: all tokens at once, into an empty KV cache."""

    def example(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randint(VOCABULARY, (batch, SEQUENCE)), torch.randint(VOCABULARY, (batch, SEQUENCE))

    return Model(f"llama {layers}x{width}, prefill", lambda: llama(layers, width), example, cross_entropy)


def vit(layers: int, width: int) -> Model:
    def make() -> nn.Module:
        from transformers import ViTConfig, ViTForImageClassification

        config = ViTConfig(
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=8,
            intermediate_size=4 * width,
            num_labels=CLASSES,
        )
        return ViTForImageClassification(config)

    return Model(f"ViT {layers}x{width}", make, images, cross_entropy)


# In training the encoder has no fast path. Where it infers without, torch calls F.linear with a transposed input; where neither that nor
# the weight needs a gradient it takes a path that copies the weight: frozen weights, and those that torch.autocast has cast.
MODELS = [
    cnn(32),
    channels_last(cnn(32)),
    mlp(2048, 3),
    transformer_encoder(4, 512),
    bert(4, 512),
    gpt2(4, 512),
    vit(4, 512),
]
UNFUSED_ENCODER = transformer_encoder(4, 512, fast_path=False)
SMALL_UNFUSED_ENCODER = transformer_encoder(2, 256, fast_path=False)
LARGE_MODELS = [channels_last(resnet("ResNet-50")), llama_prefill(6, 1024)]  # too large to be trained here
# All others are so small that a GPU waits for Python.
GPU_MODELS = [channels_last(resnet("ResNet-50")), llama_prefill(2, 4096)]
GPU_BATCH = 64

# Not so tiny that their memory could not be told.
TINY_MODELS = [
    cnn(16),
    channels_last(cnn(16)),
    mlp(256, 2),
    transformer_encoder(1, 128),
    bert(1, 64),
    gpt2(1, 64),
    vit(1, 128),
]
TINY_UNFUSED_ENCODER = transformer_encoder(1, 128, fast_path=False)
TINIEST_UNFUSED_ENCODER = transformer_encoder(1, 64, fast_path=False)
TINY_LARGE_MODELS = [
    channels_last(resnet("ResNet", embedding_size=8, hidden_sizes=[16, 32], depths=[1, 1])),
    llama_prefill(1, 64),
]
