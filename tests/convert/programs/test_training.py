"""Models under convert against the same models with casts written by hand, bit for bit: results and gradients.

The casts by hand follow the guides' lists (F234 to F237, D3 to D5, D18) and know nothing of the package: ``RULES`` is what the lists
say of the ops that these models use, ``Hand`` is each op with its casts.
"""

import copy
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn

from habana_mp import hmp

BF16, FP32 = torch.bfloat16, torch.float32
FLOATS = (torch.float32, torch.float16, torch.bfloat16)

RULES = {
    "hmp": {
        "lower": "batch_norm conv2d dropout layer_norm leaky_relu linear matmul mul relu",
        "fp32": "cross_entropy div embedding softmax",
        "promote": "add",
        "rest": "first",
    },
    "hmp-o1": {
        "lower": "conv2d linear matmul",
        "fp32": "batch_norm cross_entropy softmax",
        "promote": "add div mul",
        "rest": "first",
    },
    "hmp-resnet50": {
        "lower": "avg_pool2d conv2d linear max_pool2d relu",
        "fp32": "cross_entropy softmax",
        "promote": "add div mul",
        "rest": "first",
    },
    "O2": {"lower": "conv2d linear matmul", "fp32": "", "promote": "", "rest": "fp32"},
}
POLICIES = list(RULES)


def convert(policy: str) -> None:
    if policy == "O2":
        hmp.convert(opt_level="O2")
    else:
        hmp.convert(policy=policy)


class Hand:
    """The ops of the models below, each with its casts by hand; ``None`` as policy casts nothing."""

    def __init__(self, policy: str | None) -> None:
        self.rules = {} if policy is None else RULES[policy]

    def casts(self, op: str, *tensors: torch.Tensor) -> list[torch.Tensor]:
        rule = next((rule for rule in ("lower", "fp32", "promote") if op in self.rules.get(rule, "").split()), None)
        rule = rule or self.rules.get("rest")
        dtypes = [tensor.dtype for tensor in tensors if tensor.dtype in FLOATS]
        if rule is None or not dtypes:
            return list(tensors)
        wide = FP32 if FP32 in dtypes else dtypes[0]
        to = {"lower": BF16, "fp32": FP32, "promote": wide, "first": dtypes[0]}[rule]
        return [tensor.to(to) if tensor.dtype in FLOATS else tensor for tensor in tensors]

    def conv2d(self, x, conv):
        return F.conv2d(*self.casts("conv2d", x, conv.weight, conv.bias), conv.stride, conv.padding)

    def linear(self, x, linear):
        return F.linear(*self.casts("linear", x, linear.weight, linear.bias))

    def embedding(self, ids, table):
        return F.embedding(ids, *self.casts("embedding", table.weight), padding_idx=table.padding_idx)

    def batch_norm(self, x, norm):
        """In lower the input alone is cast, in fp32 all but the statistics (D14)."""
        (x,) = self.casts("batch_norm", x)
        norm.num_batches_tracked += 1
        return F.batch_norm(
            x, norm.running_mean, norm.running_var, norm.weight, norm.bias, norm.training, norm.momentum
        )

    def layer_norm(self, x, norm):
        (x,) = self.casts("layer_norm", x)
        return F.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)

    def relu_(self, x):
        """In place: the target is never cast (D11, D12)."""
        return F.relu(x, inplace=True)

    def relu(self, x):
        return F.relu(*self.casts("relu", x))

    def gelu(self, x):
        return F.gelu(*self.casts("gelu", x))

    def tanh(self, x):
        return torch.tanh(*self.casts("tanh", x))

    def max_pool2d(self, x):
        return F.max_pool2d(*self.casts("max_pool2d", x), 2)

    def avg_pool2d(self, x):
        return F.avg_pool2d(*self.casts("avg_pool2d", x), 2)

    def dropout(self, x, p, training):
        return F.dropout(*self.casts("dropout", x), p, training)

    def matmul(self, a, b):
        return torch.matmul(*self.casts("matmul", a, b))

    def mul(self, x, factor):
        return self.casts("mul", x)[0] * factor

    def div(self, x, divisor):
        return self.casts("div", x)[0] / divisor

    def add(self, a, b):
        a, b = self.casts("add", a, b)
        return a + b

    def softmax(self, x):
        return F.softmax(*self.casts("softmax", x), dim=-1)

    def attention(self, q, k, v, p):
        return F.scaled_dot_product_attention(*self.casts("scaled_dot_product_attention", q, k, v), dropout_p=p)

    def cross_entropy(self, x, y):
        return F.cross_entropy(*self.casts("cross_entropy", x), y)


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.relu, self.max_pool, self.avg_pool = nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.AvgPool2d(2)
        self.head = nn.Linear(32, 5)

    def forward(self, x):
        x = self.max_pool(self.relu(self.norm1(self.conv1(x))))
        x = self.relu(self.norm2(self.conv2(x)) + x)
        return self.head(self.avg_pool(x).flatten(1))

    @staticmethod
    def by_hand(model, hand, x):
        x = hand.max_pool2d(hand.relu_(hand.batch_norm(hand.conv2d(x, model.conv1), model.norm1)))
        x = hand.relu_(hand.add(hand.batch_norm(hand.conv2d(x, model.conv2), model.norm2), x))
        return hand.linear(hand.avg_pool2d(x).flatten(1), model.head)


class Block(nn.Module):
    """A transformer block whose attention is written out: matmul, a division, softmax, a residual, two norms."""

    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.head = nn.Linear(width, 5)
        self.dropout = nn.Dropout(0.25)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        weights = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), dim=-1)
        x = x + self.dropout(self.out((weights @ v).transpose(1, 2).flatten(2)))
        x = x + 0.5 * self.down(F.relu(self.up(self.norm2(x))))
        return self.head(x[:, 0])

    @staticmethod
    def by_hand(model, hand, x):
        qkv = hand.linear(hand.layer_norm(x, model.norm1), model.qkv).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (model.heads, -1)).transpose(1, 2) for part in qkv)
        weights = hand.softmax(hand.div(hand.matmul(q, k.transpose(-2, -1)), math.sqrt(q.shape[-1])))
        attended = hand.linear(hand.matmul(weights, v).transpose(1, 2).flatten(2), model.out)
        x = hand.add(x, hand.dropout(attended, 0.25, model.training))
        x = hand.add(
            x, hand.mul(hand.linear(hand.relu(hand.linear(hand.layer_norm(x, model.norm2), model.up)), model.down), 0.5)
        )
        return hand.linear(x[:, 0], model.head)


class Bert(nn.Module):
    """transformers' BertModel, two layers, and a classifier."""

    def __init__(self, attention="eager"):
        super().__init__()
        config = transformers.BertConfig(
            vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
            max_position_embeddings=16, attn_implementation=attention,
        )  # fmt: skip
        self.bert, self.head = transformers.BertModel(config), nn.Linear(16, 5)

    def forward(self, ids):
        return self.head(self.bert(ids).pooler_output)

    @staticmethod
    def by_hand(model, hand, ids):
        bert, p, training = model.bert, 0.1, model.training
        table = bert.embeddings
        positions = torch.arange(ids.shape[1])[None]
        x = hand.add(
            hand.embedding(ids, table.word_embeddings),
            hand.embedding(torch.zeros_like(ids), table.token_type_embeddings),
        )
        x = hand.add(x, hand.embedding(positions, table.position_embeddings))
        x = hand.dropout(hand.layer_norm(x, table.LayerNorm), p, training)
        for layer in bert.encoder.layer:
            own = layer.attention.self
            q, k, v = (
                hand.linear(x, part).view(*ids.shape, 2, 8).transpose(1, 2) for part in (own.query, own.key, own.value)
            )
            if bert.config._attn_implementation == "sdpa":
                attended = hand.attention(q, k, v, p if training else 0.0)
            else:
                weights = hand.softmax(hand.mul(hand.matmul(q, k.transpose(2, 3)), 8**-0.5))
                attended = hand.matmul(hand.dropout(weights, p, training), v)
            attended = attended.transpose(1, 2).contiguous().reshape(*ids.shape, -1)
            attended = hand.dropout(hand.linear(attended, layer.attention.output.dense), p, training)
            x = hand.layer_norm(hand.add(attended, x), layer.attention.output.LayerNorm)
            inner = hand.linear(hand.gelu(hand.linear(x, layer.intermediate.dense)), layer.output.dense)
            x = hand.layer_norm(hand.add(hand.dropout(inner, p, training), x), layer.output.LayerNorm)
        return hand.linear(hand.tanh(hand.linear(x[:, 0], bert.pooler.dense)), model.head)


class BertSdpa(Bert):
    def __init__(self):
        super().__init__("sdpa")


MODELS = {
    "cnn": (Cnn, lambda: torch.randn(4, 3, 8, 8)),
    "block": (Block, lambda: torch.randn(4, 6, 16)),
    "bert-eager": (Bert, lambda: torch.randint(0, 50, (4, 6))),
    "bert-sdpa": (BertSdpa, lambda: torch.randint(0, 50, (4, 6))),
}


def made(name):
    """The model, its input and its target; the same at every call."""
    torch.manual_seed(0)
    model, x = MODELS[name]
    return model().train(), x(), torch.randint(0, 5, (4,))


def outcome(model, run, loss, x, y):
    """Everything that a training step leaves: output, loss, gradients, buffers."""
    torch.manual_seed(1)  # dropout
    out = run(x)
    value = loss(out, y)
    value.backward()
    gradients = {
        f"{name}.grad": parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None
    }
    return {"out": out, "loss": value, **gradients, **dict(model.named_buffers())}


def assert_same_bits(ours, expected):
    assert ours.keys() == expected.keys()
    differing = {
        name: (ours[name].dtype, expected[name].dtype)
        for name in ours
        if ours[name].dtype != expected[name].dtype or not torch.equal(ours[name], expected[name])
    }
    assert differing == {}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", MODELS)
def test_a_step_equals_hand_written_casts(name, policy):
    model, x, y = made(name)
    hand = Hand(policy)
    by_hand = outcome(model, lambda x: model.by_hand(model, hand, x), hand.cross_entropy, x, y)
    model, x, y = made(name)
    convert(policy)
    converted = outcome(model, model, F.cross_entropy, x, y)
    assert_same_bits(converted, by_hand)
    assert len([name for name in converted if name.endswith(".grad")]) == len(list(model.parameters()))


@pytest.mark.parametrize("name", MODELS)
def test_the_hand_written_model_is_the_model(name):
    """Without casts the two are one: what the tests above compare is the casts."""
    model, x, y = made(name)
    by_hand = outcome(model, lambda x: model.by_hand(model, Hand(None), x), F.cross_entropy, x, y)
    model, x, y = made(name)
    assert_same_bits(outcome(model, model, F.cross_entropy, x, y), by_hand)


@pytest.mark.parametrize(
    ("policy", "name", "dtype"),
    [
        ("hmp", "cnn", BF16),
        ("hmp", "block", BF16),
        ("hmp-o1", "bert-eager", BF16),
        ("hmp-resnet50", "cnn", BF16),
        ("O2", "block", BF16),
    ],
)
def test_dtypes_of_a_step_f242_f255(policy, name, dtype):
    model, x, y = made(name)
    convert(policy)
    out = outcome(model, model, F.cross_entropy, x, y)
    assert (out["out"].dtype, out["loss"].dtype) == (dtype, FP32)
    assert {value.dtype for key, value in out.items() if key.endswith(".grad")} == {FP32}


@pytest.mark.parametrize("grad", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", MODELS)
def test_evaluation_equals_hand_written_casts(name, policy, grad):
    model, x, _ = made(name)
    model.eval()
    convert(policy)
    with grad():
        converted = model(x)
        hmp.revert()
        by_hand = model.by_hand(model, Hand(policy), x)
    assert (converted.dtype, converted.requires_grad) == (by_hand.dtype, False)
    assert torch.equal(converted, by_hand)


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1),
    "sgd-momentum-foreach": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, foreach=True),
    "sgd-fused": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, fused=True),
    "adamw-single": lambda parameters: torch.optim.AdamW(parameters, 0.01, foreach=False),
    "adamw-foreach": lambda parameters: torch.optim.AdamW(parameters, 0.01, foreach=True),
    "adamw-fused": lambda parameters: torch.optim.AdamW(parameters, 0.01, fused=True),
    "adam-capturable-amsgrad": lambda parameters: torch.optim.Adam(parameters, 0.01, amsgrad=True),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, 0.01),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, 0.01),
}


def train(model, run, loss, optimizer, x, y, steps=3):
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(run(x), y)
        value.backward()
        with hmp.disable_casts():
            optimizer.step()
        losses.append(value.detach())
    return [*losses, *model.parameters(), *model.buffers()]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_with_the_step_in_disable_casts_f246(optimizer):
    model, x, y = made("block")
    model.eval()
    hand = Hand("hmp")
    by_hand = train(
        model,
        lambda x: model.by_hand(model, hand, x),
        hand.cross_entropy,
        OPTIMIZERS[optimizer](model.parameters()),
        x,
        y,
    )
    model, x, y = made("block")
    model.eval()
    hmp.convert()
    converted = train(model, model, F.cross_entropy, OPTIMIZERS[optimizer](model.parameters()), x, y)
    assert all(map(torch.equal, converted, by_hand))
    assert converted[2] < converted[0]


@pytest.mark.parametrize("policy", ["hmp", "O2"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_step_outside_disable_casts_keeps_float32(optimizer, policy):
    """The guides put the step in disable_casts; left out of it, parameters and state are float32 still."""
    model, x, y = made("block")
    convert(policy)
    made_by = OPTIMIZERS[optimizer](model.parameters())
    for _ in range(2):
        made_by.zero_grad()
        F.cross_entropy(model(x), y).backward()
        made_by.step()
    state = itertools.chain.from_iterable(entry.values() for entry in made_by.state.values())
    assert {parameter.dtype for parameter in model.parameters()} == {FP32}
    assert {value.dtype for value in state if isinstance(value, torch.Tensor)} <= {FP32}


@pytest.mark.parametrize("utility", ["clip_grad_norm_", "clip_grad_value_"])
def test_gradient_clipping(utility):
    results = []
    for inside in (True, False):
        model, x, y = made("cnn")
        hmp.convert()
        F.cross_entropy(model(x), y).backward()
        if not inside:
            hmp.revert()
        with hmp.disable_casts():
            getattr(nn.utils, utility)(model.parameters(), 0.1)
        results.append([parameter.grad for parameter in model.parameters()])
    assert all(map(torch.equal, *results))


LAYERS = {
    "lstm": lambda: nn.LSTM(4, 3, num_layers=2, bidirectional=True, batch_first=True),
    "lstm-projection": lambda: nn.LSTM(4, 5, proj_size=3, batch_first=True),
    "gru": lambda: nn.GRU(4, 3, num_layers=2, batch_first=True),
    "rnn-tanh": lambda: nn.RNN(4, 3, batch_first=True),
    "rnn-relu": lambda: nn.RNN(4, 3, nonlinearity="relu", batch_first=True),
}
CELLS = {
    "lstm": lambda: nn.LSTMCell(4, 3),
    "gru": lambda: nn.GRUCell(4, 3),
    "rnn-tanh": lambda: nn.RNNCell(4, 3),
    "rnn-relu": lambda: nn.RNNCell(4, 3, nonlinearity="relu"),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
class TestRecurrent:
    """Recurrent layers and cells work after a bf16 op: state and weights take the dtype of the input (D15, D16)."""

    @staticmethod
    def flat(result):
        return (
            [result] if isinstance(result, torch.Tensor) else [t for part in result for t in TestRecurrent.flat(part)]
        )

    def check(self, module, call, x):
        """``call(module, input)`` after a bf16 op, against the module with all its weights cast to bfloat16 by hand."""
        hmp.convert()
        low = torch.mm(x.flatten(0, -2), torch.eye(4)).view(x.shape)
        assert low.dtype == BF16
        converted = self.flat(call(module, low))
        torch.stack([t.float().sum() for t in converted]).sum().backward()
        gradients = [parameter.grad for parameter in module.parameters()]
        hmp.revert()
        module.zero_grad()
        by_hand = copy.deepcopy(module).to(BF16)
        expected = self.flat(call(by_hand, low))
        torch.stack([t.float().sum() for t in expected]).sum().backward()
        assert [t.dtype for t in converted] == [BF16] * len(converted)
        assert all(map(torch.equal, converted, expected))
        assert {gradient.dtype for gradient in gradients} == {FP32}
        for gradient, parameter in zip(gradients, by_hand.parameters(), strict=True):
            assert torch.equal(gradient, parameter.grad.float())

    @pytest.mark.parametrize("layer", LAYERS)
    def test_layer_after_a_bf16_op(self, layer):
        torch.manual_seed(0)
        self.check(LAYERS[layer](), lambda module, x: module(x), torch.randn(2, 5, 4))

    @pytest.mark.parametrize("cell", CELLS)
    def test_cell_after_a_bf16_op(self, cell):
        torch.manual_seed(0)
        self.check(CELLS[cell](), lambda module, x: module(x), torch.randn(2, 4))

    @pytest.mark.parametrize("layer", LAYERS)
    def test_layer_with_a_float32_state(self, layer):
        """A state of another dtype than the input takes the input's, as all tensors of the call do."""
        torch.manual_seed(0)
        module = LAYERS[layer]()
        x = torch.randn(2, 5, 4)
        state = module(x)[1]
        hmp.convert()
        assert {t.dtype for t in self.flat(module(x.bfloat16(), state))} == {BF16}

    @pytest.mark.parametrize("layer", LAYERS)
    def test_packed_sequence(self, layer):
        torch.manual_seed(0)
        module, x = LAYERS[layer](), torch.randn(2, 5, 4)
        hmp.convert()
        packed = nn.utils.rnn.pack_padded_sequence(x.bfloat16(), [5, 3], batch_first=True)
        out, _ = nn.utils.rnn.pad_packed_sequence(module(packed)[0], batch_first=True)
        alone = module(x[1:, :3].bfloat16())[0]
        assert out.dtype == BF16
        if not getattr(module, "bidirectional", False):
            assert torch.equal(out[1, :3], alone[0])

    @pytest.mark.parametrize("layer", LAYERS)
    def test_the_lists_decide_what_they_are_made_of(self, layer):
        """As in a region, bit for bit (D40, D41)."""
        torch.manual_seed(0)
        module, x = LAYERS[layer](), torch.randn(2, 5, 4)
        with hmp.autocast("cpu", policy="hmp-o1"):
            expected = module(x)
        hmp.convert(policy="hmp-o1")
        assert all(map(torch.equal, self.flat(module(x)), self.flat(expected)))

    def test_wrong_shapes_are_refused_as_ever(self):
        hmp.convert()
        with pytest.raises((RuntimeError, ValueError), match="must be equal to input_size"):
            nn.LSTM(4, 3)(torch.randn(2, 5, 6).bfloat16())


class TestTransformerEncoder:
    """torch's own encoder in evaluation has a fused layer that would run past linear, layer_norm and softmax."""

    @pytest.mark.parametrize("mask", [None, "padding"])
    @pytest.mark.parametrize("grad", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
    def test_evaluation_equals_training_mode(self, grad, mask):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=mask is not None)
        x = torch.randn(2, 6, 16)
        padding = None if mask is None else torch.arange(6)[None] >= torch.tensor([6, 4])[:, None]
        hmp.convert()
        model.train()
        expected = model(x, src_key_padding_mask=padding)
        model.eval()
        with grad():
            out = model(x, src_key_padding_mask=padding)
        assert out.dtype == expected.dtype == BF16
        assert torch.equal(out, expected.detach())
        hmp.revert()
        assert torch.backends.mha.get_fastpath_enabled()

    def test_multi_head_attention_in_evaluation(self):
        torch.manual_seed(0)
        model = nn.MultiheadAttention(16, 2, batch_first=True).eval()
        x = torch.randn(2, 6, 16)
        hmp.convert()
        with torch.no_grad():
            out, weights = model(x, x, x)
        assert (out.dtype, weights.dtype) == (BF16, FP32)  # linear lower, softmax fp32 (D19)
