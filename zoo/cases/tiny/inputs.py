"""Inputs for an architecture, by the names of the parameters of its ``forward``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

from zoo.cases.tiny import families

BATCH, LENGTH, FRAMES, SAMPLES = 2, 16, 16, 1600


def candidates(model: Any, config: Any) -> Iterator[dict[str, torch.Tensor]]:
    """Sets of inputs to try: everything that the model may take first, then what it must take."""
    parameters = inspect.signature(model.forward).parameters
    known = [name for name in parameters if name in _MAKERS]
    required = [name for name, parameter in parameters.items() if parameter.default is parameter.empty]
    main = model.main_input_name if isinstance(model.main_input_name, str) else "input_ids"
    sets = [known, [main, *required, "decoder_input_ids"], [main, *required], *([name] for name in _ALONE)]
    tried: list[list[str]] = []
    for wanted in sets:
        names = [name for name in dict.fromkeys(wanted) if name in known]
        if names and names not in tried:
            tried.append(names)
            yield {name: _make(name, config) for name in names}


def _make(name: str, config: Any) -> torch.Tensor:
    shape = families.SHAPES.get(config.model_type, {}).get(name)
    return _MAKERS[name](config) if shape is None else torch.randn(shape)


def _find(config: Any, name: str) -> Any:
    """The attribute of the configuration or of the first part that has it, or None."""
    from transformers import PreTrainedConfig

    found = getattr(config, name, None)
    parts = (part for part in vars(config).values() if isinstance(part, PreTrainedConfig))
    while found is None and (part := next(parts, None)) is not None:
        found = _find(part, name)
    return found


def _side(config: Any) -> tuple[int, int]:
    size = _find(config, "image_size") or _find(config, "img_size") or 64
    if isinstance(size, dict):
        return size["height"], size["width"]
    if isinstance(size, (list, tuple)):
        return size[0], size[-1]
    return size, size


def _tokens(_: Any) -> torch.Tensor:
    """Ids that are none of the special tokens."""
    return torch.randint(9, 64, (BATCH, LENGTH))


def _image(config: Any) -> torch.Tensor:
    return torch.randn(BATCH, _find(config, "num_channels") or _find(config, "in_channels") or 3, *_side(config))


def _video(config: Any) -> torch.Tensor:
    return torch.randn(1, FRAMES, 3, *_side(config))


def _features(config: Any) -> torch.Tensor:
    bins = _find(config, "num_mel_bins") or _find(config, "input_feat_per_channel") or 80
    return torch.randn(BATCH, bins, 2 * (_find(config, "max_source_positions") or 32))


def _samples(_: Any) -> torch.Tensor:
    return torch.randn(BATCH, SAMPLES)


def _boxes(_: Any) -> torch.Tensor:
    return torch.zeros(BATCH, LENGTH, 4, dtype=torch.long)


_MAKERS: dict[str, Callable[[Any], torch.Tensor]] = {
    "input_ids": _tokens,
    "decoder_input_ids": _tokens,
    "pixel_values": _image,
    "pixel_values_videos": _video,
    "input_values": _samples,
    "input_features": _features,
    "bbox": _boxes,
}
# What a model of several kinds of input may take without the others.
_ALONE = ("input_ids", "pixel_values", "input_features")
