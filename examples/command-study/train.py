"""A stand-in for a training script: takes a learning rate and a batch size, prints figures as JSON.

Any program will do; see README.md for PyTorch with torchrun.
"""

import argparse
import json
import math
import random

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, required=True)
parser.add_argument("--batch", type=int, required=True)
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()

# Logistic regression by SGD on two made-up clouds of points.
draw = random.Random(args.seed)
points = [(draw.gauss(c, 1.0), draw.gauss(-c, 1.0), c > 0) for c in [1, -1] * 200]
a = b = c = 0.0
for step in range(600 // args.batch + 1):
    batch = draw.sample(points, min(args.batch, len(points)))
    da = db = dc = 0.0
    for x, y, label in batch:
        error = 1 / (1 + math.exp(-(a * x + b * y + c))) - label
        da, db, dc = da + error * x, db + error * y, dc + error
    a, b, c = (v - args.lr * d / len(batch) for v, d in ((a, da), (b, db), (c, dc)))
right = sum((a * x + b * y + c > 0) == label for x, y, label in points)
loss = sum(math.log1p(math.exp(-(a * x + b * y + c) * (1 if label else -1))) for x, y, label in points)
print("training is done")
print(json.dumps({"accuracy": right / len(points), "loss": loss / len(points)}))
