"""PyTorch training steps of ResNet-50 on one process: the peer of `paceline bench compute --model resnet50`.

Run it through shared/peers/beside.sh, like our own side.  The network is the one in
crates/paceline-nn/src/models/resnet50.rs: bottlenecks with the stride on the 3x3 convolution, 224x224 images,
10 classes.  Prints one JSON line, last.
"""
import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Bottleneck(nn.Module):
    def __init__(self, inputs, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, 4 * channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * channels)
        self.downsample = None
        if stride != 1 or inputs != 4 * channels:
            conv = nn.Conv2d(inputs, 4 * channels, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(4 * channels))

    def forward(self, x):
        skip = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        x = F.relu(self.bn2(self.conv2(x)), inplace=True)
        return F.relu(self.bn3(self.conv3(x)) + skip, inplace=True)


class ResNet50(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        inputs, blocks = 64, []
        for stage, (channels, count) in enumerate([(64, 3), (128, 4), (256, 6), (512, 3)]):
            for i in range(count):
                blocks.append(Bottleneck(inputs, channels, 2 if stage > 0 and i == 0 else 1))
                inputs = 4 * channels
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x)), inplace=True), 3, 2, 1)
        return self.fc(self.blocks(x).mean((2, 3)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--steps", type=int, default=5)
    ap.add_argument("--warmup", type=int, default=2)
    ap.add_argument("--threads", type=int, default=1)
    ap.add_argument("--channels-last", action="store_true")
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    net = ResNet50()
    x = torch.randn(4 * a.batch, 3, 224, 224)
    if a.channels_last:
        net = net.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (len(x),))
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    def step():
        i = torch.randint(0, len(x), (a.batch,))
        opt.zero_grad(set_to_none=True)
        loss = F.cross_entropy(net(x[i]), y[i])
        loss.backward()
        opt.step()
        return loss

    for _ in range(a.warmup):
        step()
    t = time.perf_counter()
    for _ in range(a.steps):
        loss = step()
    loss.item()
    dt = time.perf_counter() - t
    print(json.dumps(dict(peer="torch-local", version=torch.__version__, model="resnet50", batch=a.batch,
                          threads=a.threads, channels_last=a.channels_last,
                          params=sum(p.numel() for p in net.parameters()),
                          steps=a.steps, samples_per_s=a.steps * a.batch / dt)))


if __name__ == "__main__":
    main()
