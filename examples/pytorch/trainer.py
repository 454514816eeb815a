"""Hugging Face's Trainer with a tiny BERT that finds out which of two words stands more often in a line. Run it alone, or by

    paceline train --script trainer.py --workers 2 -- --epochs 2

The three lines that make it a worker end in `# paceline`. Nothing is downloaded.
"""

import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

import paceline.torch as pace  # paceline


class Lines(Dataset):
    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.words = torch.randint(0, 20, (count, 15), generator=generator)
        often = torch.randint(0, 2, (count, 1), generator=generator)
        filled = torch.rand(count, 15, generator=generator) < 0.4
        self.words = torch.where(filled, often, self.words)
        self.labels = ((self.words == 1).sum(1) > (self.words == 0).sum(1)).long()

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        return {"input_ids": self.words[index], "labels": self.labels[index]}


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(1) == prediction.label_ids).mean())}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=float, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    set_seed(args.seed)
    config = BertConfig(
        vocab_size=20,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=16,
        num_labels=2,
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=BertForSequenceClassification(config),
            args=TrainingArguments(
                folder,
                num_train_epochs=args.epochs,
                per_device_train_batch_size=args.batch_size,
                per_device_eval_batch_size=200,
                gradient_accumulation_steps=args.accumulate,
                learning_rate=args.lr,
                eval_strategy="epoch",
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                use_cpu=True,
                seed=args.seed,
            ),
            train_dataset=pace.shard(Lines(2000, seed=1)),  # paceline
            eval_dataset=Lines(400, seed=2),
            compute_metrics=accuracy,
            callbacks=[pace.TrainerCallback()],  # paceline
        )
        trainer.train()


if __name__ == "__main__":
    main()
