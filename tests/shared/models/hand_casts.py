"""Models of which each op is written a second time, with its casts by hand.

The casts by hand follow the guides' lists (F234 to F237, D3 to D5, D18) and know nothing of the package: ``RULES`` is what the lists
say of the ops that these models use, ``Hand`` is each op with its casts.
"""

import math

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
