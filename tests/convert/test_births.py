"""D45: a model made under convert has the parameters and buffers, bit for bit, of one made without."""

from __future__ import annotations

import math
import threading
import warnings
from typing import Any

import pytest
import torch
import torch.nn.utils.prune
import transformers
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm, weight_norm

from habana_mp import hmp

BF16, FP32 = torch.bfloat16, torch.float32
POLICIES = ("hmp", "hmp-o1", "hmp-o2", "torch-cpu")


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Buffers that state_dict leaves out, too."""
    return {name: tensor.detach().clone() for name, tensor in (*model.named_parameters(), *model.named_buffers())}


def made(make, policy: str | None = None) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    if policy is not None:
        hmp.convert(policy=policy)
    try:
        return state(make())
    finally:
        hmp.revert()


def assert_same(ours: dict[str, torch.Tensor], plain: dict[str, torch.Tensor]) -> None:
    assert {name: tensor.dtype for name, tensor in ours.items()} == {
        name: tensor.dtype for name, tensor in plain.items()
    }
    assert [name for name in plain if not torch.equal(ours[name], plain[name])] == []


SMALL = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 40,
    "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
SEQ2SEQ = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "vocab_size": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1,
}  # fmt: skip
GQA = {**SMALL, "num_key_value_heads": 1, "head_dim": 8}
VISION = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 16,
    "patch_size": 8,
}
STAGES = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 8, 16, 16]}

CONFIGS = {
    "Bert": SMALL,
    "Albert": {**SMALL, "embedding_size": 8},
    "Electra": {**SMALL, "embedding_size": 8},
    "Deberta": {**SMALL, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "GPT2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 40, "n_positions": 16},
    "GPTJ": {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 40, "n_positions": 16, "rotary_dim": 4},
    "GPTNeoX": SMALL,
    "Bloom": {"hidden_size": 16, "n_layer": 1, "n_head": 2, "vocab_size": 40},
    "Llama": GQA,
    "Mistral": GQA,
    "Qwen2": GQA,
    "Gemma": GQA,
    "Phi": SMALL,
    "Mamba": {"hidden_size": 16, "num_hidden_layers": 2, "vocab_size": 40, "state_size": 4},
    "Mamba2": {"hidden_size": 16, "num_hidden_layers": 1, "vocab_size": 40, "state_size": 4, "num_heads": 4, "head_dim": 8, "n_groups": 1},
    "Rwkv": {"hidden_size": 16, "num_hidden_layers": 2, "vocab_size": 40, "attention_hidden_size": 16},
    "T5": {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "vocab_size": 40},
    "Bart": SEQ2SEQ,
    "Pegasus": SEQ2SEQ,
    "Whisper": {**SEQ2SEQ, "num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 16},
    "ViT": VISION,
    "DeiT": VISION,
    "Beit": {**VISION, "layer_scale_init_value": 0.1, "use_relative_position_bias": True},
    "Data2VecVision": {**VISION, "use_shared_relative_position_bias": True},
    "Dinov2": VISION,
    "ConvNext": STAGES,
    "ConvNextV2": STAGES,
    "PoolFormer": {**STAGES, "layer_scale_init_value": 0.1},
    "Swin": {"embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "image_size": 16, "patch_size": 2, "window_size": 4},
    "Swinv2": {"embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "image_size": 16, "patch_size": 2, "window_size": 4},
    "ResNet": {**STAGES, "embedding_size": 8},
    "CLIPVision": VISION,
    "Siglip2Vision": {**VISION, "num_patches": 4},
    "Wav2Vec2": {**SMALL, "conv_dim": (8,), "conv_kernel": (3,), "conv_stride": (2,), "num_feat_extract_layers": 1, "num_conv_pos_embedding_groups": 2},
    "Hubert": {**SMALL, "conv_dim": (8,), "conv_kernel": (3,), "conv_stride": (2,), "num_feat_extract_layers": 1, "num_conv_pos_embedding_groups": 2},
    "ViTMAE": {**VISION, "decoder_hidden_size": 16, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2},
    "TimeSeriesTransformer": {"prediction_length": 4, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1},
    "DistilBert": {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32, "vocab_size": 40, "sinusoidal_pos_embds": True},
}  # fmt: skip


def from_config(name: str):
    config = getattr(transformers, f"{name}Config")(**CONFIGS[name])
    return lambda: transformers.AutoModel.from_config(config)


@pytest.mark.parametrize("name", CONFIGS)
def test_models_of_transformers_from_config(name: str) -> None:
    make = from_config(name)
    plain = made(make)
    for policy in POLICIES:
        assert_same(made(make, policy), plain)


@pytest.mark.parametrize("name", ["Bert", "ViT", "Mamba", "Beit"])
@pytest.mark.parametrize("policy", POLICIES)
def test_from_pretrained(name: str, policy: str, tmp_path) -> None:
    """Some keys are not in the checkpoint, and are initialized when the model is there."""
    torch.manual_seed(0)
    model = from_config(name)()
    kept = {key: tensor for number, (key, tensor) in enumerate(model.state_dict().items()) if number % 3}
    model.save_pretrained(tmp_path, state_dict=kept)

    def make() -> nn.Module:
        return type(model).from_pretrained(tmp_path)

    assert_same(made(make, policy), made(make))


class Scaled(nn.Module):
    """Layer scale, as ConvNeXt has it."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(0.1 * torch.ones(4))
        self.register_buffer("table", torch.exp(torch.arange(4.0) @ torch.randn(4, 4)) * 0.3)


class FromFunctions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sinusoids = nn.Parameter(self._sinusoids())
        self.inner = nn.ModuleList([Scaled() for _ in range(2)])

    @staticmethod
    def _sinusoids() -> torch.Tensor:
        times = torch.arange(8.0)[:, None] * torch.exp(-math.log(1e4) * torch.arange(4.0) / 3)[None]
        return torch.cat([times.sin(), times.cos()], dim=1)


class WithInit(Scaled):
    def __init__(self) -> None:
        super().__init__()
        self.reset_parameters()
        with torch.no_grad():
            self.gamma *= torch.randn(4) * 0.37

    def reset_parameters(self) -> None:
        self.gamma = nn.Parameter(torch.randn(4) * 0.37 + self.table[0])


class WithForward(nn.Module):
    """Finds the width of its head by a call of its own, as many do."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(1, 2, 3)
        with torch.no_grad():
            out = self.body(torch.ones(1, 1, 5, 5))
        self.register_buffer("out", out)


class Mixin:
    """No module of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.mixed = made_of_matmul()


class WithMixin(Mixin, nn.Module):
    pass


def logged(function):
    """A decorator without functools.wraps."""

    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


def counted(function):
    """Has itself in its closure, and the name of what it decorates."""

    def call(*args, **kwargs):
        call.times += 1
        return function(*args, **kwargs)

    call.times, call.__name__ = 0, function.__name__
    return call


def made_of_matmul() -> nn.Parameter:
    return nn.Parameter(torch.relu(torch.randn(8, 64) @ torch.randn(64, 8)))


class Counted(nn.Module):
    @counted
    def __init__(self) -> None:
        super().__init__()
        self.table = made_of_matmul()


class TwiceDecorated(nn.Module):
    @logged
    @logged
    def __init__(self) -> None:
        super().__init__()
        self.table = made_of_matmul()


class SetUp(nn.Module):
    def set_up(self) -> None:
        super().__init__()
        self.table = made_of_matmul()

    __init__ = logged(set_up)


class Logged(nn.Module):
    @logged
    def __init__(self) -> None:
        super().__init__()
        self.table = made_of_matmul()
        self.linear = nn.Linear(8, 8)

    @logged
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def then_reset() -> nn.Module:
    model = WithInit()
    model.reset_parameters()
    return model


def then_applied() -> nn.Module:
    model = Scaled()
    torch.ones(2, 2) @ torch.ones(2, 2)

    def init(module: nn.Module) -> None:
        if isinstance(module, Scaled):
            module.gamma.data = torch.randn(4) * 0.37

    return model.apply(init)


def in_a_thread() -> nn.Module:
    found: list[nn.Module] = []
    thread = threading.Thread(target=lambda: found.append(FromFunctions()))
    thread.start()
    thread.join()
    return found[0]


INITS = ("trunc_normal_", "xavier_uniform_", "kaiming_normal_", "orthogonal_", "eye_")


def initialized(name: str):
    def make() -> nn.Module:
        linear = nn.Linear(6, 6)
        getattr(nn.init, name)(linear.weight)
        return linear

    return make


MADE = {
    "layer scale": Scaled,
    "from functions": FromFunctions,
    "reset_parameters": WithInit,
    "reset_parameters behind the constructor": then_reset,
    "apply": then_applied,
    "a call in the constructor": WithForward,
    "in a thread": in_a_thread,
    "a mixin": WithMixin,
    "a decorated constructor": Logged,
    "a constructor decorated twice": TwiceDecorated,
    "a decorator that knows itself": Counted,
    "a constructor of another name, decorated": SetUp,
    "weight_norm": lambda: parametrizations.weight_norm(nn.Linear(5, 5)),
    "spectral_norm": lambda: parametrizations.spectral_norm(nn.Linear(5, 5)),
    "orthogonal": lambda: parametrizations.orthogonal(nn.Linear(5, 5)),
    "orthogonal-householder": lambda: parametrizations.orthogonal(nn.Linear(5, 5), orthogonal_map="householder"),
    "old spectral_norm": lambda: spectral_norm(nn.Linear(5, 5)),
    "attention": lambda: nn.MultiheadAttention(8, 2),
    **{name: initialized(name) for name in INITS},
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("case", MADE)
def test_made(case: str, policy: str) -> None:
    assert_same(made(MADE[case], policy), made(MADE[case]))


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_old_weight_norm() -> None:
    def make() -> nn.Module:
        return weight_norm(nn.Linear(5, 5))

    for policy in POLICIES:
        assert_same(made(make, policy), made(make))


def test_casts_are_on_behind_a_constructor_and_after_one_that_raises() -> None:
    class Raises(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == FP32
            raise ValueError("no model")

    hmp.convert(policy="hmp")
    with pytest.raises(ValueError, match="no model") as raised:  # the traceback keeps the frame of the constructor
        Raises()
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == BF16
    del raised
    Scaled()
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == BF16


def test_a_decorator_of_constructors_does_not_stand_for_one() -> None:
    hmp.convert(policy="balanced")
    model, x = Logged(), torch.randn(2, 8)
    found = [model(x).dtype]
    nn.ReLU()
    found.append(model(x).dtype)
    assert found == [BF16, BF16]


def test_a_mixin_that_is_a_class_of_its_own_has_its_casts() -> None:
    class Trainer:
        def __init__(self) -> None:
            super().__init__()
            self.dtype = nn.Linear(8, 8)(torch.ones(2, 8)).dtype

    class Both(Trainer, nn.Module):
        pass

    hmp.convert(policy="balanced")
    assert [Trainer().dtype, Both().dtype, Trainer().dtype] == [BF16, FP32, BF16]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "settings",
    [{}, {"activation": "gelu"}, {"activation": torch.nn.functional.gelu}, {"activation": torch.tanh}],
    ids=["default", "name", "function", "another"],
)
def test_an_encoder_knows_its_activation(settings: dict[str, Any], policy: str) -> None:
    """torch compares it with F.relu and F.gelu, by which it chooses the fused layer and nested tensors."""

    def make() -> nn.TransformerEncoder:
        return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, **settings), 2).eval()

    def facts(model: nn.TransformerEncoder) -> tuple[Any, ...]:
        return model.use_nested_tensor, *(layer.activation_relu_or_gelu for layer in model.layers)

    with warnings.catch_warnings(record=True) as of_torch:
        warnings.simplefilter("always")
        torch.manual_seed(0)
        plain = make()
    hmp.convert(policy=policy)
    with warnings.catch_warnings(record=True) as ours:
        warnings.simplefilter("always")
        torch.manual_seed(0)
        model = make()
    hmp.revert()
    assert facts(model) == facts(plain)
    assert list(map(str, (w.message for w in ours))) == list(map(str, (w.message for w in of_torch)))
    x, padded = torch.randn(3, 5, 16), torch.tensor([[False] * 3 + [True] * 2] * 3)
    with torch.no_grad():
        assert torch.equal(model(x, src_key_padding_mask=padded), plain(x, src_key_padding_mask=padded))


def test_modules_made_in_a_forward_are_called_under_casts() -> None:
    class Makes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.Linear(4, 4)(x)

    hmp.convert(policy="hmp")
    assert Makes()(torch.ones(2, 4)).dtype == BF16


class Initialized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8, 8))

    def init_weights(self) -> None:
        with torch.no_grad():
            self.weight.copy_(torch.linspace(0, 1, 64).view(8, 8) @ torch.eye(8))


@pytest.mark.parametrize("made_before", [True, False])
def test_weights_that_are_initialized_after_other_ops(made_before: bool) -> None:
    """As from_pretrained does for what a checkpoint lacks: copy_ would round them and keep their dtype."""
    plain = Initialized()
    plain.init_weights()
    model = Initialized() if made_before else None
    before = Initialized.init_weights
    hmp.convert(policy="hmp")
    model = model or Initialized()
    _ = torch.eye(4) @ torch.eye(4)
    model.init_weights()
    assert torch.equal(model.weight, plain.weight)
    hmp.revert()
    assert Initialized.init_weights is before


def pruned(layer: nn.Linear) -> None:
    torch.nn.utils.prune.l1_unstructured(layer, "weight", amount=0.5)
    layer(torch.ones(1, 4))
    torch.nn.utils.prune.remove(layer, "weight")


def weight_normed(layer: nn.Linear) -> None:
    torch.nn.utils.remove_weight_norm(weight_norm(layer))


def parametrized(layer: nn.Linear) -> None:
    parametrizations.weight_norm(layer)
    torch.nn.utils.parametrize.remove_parametrizations(layer, "weight")


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning")
@pytest.mark.parametrize("remake", [pruned, weight_normed, parametrized], ids=lambda function: function.__name__)
def test_a_parameter_that_is_made_anew_of_what_it_was_computed_from(remake) -> None:
    torch.manual_seed(0)
    plain, ours = nn.Linear(4, 4), nn.Linear(4, 4)
    ours.load_state_dict(plain.state_dict())
    remake(plain)
    hmp.convert(policy="hmp")
    remake(ours)
    assert torch.equal(ours.weight, plain.weight)
    assert type(ours.weight) is nn.Parameter
