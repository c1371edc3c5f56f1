"""Tiny configurations: the default configuration of an architecture with every size in it made small.

A configuration names its sizes, so the rules are patterns of names. What a pattern cannot know is a row of ``OVERRIDES``. An attribute of
a part has the path of the part before its name: ``vision_config.image_size``.
"""

from __future__ import annotations

import re
from typing import Any

from zoo.cases.tiny import families

VOCABULARY = 128

# The first pattern that matches the name decides: a number becomes that of the rule unless it is smaller. None leaves it.
_NUMBERS: list[tuple[str, int | None]] = [
    (r"(type|modality_type|token_type|segment)_vocab_size|num_labels|chunk_size_feed_forward", None),
    (r".*kernel.*|num_conv_pos_embeddings|num_mel_bins|n_mels", None),
    (r"num_channels|in_chans|audio_channels|(encoder|head)?_?(in|out)_channels", None),
    (r".*vocab_size.*|vocab_offset", VOCABULARY),
    (r"(image|img|input|pretrain_image|crop|train|max_image|spatial|visual_prompt)_?size", 64),
    (r".*(stride|window|chunk|merge|patch|block|pool|group|batch|tubelet)_?size.*", 16),
    (r".*(position|positions|_len|_length|seq_len).*", 256),
    (r"((qk_rope|qk_nope|v|qk|index|linear|linear_key|linear_value|swa|global)_)?head_(dim|size)", 8),
    (r"attention_head_size|d_kv|mamba_d_head|mamba_headdim|partial_rotary_dim|rotary_dim", 8),
    (r".*(key_value|kv)_(heads|attention_heads).*|num_query_groups|linear_num_key_heads", 2),
    (r".*(heads|n_head)", 4),
    (r".*_rank", 16),
    (r".*(layers|n_layer|depth|num_blocks)", 2),
    (r".*(experts_per_tok|topk_group|n_group|topk|top_k)", 2),
    (r".*experts", 4),
    (r".*(intermediate|ffn|mlp|inner|d_ff|linear_units|feedforward|feed_forward).*", 64),
    (r".*(codebook_size|num_embeddings|num_queries|num_latents|num_query_tokens|num_frames|num_denoising)", 16),
    (r".*(size|dim|dims|width|units|channels|d_model|n_embd|dimension|filters|d_latents)", 32),
    (r"num_prototypes|num_codevectors_per_group", 32),
]
# The same for lists of numbers, place by place; the last number is that of all further places.
_LISTS: list[tuple[str, list[int]]] = [
    (r"depths|layers|blocks_per_stage|num_blocks|layer_depths|stage_numb_of_layers|focal_depths", [1]),
    (r".*heads.*", [2]),
    (r"conv_dim|tdnn_dim", [32]),
    (r"(encoder_)?hidden_sizes|embed_dims|embed_dim|hidden_dims|decoder_hidden_sizes|conv_dims", [16, 32, 64, 128]),
    (r"(image|img|input|train)_size", [64]),
]
_LAYER_KINDS = re.compile(
    r"(\w*layer_types|layers_block_type|block_types|attention_layers|indexer_types|hybrid_override_pattern)"
)


def tiny(model_type: str) -> Any:
    """The tiny configuration of an architecture, made without network."""
    from transformers import CONFIG_MAPPING

    config = CONFIG_MAPPING[model_type](**families.ARGUMENTS.get(model_type, {}))
    _shrink(config)
    for path, value in families.OVERRIDES.get(model_type, {}).items():
        _set(config, path, value)
    return config


def _set(config: Any, path: str, value: Any) -> None:
    *parts, name = path.split(".")
    for part in parts:
        config = getattr(config, part)
    setattr(config, name, value)


def _shrink(config: Any) -> None:
    from transformers import PreTrainedConfig

    ids = iter(range(VOCABULARY - 1, 8, -1))
    for name, value in list(vars(config).items()):
        if isinstance(value, PreTrainedConfig):
            _shrink(value)
        elif isinstance(value, bool) or name.startswith("_"):
            continue
        elif isinstance(value, int):
            is_token = re.search(r"_(token_id|token_index|token|id|bos_id|eos_id|pad_id)$", name)
            beyond = is_token and value >= VOCABULARY
            setattr(config, name, next(ids) if beyond else value if is_token else _number(name, value))
        elif isinstance(value, (list, tuple)) and value:
            setattr(config, name, _list(name, value))
    _keep_kinds(config)
    _keep_heads(config)


def _keep_heads(config: Any) -> None:
    """Attention with a latent has as many key heads as heads; the sections of a rotary embedding add up to half of a head."""
    if getattr(config, "kv_lora_rank", None):
        config.num_key_value_heads = config.num_attention_heads
        config.qk_head_dim = 16
    rope = getattr(config, "rope_parameters", None) or {}
    if "mrope_section" in rope:
        half = int(8 * rope.get("partial_rotary_factor", 1)) // 2
        rope["mrope_section"] = [half - 2 * (half // 3), half // 3, half // 3]


def _number(name: str, value: int) -> int:
    for pattern, small in _NUMBERS:
        if re.fullmatch(pattern, name):
            return value if small is None else min(value, small)
    return value


def _list(name: str, value: Any) -> Any:
    if not all(isinstance(item, int) and not isinstance(item, bool) for item in value):
        return value
    for pattern, small in _LISTS:
        if re.fullmatch(pattern, name):
            return type(value)(min(item, small[min(place, len(small) - 1)]) for place, item in enumerate(value))
    return value


def _keep_kinds(config: Any) -> None:
    """One layer of each kind that the architecture has, or two of the only one."""
    for name, value in list(vars(config).items()):
        if not _LAYER_KINDS.fullmatch(name) or not isinstance(value, (list, tuple)) or not value:
            continue
        kinds = list(dict.fromkeys(value))
        kinds = (kinds * 2)[: max(2, len(kinds))]
        setattr(config, name, kinds)
        for count in ("num_hidden_layers", "n_layer", "num_layers"):
            if isinstance(getattr(config, count, None), int):
                setattr(config, count, len(kinds))
                break
