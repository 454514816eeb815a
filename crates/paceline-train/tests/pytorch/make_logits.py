"""Records what PyTorch answers with weights that `../weights.rs` makes too.

Made with torch 2.13.0 and numpy 2.4.6 on Python 3.11. To rerun (writes the JSON files beside this script):

    pip install torch==2.13.0 numpy==2.4.6
    python make_logits.py

No weights are stored: both sides make each tensor from its name with the same hash, in PyTorch's own order. What is
recorded are the state_dict's names and shapes, and the answers in evaluation mode to a hashed batch.
"""

import json
import pathlib
import sys

import numpy as np
import torch

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parents[2] / "paceline-nn" / "tests" / "pytorch"))
import make_fixtures as networks  # noqa: E402

SAMPLES = 2
CASES = {
    "lenet": (networks.LeNet, [28, 28, 1]),
    "resnet20": (networks.ResNet20, [32, 32, 3]),
    # Small, so that the last stage still has more than one pixel.
    "resnet50": (networks.ResNet50, [48, 48, 3]),
}


def values(name, shape):
    """A tensor of that name: weights of variance 1/inputs, batch norm's near what they start as."""
    noise = networks.uniform(f"weights/{name}", int(np.prod(shape)))
    if len(shape) > 1:
        numbers = noise * np.sqrt(3.0 / np.prod(shape[1:]))
    elif name.endswith("running_var"):
        numbers = 1.0 + 0.5 * noise
    elif name.endswith("weight"):
        numbers = 0.5 + 0.25 * noise
    else:
        numbers = 0.1 * noise
    return torch.from_numpy(networks.single(numbers)).reshape(shape)


def load(name):
    """The model with its hashed weights, in float64, and the names and shapes of its tensors."""
    make, shape = CASES[name]
    model = make().double().eval()
    tensors = {n: t for n, t in model.state_dict().items() if not n.endswith("num_batches_tracked")}
    model.load_state_dict({n: values(n, list(t.shape)) for n, t in tensors.items()}, strict=False)
    return model, [[n, list(t.shape)] for n, t in tensors.items()], shape


def answers(model, shape):
    """The logits of the hashed batch."""
    pixels, _ = networks.batch(SAMPLES, *shape, 0)
    with torch.no_grad():
        return model(pixels).flatten().tolist()


def main():
    torch.set_num_threads(1)
    for name in CASES:
        model, tensors, shape = load(name)
        recording = {
            "torch": torch.__version__,
            "input": shape,
            "samples": SAMPLES,
            "classes": networks.CLASSES,
            "logits": answers(model, shape),
            "tensors": tensors,
        }
        (HERE / f"{name}.json").write_text(json.dumps(recording, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
