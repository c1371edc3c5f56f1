"""A small GPT in several programs: projections apart or fused, two kernels of attention, whole sequences or one token at a time."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from habana_mp import hmp

WIDTH, HEADS, LAYERS, WORDS = 64, 4, 2, 50


def record(path, step) -> None:
    with hmp.record(path) as run:
        run.returns(step())


class Attention(nn.Module):
    def __init__(self, *, kernel: bool) -> None:
        super().__init__()
        self.kernel = kernel
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.cache: tuple[torch.Tensor, torch.Tensor] | None = None
        self.stale = False
        self.window = 1 << 30

    def projections(self, x):
        return self.q(x), self.k(x), self.v(x)

    def forward(self, x, cached):
        q, k, v = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in self.projections(x))
        if cached:
            if self.cache is not None:
                old = self.cache
                k, v = torch.cat([old[0], k], 2), torch.cat([old[1], v], 2)
                if self.stale and k.shape[2] == 6:
                    k[:, :, 2] = k[:, :, 1]
            self.cache = k, v
        places = torch.arange(k.shape[2])
        own = places[k.shape[2] - q.shape[2] :, None]
        mask = (places <= own) & (places > own - self.window)
        if self.kernel:
            y = functional.scaled_dot_product_attention(q, k, v, mask)
        else:
            scores = (q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5).masked_fill(~mask, -torch.inf)
            y = scores.softmax(-1) @ v
        return self.out(y.transpose(1, 2).flatten(-2))


class Fused(Attention):
    def __init__(self, *, kernel: bool) -> None:
        super().__init__(kernel=kernel)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def fuse(self):
        parts = (self.q, self.k, self.v)
        self.qkv.weight.data = torch.cat([each.weight.data for each in parts])
        self.qkv.bias.data = torch.cat([each.bias.data for each in parts])
        del self.q, self.k, self.v

    def projections(self, x):
        return self.qkv(x).chunk(3, -1)


class Block(nn.Module):
    def __init__(self, attention) -> None:
        super().__init__()
        self.norm, self.attn, self.norm2 = nn.LayerNorm(WIDTH), attention, nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.rounds = False

    def mlp(self, x):
        return self.down(functional.gelu(self.up(x)))

    def forward(self, x, cached):
        y = self.attn(self.norm(x), cached)
        x = x + (y.bfloat16().float() if self.rounds else y)
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, *, fused: bool = False, kernel: bool = True) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.h = nn.ModuleList(Block((Fused if fused else Attention)(kernel=kernel)) for _ in range(LAYERS))
        self.h[-1].rounds = True
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, tokens, cached=False):
        x = self.words(tokens)
        for block in self.h:
            x = block(x, cached)
        return self.head(self.norm(x))


def gpt(*, fused: bool = False, kernel: bool = True) -> GPT:
    """The same weights in each program."""
    torch.manual_seed(0)
    plain = GPT()
    made = GPT(fused=fused, kernel=kernel)
    made.load_state_dict(plain.state_dict(), strict=False)
    if fused:
        for block in made.h:
            block.attn.fuse()
    return made.eval()


TOKENS = torch.randint(0, WORDS, (1, 16), generator=torch.Generator().manual_seed(1))


def whole(model: GPT) -> torch.Tensor:
    with torch.no_grad():
        return model(TOKENS)


def by_token(model: GPT, prompt: int = 4) -> torch.Tensor:
    """A prompt, then a token at a time, with a cache of keys."""
    with torch.no_grad():
        made = [model(TOKENS[:, :prompt], True)]
        made += [model(TOKENS[:, each : each + 1], True) for each in range(prompt, TOKENS.shape[1])]
    for block in model.h:
        block.attn.cache = None
    return torch.cat(made, 1)


def trained(model: GPT) -> torch.Tensor:
    model.zero_grad()
    logits = model(TOKENS)
    functional.cross_entropy(logits[0, :-1], TOKENS[0, 1:]).backward()
    return logits


class Engine(nn.Module):
    """The same model by other names."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.layers, self.model.tokens, self.model.last = model.h, model.words, model.norm
        self.lm_head = model.head

    def forward(self, tokens):
        x = self.model.tokens(tokens)
        for block in self.model.layers:
            x = block(x, False)
        return self.lm_head(self.model.last(x))


NAMES = {"h": "model.layers", "words": "model.tokens", "norm": "model.last", "head": "lm_head"}
