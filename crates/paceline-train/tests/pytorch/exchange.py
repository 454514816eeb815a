"""The other side of `../weights.rs`, where PyTorch and safetensors are installed.

    python exchange.py write FOLDER   writes NAME.safetensors of every model, as PyTorch's users do
    python exchange.py read FOLDER    loads NAME-ours.safetensors with load_state_dict and prints the logits as JSON
"""

import json
import pathlib
import sys

import safetensors.torch

import make_logits


def main():
    verb, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    found = {}
    for name in make_logits.CASES:
        model, _, shape = make_logits.load(name)
        if verb == "write":
            state = {n: t.float() if t.is_floating_point() else t for n, t in model.state_dict().items()}
            safetensors.torch.save_file(state, folder / f"{name}.safetensors")
        else:
            state = safetensors.torch.load_file(folder / f"{name}-ours.safetensors")
            fresh = make_logits.CASES[name][0]().double().eval()
            fresh.load_state_dict(state)
            found[name] = make_logits.answers(fresh, shape)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
