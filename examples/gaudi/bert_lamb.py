"""A small BERT is pre-trained with LAMB on made text, as the BERT script for Gaudi does: masked words and next sentences.

    habana-mp run bert_lamb.py --hmp

A sentence is of one topic, which has words of its own. The next one is of the same topic; another one is not.
"""

from __future__ import annotations

import habana_frameworks.torch.core as htcore
import habana_frameworks.torch.hpu as hthpu
import habana_frameworks.torch.hpu.graphs as htgraphs
import torch
from common import Processes, parse_arguments
from habana_frameworks.torch.hpex import hmp
from habana_frameworks.torch.hpex.normalization import FusedClipNorm
from habana_frameworks.torch.hpex.optimizers import FusedLamb
from torch import nn

TOPICS, OF_TOPIC = 8, 8  # and the words of one
WORDS = 1 + TOPICS * OF_TOPIC
MASK = 0
LENGTH, WIDTH = 16, 64  # words in a sentence, numbers in a hidden state
ACCUMULATION = 2  # batches in a step
IGNORED = -100


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.positions = nn.Embedding(2 * LENGTH, WIDTH)
        self.sentences = nn.Embedding(2, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.word = nn.Linear(WIDTH, WORDS)
        self.is_next = nn.Linear(WIDTH, 2)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        place = torch.arange(ids.shape[1], device=ids.device)
        x = self.norm(self.words(ids) + self.positions(place) + self.sentences(place // LENGTH))
        x = self.encoder(x)
        return self.word(x), self.is_next(torch.tanh(x[:, 0]))


def text(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Words with one in seven masked, the words that were there, and whether the second sentence is the next one."""
    is_next = torch.randint(2, (count,))
    first = torch.randint(TOPICS, (count,))
    second = torch.where(is_next.bool(), first, (first + torch.randint(1, TOPICS, (count,))) % TOPICS)
    topics = torch.stack([first, second], dim=1).repeat_interleave(LENGTH, dim=1)
    words = 1 + topics * OF_TOPIC + torch.randint(OF_TOPIC, topics.shape)
    masked = torch.rand(words.shape) < 0.15
    return words.masked_fill(masked, MASK), words.masked_fill(~masked, IGNORED), is_next


def groups(model: nn.Module) -> list[dict[str, object]]:
    """Biases and norms do not decay."""
    decays = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    return [{"params": decays, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]


def main() -> None:
    args = parse_arguments("Pre-training of a BERT with LAMB.", lists="bert", steps=40, batch_size=64)
    processes = Processes(args)
    device = torch.device(args.device)
    if args.hmp:
        hmp.convert(
            opt_level=args.hmp_opt_level,
            bf16_file_path=args.hmp_bf16,
            fp32_file_path=args.hmp_fp32,
            isVerbose=args.hmp_verbose,
        )

    hthpu.enable_dynamic_shape()  # the number of masked words differs
    bert = htgraphs.ModuleCacher()(Bert().to(device), have_grad_accumulation=True)
    model = processes.wrap(bert)
    optimizer = FusedLamb(groups(model), lr=0.02)
    clip = FusedClipNorm(model.parameters(), max_norm=1.0)
    criterion = nn.CrossEntropyLoss(ignore_index=IGNORED)
    model.train()
    for step in range(1, args.steps + 1):
        optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=device)
        for iteration in range(ACCUMULATION):
            bert.set_iteration_count(iteration)
            ids, labels, is_next = (processes.share(part).to(device) for part in text(args.batch_size))
            words, follows = model(ids)
            loss = criterion(words.flatten(0, 1), labels.flatten()) + criterion(follows, is_next)
            loss = loss / ACCUMULATION
            loss.backward()
            total += loss.detach()
            if args.use_lazy_mode:
                htcore.mark_step()
        with hmp.disable_casts():
            clip.clip_norm(model.parameters())
            optimizer.step()
        if args.use_lazy_mode:
            htcore.mark_step()
        if step % 5 == 0:
            processes.report(step, total)
    processes.end()


if __name__ == "__main__":
    main()
