"""What the patterns of names cannot know about single architectures."""

from __future__ import annotations

from typing import Any

# Detectors whose default backbone is one of timm, which is not installed.
_RESNET = {
    "use_timm_backbone": False,
    "backbone": None,
    "backbone_config": {"model_type": "resnet", "out_features": ["stage4"]},
}
_RESNET_LEVELS = _RESNET | {"backbone_config": {"model_type": "resnet", "out_features": ["stage2", "stage3", "stage4"]}}

# Arguments of the class of the configuration.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "autoformer": {"prediction_length": 8},
    "conditional_detr": _RESNET,
    "dab-detr": _RESNET,
    "deformable_detr": _RESNET_LEVELS,
    "detr": _RESNET,
    "table-transformer": _RESNET,
    "time_series_transformer": {"prediction_length": 8},
}

_MROPE = {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default", "mrope_section": [2, 1, 1]}}

# Attributes that are set when the configuration is small.
OVERRIDES: dict[str, dict[str, Any]] = {
    "bamba": {"mamba_d_head": 16},
    "bit": {"num_groups": 4},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_routed_experts": 4, "topk_group": 1, "n_group": 1},
    "donut-swin": {"window_size": 2},
    "ernie4_5_moe": {"moe_k": 2},
    "esm": {"vocab_size": 128, "pad_token_id": 1},
    "glm4v_text": _MROPE,
    "glm_ocr_text": _MROPE,
    "jamba": {"attn_layer_offset": 1, "attn_layer_period": 2},
    "led": {"attention_window": [8, 8]},
    "mamba2": {"head_dim": 16, "n_groups": 1},
    "nemotron": {"num_key_value_heads": 2},
    "qwen2_5_vl_text": _MROPE,
    "qwen2_vl_text": _MROPE,
    "swin": {"window_size": 2},
    "xmod": {"default_language": "en_XX"},
}

# Shapes of inputs, where the configuration does not give them.
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "audio-spectrogram-transformer": {"input_values": (2, 256, 128)},
    "dac": {"input_values": (2, 1, 1600)},
    "encodec": {"input_values": (2, 1, 1600)},
    "timesformer": {"pixel_values": (1, 8, 3, 64, 64)},
    "videomae": {"pixel_values": (1, 16, 3, 64, 64)},
    "vivit": {"pixel_values": (1, 16, 3, 64, 64)},
    "xclip": {"pixel_values": (1, 8, 3, 64, 64)},
    "vjepa2": {"pixel_values_videos": (1, 16, 3, 64, 64)},
    "speech_to_text": {"input_features": (2, 64, 80)},
    "wav2vec2-bert": {"input_features": (2, 40, 32)},
}
