"""Mixing matrices, contraction and bias of the example strategies, from their definitions, with numpy.

Writes reference.json beside itself, which tests/reference.rs compares with what `paceline strategy check` computes.
Nothing here reads a strategy file: the matrices are written down a second time.

    python3 crates/paceline-rounds/tests/make_reference.py
"""

import json
import pathlib

import numpy as np

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(x):
    x = (x + GOLDEN) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def below(seed, index, n):
    """What `random(index, n)` gives: paceline-random's stream of the purpose Protocol (9)."""
    stream = mix(seed ^ mix(9))
    return (mix((stream + index * GOLDEN) & MASK) * n) >> 64


def wave(p, start):
    """Position k has the mean of the first k + 1."""
    w = np.zeros((p, p))
    for k in range(p):
        for j in range(k + 1):
            w[(start + k) % p, (start + j) % p] = 1 / (k + 1)
    return w


def gossip(p):
    w = np.zeros((p, p))
    for r in range(p):
        for q in {r, (r + 1) % p, (r - 1) % p}:
            w[r, q] = 1 / min(p, 3)
    return w


def pairs(p, step):
    w = np.eye(p)
    for r in range(p):
        q = r + 1 if r % 2 == step % 2 else r - 1
        if p > 1 and not (p % 2 == 1 and (q < 0 or q >= p)):
            w[r] = 0
            w[r, r] = w[r, q % p] = 0.5
    return w


def push(p, step):
    reach = 2 ** (step % max(1, int(np.ceil(np.log2(p)))))
    w = np.zeros((p, p))
    for r in range(p):
        w[r, r] += 0.5
        w[(r + reach) % p, r] += 0.5
    return w / w.sum(axis=1, keepdims=True)


def iterations(name, p, steps):
    """Matrices of the steps, and whether they repeat after all of them."""
    mean = np.full((p, p), 1 / p)
    if name in ("ring-allreduce", "ring-reduce", "hierarchical"):
        return [mean], True
    if name == "gossip":
        return [gossip(p)], True
    if name == "gossip-pairs":
        return [pairs(p, 0), pairs(p, 1)], True
    if name == "local":
        return [np.eye(p)] * 7 + [mean], True
    if name == "stepwise-naive":
        return [wave(p, 0)], True
    if name == "stepwise-rotate":
        return [wave(p, s) for s in range(p)], True
    if name == "stepwise-periodic":
        return [wave(p, 0)] * 7 + [mean], True
    if name == "push-sum" and p & (p - 1) == 0:
        return [push(p, s) for s in range(int(np.log2(p)))], True
    if name == "stepwise-random-start":
        return [wave(p, below(1, s, p)) for s in range(steps)], False
    return None


def centre(w):
    return w - w.mean(axis=0, keepdims=True)


def influence(ws):
    """Mean over a period of how much each worker's updates count, and the noise."""
    p = len(ws[0])
    product = np.eye(p)
    for w in ws:
        product = w @ product
    values, vectors = np.linalg.eig(product.T)
    at = np.argmin(abs(values - 1))
    pi = np.real(vectors[:, at])
    pi /= pi.sum()
    weights, all_weights = pi, []
    # Backwards through the period: what an update before each iteration counts for.
    for w in reversed(ws):
        weights = weights @ w
        all_weights.append(weights)
    mean = np.mean(all_weights, axis=0)
    return pi, mean, float(np.mean([p * np.sum(v * v) for v in all_weights]))


def main():
    cases = []
    names = [
        "ring-allreduce",
        "ring-reduce",
        "hierarchical",
        "gossip",
        "gossip-pairs",
        "local",
        "push-sum",
        "stepwise-naive",
        "stepwise-rotate",
        "stepwise-periodic",
        "stepwise-random-start",
    ]
    for name in names:
        for p in [2, 3, 4, 5, 8, 13, 16]:
            found = iterations(name, p, 256)
            if found is None:
                continue
            ws, periodic = found
            if periodic:
                # The shortest period: with two workers, pairs are the same in every step.
                shortest = next(
                    t
                    for t in range(1, len(ws) + 1)
                    if len(ws) % t == 0 and all(np.allclose(ws[i], ws[i % t]) for i in range(len(ws)))
                )
                ws = ws[:shortest]
            spread = np.mean([centre(w).T @ centre(w) for w in ws], axis=0)
            case = {
                "file": f"{name}.toml",
                "workers": p,
                "first": ws[0].tolist(),
                "variance_left": float(np.linalg.eigvalsh(spread)[-1]),
                "row_sums": [float(min(w.sum(axis=1).min() for w in ws)), float(max(w.sum(axis=1).max() for w in ws))],
                "column_sums": [
                    float(min(w.sum(axis=0).min() for w in ws)),
                    float(max(w.sum(axis=0).max() for w in ws)),
                ],
                "period": len(ws) if periodic else None,
            }
            if periodic:
                product = np.eye(p)
                for w in ws:
                    product = w @ product
                moduli = np.sort(np.abs(np.linalg.eigvals(centre(product))))
                case["per_period"] = float(moduli[-1])
                pi, mean, noise = influence(ws)
                case["stationary"], case["influence"], case["noise"] = pi.tolist(), mean.tolist(), noise
            cases.append(case)
    text = json.dumps(cases, indent=None, separators=(",", ":")).replace('{"file"', '\n{"file"')
    pathlib.Path(__file__).with_name("reference.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
