"""A small GPT that learns to write characters. Run it alone, or by

    paceline train --script gpt.py --workers 2 --strategy ring-allreduce -- --steps 200

The six lines that make it a worker end in `# paceline`. Without --text it reads the source of Python's own argparse.
"""

import argparse
import contextlib
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import paceline.torch as pace  # paceline


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.attention(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, characters, context, width, heads, layers):
        super().__init__()
        self.tokens, self.places = nn.Embedding(characters, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters, bias=False)
        self.head.weight = self.tokens.weight
        for embedding in (self.tokens, self.places):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, x):
        x = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def batch_of(text, count, context, generator=None):
    starts = torch.randint(0, len(text) - context - 1, (count,), generator=generator).tolist()
    rows = torch.stack([text[start : start + context + 1] for start in starts])
    return rows[:, :-1], rows[:, 1:]


def loss_of(model, x, y):
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


@torch.no_grad()
def evaluate(model, text, args):
    model.eval()
    generator = torch.Generator().manual_seed(0)
    losses = [loss_of(model, *batch_of(text, 16, args.context, generator)).item() for _ in range(10)]
    model.train()
    return sum(losses) / len(losses)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", default=argparse.__file__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=8, help="sequences of a backward")
    parser.add_argument("--accumulate", type=int, default=2, help="backwards of a step")
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    raw = Path(args.text).read_text()
    alphabet = {character: number for number, character in enumerate(sorted(set(raw)))}
    text = torch.tensor([alphabet[character] for character in raw])
    train_text, test_text = text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :]
    model = GPT(len(alphabet), args.context, args.width, args.heads, args.layers)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], args.lr, betas=(0.9, 0.95)
    )
    run = pace.attach(model, optimizer)  # paceline
    torch.manual_seed(args.seed + run.rank)  # paceline

    for step in run.steps(args.steps):  # paceline
        warm = min(1.0, (step + 1) / args.warmup)
        rate = args.lr * warm * (0.55 + 0.45 * math.cos(math.pi * step / args.steps))
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        for part in range(args.accumulate):
            last = part == args.accumulate - 1
            with contextlib.nullcontext() if last else run.no_sync():  # paceline
                loss = loss_of(model, *batch_of(train_text, args.batch_size, args.context)) / args.accumulate
                loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        if step % 50 == 49 or step == args.steps - 1:
            loss = evaluate(model, test_text, args)
            print(f"step {step + 1}: test loss {loss:.3f}")
            run.report(loss=loss)  # paceline


if __name__ == "__main__":
    main()
