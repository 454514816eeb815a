"""A Lightning module on handwritten digits. Run it alone, or by

    paceline train --script lightning_mnist.py --workers 2 -- --epochs 2

The three lines that make it a worker end in `# paceline`.
"""

import argparse

import lightning as L
import torch
import torch.nn.functional as F
from digits import digits
from torch import nn
from torch.utils.data import DataLoader

import paceline.torch as pace  # paceline


class Classifier(L.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(
            nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10)
        )

    def training_step(self, batch, number):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, number):
        x, y = batch
        output = self.net(x)
        self.log("val_loss", F.cross_entropy(output, y), prog_bar=True)
        self.log("val_acc", (output.argmax(1) == y).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="a folder with MNIST's four files; without it, digits are made up")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    L.seed_everything(args.seed)
    train_set = pace.shard(digits(args.data, True))  # paceline
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=args.epochs,
        accumulate_grad_batches=args.accumulate,
        callbacks=[pace.LightningCallback()],  # paceline
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(
        Classifier(args.lr),
        DataLoader(train_set, args.batch_size, shuffle=True),
        DataLoader(digits(args.data, False), 500),
    )
    print({name: round(float(value), 4) for name, value in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
