"""The two sides of a trainer by reinforcement learning, which compute the probabilities of the same tokens, and why they differ.

    python examples/rl_trainer.py

An inference engine draws tokens: its model is held in bfloat16, keeps keys and values, and computes one token at a time. A trainer then computes
the probabilities of these tokens: its weights are in float32, under the policy `hmp`, and it computes whole sequences. Both begin with the same
checkpoint. Their probabilities should be equal, since their ratio is what PPO and GRPO clip; they are not.

1. Each side runs in its own process and is recorded by `hmp.record`. `hmp.compare` of the two files has the gap.
2. `hmp.compare` of the trainer beside the recording of the engine has the ops that make the gap.
3. One edit of both policies, `+linear in lm_head:fp32`, computes the logits in float32. Large ratios are gone: in bfloat16, logits that are nearly equal may
   be rounded to neighbours. The mean is still there.
4. The mean is made by the sums of 2, which the trainer computes in float32. With `+add:lower` they are in bfloat16 as in the engine, and the mean is gone too.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import gpt
import torch
from torch import nn
from torch.nn import functional as F

from habana_mp import hmp

WIDTH, HEADS, LAYERS = 128, 4, 2
PROMPTS, PROMPT, LENGTH = 8, 16, 48
BATCH = 8
HEAD, SUMS = "+linear in lm_head:fp32", "+add:lower"
LIMIT, RTOL = 1.01, 1e-3
Cache = dict[nn.Module, torch.Tensor]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, cache: Cache | None) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        if cache is not None:  # keys and values of the tokens before
            old = cache.get(self, torch.empty(2, len(x), HEADS, 0, WIDTH // HEADS, dtype=x.dtype))
            k, v = cache[self] = torch.cat([old, torch.stack([k, v])], 3)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, cache: Cache | None) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), cache)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, words: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(words, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, words)

    def forward(self, tokens: torch.Tensor, begin: int = 0, cache: Cache | None = None) -> torch.Tensor:
        x = self.token(tokens) + self.place(torch.arange(begin, begin + tokens.shape[1]))
        for block in self.blocks:
            x = block(x, cache)
        return self.lm_head(self.norm(x)).float()


def log_probabilities(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]


def generate(model: Model, prompts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens of shape [prompts, LENGTH], and the log-probabilities of those behind the prompt."""
    tokens, cache, found = prompts, Cache(), []
    with torch.inference_mode():
        logits = model(prompts, 0, cache)[:, -1]
        for place in range(PROMPT, LENGTH):
            drawn = torch.multinomial(logits.softmax(-1), 1)
            found.append(log_probabilities(logits, drawn[:, 0]))
            tokens = torch.cat([tokens, drawn], 1)
            logits = model(drawn, place, cache)[:, -1]
    return tokens, torch.stack(found, 1)


def score(model: Model, tokens: torch.Tensor) -> torch.Tensor:
    """The log-probabilities of the tokens behind the prompt, of whole sequences."""
    return log_probabilities(model(tokens[:, :-1])[:, PROMPT - 1 :], tokens[:, PROMPT:])


def loaded(side: str, folder: Path) -> Model:
    checkpoint = torch.load(folder / "checkpoint.pt")
    model = Model(len(checkpoint["lm_head.weight"])).to(torch.bfloat16 if side == "engine" else torch.float32)
    model.load_state_dict(checkpoint)
    return model.eval()


def under_policy(side: str, model: Model, edits: list[str]) -> hmp.autocast:
    """The engine casts nothing but for edits."""
    policy = hmp.Policy.load("hmp") if side == "trainer" else hmp.Policy.from_ops(name="engine")
    policy = policy.with_edits(*edits)
    if HEAD in edits:
        hmp.set_policies(model, policy)  # it names a module
    return hmp.autocast("cpu", policy=policy)


def run_side(side: str, folder: Path, edits: list[str]) -> None:
    """A process of its own."""
    torch.manual_seed(0)
    model = loaded(side, folder)
    with under_policy(side, model, edits), hmp.record(folder / f"{side}.rec") as run:
        if side == "engine":
            tokens, found = generate(model, torch.load(folder / "prompts.pt"))
            torch.save(tokens, folder / "tokens.pt")
        else:
            found = score(model, torch.load(folder / "tokens.pt"))
        run.returns({"log_probabilities": found})


def compared(folder: Path, engine: list[str], trainer: list[str]) -> hmp.Comparison:
    """The engine draws, then the trainer computes the probabilities of what it has drawn. Each has its edits."""
    for side, edits in {"engine": engine, "trainer": trainer}.items():
        command = [sys.executable, __file__, "--side", side, "--folder", str(folder), "--edits", *edits]
        subprocess.run(command, check=True)
    return hmp.compare(folder / "engine.rec", folder / "trainer.rec", rtol=RTOL)


def pretrain(steps: int, folder: Path) -> None:
    """A model that knows a little English, as a checkpoint in bfloat16, and prompts."""
    text, words = gpt.manual()
    torch.manual_seed(0)
    model = Model(len(words))
    frequencies = torch.bincount(text, minlength=len(words)) / len(text)
    model.lm_head.bias.data = frequencies.clamp(min=1e-6).log()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        batch = text[torch.randint(len(text) - LENGTH, (BATCH, 1)) + torch.arange(LENGTH)]
        loss = F.cross_entropy(model(batch[:, :-1]).transpose(1, 2), batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"a model of {sum(each.numel() for each in model.parameters()):,} weights, loss {loss.item():.2f}\n")
    torch.save(model.bfloat16().state_dict(), folder / "checkpoint.pt")
    torch.save(text[: PROMPTS * PROMPT].view(PROMPTS, PROMPT), folder / "prompts.pt")


def shown(found: hmp.Comparison) -> str:
    gap = found.log_probabilities
    return (
        f"{gap.nats_per_token:.2g} nats per token over {gap.tokens} tokens, largest ratio {gap.largest_ratio:.4f}, "
        f"{gap.beyond(LIMIT):.1%} of tokens beyond {LIMIT}"
    )


def main(steps: int, folder: Path) -> None:
    pretrain(steps, folder)
    print(f"1. engine and trainer: {shown(compared(folder, [], []))}\n")

    model, tokens = loaded("trainer", folder), torch.load(folder / "tokens.pt")
    with under_policy("trainer", model, []):
        beside = hmp.compare(lambda: {"log_probabilities": score(model, tokens)}, folder / "engine.rec", rtol=RTOL)
    print("2. ops of the trainer that make 90 % of the gap:")
    for row in beside.main_makers(0.9):
        print(f"   {row.share:4.0%}  {row.op:12} {row.module:24} {' / '.join(row.runs_in)}")

    print(f"\n3. with {HEAD} on both sides: {shown(compared(folder, [HEAD], [HEAD]))}")
    print(f"4. and {SUMS} in the trainer: {shown(compared(folder, [HEAD], [HEAD, SUMS]))}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compare the two sides of a trainer by reinforcement learning.")
    parser.add_argument("--steps", type=int, default=40, help="of the training before")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--edits", nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side is not None:
        run_side(args.side, args.folder, args.edits)
    else:
        with tempfile.TemporaryDirectory() as made:
            main(args.steps, Path(made))
