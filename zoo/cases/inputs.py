"""Inputs for an architecture, by the names of the parameters of its ``forward``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch

from zoo.cases import families

BATCH, LENGTH = 2, 16


def candidates(model: Any, config: Any) -> Iterator[dict[str, Any]]:
    """Sets of inputs to try: everything that the model may take first, then what it must take."""
    parameters = inspect.signature(model.forward).parameters
    known = [name for name in parameters if name in MAKERS]
    required = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    main = model.main_input_name if isinstance(model.main_input_name, str) else "input_ids"
    decoder = [name for name in ("decoder_input_ids",) if name in parameters]
    tried = []
    for names in (known, [main, *required, *decoder], [main, *required], ["input_ids"], ["pixel_values"], ["input_features"]):
        names = [name for name in dict.fromkeys(names) if name in MAKERS and name in parameters]
        if names and names not in tried:
            tried.append(names)
            yield {name: _make(name, config) for name in names}


def _make(name: str, config: Any) -> torch.Tensor:
    shape = families.SHAPES.get(config.model_type, {}).get(name)
    return MAKERS[name](config) if shape is None else torch.randn(shape)


def find(config: Any, name: str, default: Any) -> Any:
    """The attribute of the configuration or of the first part that has it."""
    from transformers import PreTrainedConfig

    value = getattr(config, name, None)
    if value is not None:
        return value
    for part in vars(config).values():
        if isinstance(part, PreTrainedConfig) and (value := find(part, name, None)) is not None:
            return value
    return default


def side(config: Any) -> tuple[int, int]:
    size = find(config, "image_size", find(config, "img_size", 64))
    if isinstance(size, dict):
        size = (size["height"], size["width"])
    if isinstance(size, (list, tuple)):
        return tuple(size[-2:]) if len(size) > 1 else (size[0], size[0])
    return size, size


def tokens(config: Any) -> torch.Tensor:
    return torch.randint(9, 64, (BATCH, LENGTH))


def image(config: Any) -> torch.Tensor:
    return torch.randn(BATCH, find(config, "num_channels", find(config, "in_channels", 3)), *side(config))


def features(config: Any) -> torch.Tensor:
    bins = find(config, "num_mel_bins", find(config, "input_feat_per_channel", 80))
    return torch.randn(BATCH, bins, 2 * find(config, "max_source_positions", 32))


MAKERS: dict[str, Any] = {
    "input_ids": tokens,
    "decoder_input_ids": tokens,
    "pixel_values": image,
    "input_values": lambda config: torch.randn(BATCH, 1600),
    "input_features": features,
    "pixel_values_videos": lambda config: torch.randn(1, 16, 3, *side(config)),
    "bbox": lambda config: torch.zeros(BATCH, LENGTH, 4, dtype=torch.long),
}
