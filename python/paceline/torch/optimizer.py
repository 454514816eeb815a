"""The script's optimizer, as servers run it (``--apply server``)."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

import torch

from ..attach import AttachError
from .memory import NamedParameters

# Settings that servers do not know, and the only value that may stand there.
_PLAIN = {"maximize": False, "amsgrad": False, "dampening": 0, "differentiable": False}


def check_parameters(optimizer: torch.optim.Optimizer, named: NamedParameters) -> None:
    """Refuses an optimizer that trains something that would not be exchanged."""
    known = {id(parameter) for _, parameter in named}
    strangers = sum(
        1 for group in optimizer.param_groups for p in group["params"] if p.requires_grad and id(p) not in known
    )
    if strangers:
        raise AttachError(
            f"the optimizer trains {strangers} tensors that the model does not have, so they would not be exchanged: "
            "attach a module that holds them all, for example torch.nn.ModuleList([model, loss])"
        )


def describe(optimizer: Optional[torch.optim.Optimizer], named: NamedParameters) -> Optional[Dict[str, Any]]:
    """The optimizer's kind and settings for ``HELLO``; ``None`` if servers cannot run it."""
    return None if optimizer is None or _refusal(optimizer) else _document(optimizer, named)


def _kind(optimizer: torch.optim.Optimizer) -> Optional[str]:
    # AdamW is an Adam in newer versions of torch: exact types.
    return {torch.optim.SGD: "sgd", torch.optim.Adam: "adam", torch.optim.AdamW: "adamw"}.get(type(optimizer))


def _refusal(optimizer: torch.optim.Optimizer) -> str:
    if _kind(optimizer) is None:
        return f"they run SGD, Adam and AdamW, not {type(optimizer).__name__}"
    for group in optimizer.param_groups:
        for name, plain in _PLAIN.items():
            if group.get(name, plain) != plain:
                return f"they do not know {name}={group[name]}"
    if any(_rate(group) == 0 for group in optimizer.param_groups):
        return "a parameter group has the learning rate 0, and only factors of it travel"
    return ""


def _rate(group: Dict[str, Any]) -> float:
    # A scheduler that warms up has changed `lr` by now; it notes what it multiplies.
    return float(group.get("initial_lr", group["lr"]))


def _settings(group: Dict[str, Any]) -> Dict[str, Any]:
    return {
        "momentum": float(group.get("momentum", 0.0)),
        "nesterov": bool(group.get("nesterov", False)),
        "weight_decay": float(group.get("weight_decay", 0.0)),
        "betas": [float(beta) for beta in group.get("betas", (0.9, 0.999))],
        "eps": float(group.get("eps", 1e-8)),
    }


def _document(optimizer: torch.optim.Optimizer, named: NamedParameters) -> Dict[str, Any]:
    numbers = {id(parameter): number for number, (_, parameter) in enumerate(named)}
    groups: List[Dict[str, Any]] = [
        {
            "tensors": [numbers[id(p)] for p in group["params"] if id(p) in numbers],
            "lr": _rate(group),
            **_settings(group),
        }
        for group in optimizer.param_groups
    ]
    return {"kind": _kind(optimizer), "groups": groups}


class ServedOptimizer:
    """An optimizer whose steps servers make: only the factor of its learning rate travels."""

    def __init__(self, optimizer: Optional[torch.optim.Optimizer]) -> None:
        if optimizer is None:
            raise AttachError("with --apply server the servers run the optimizer: pass it, attach(model, optimizer)")
        reason = _refusal(optimizer)
        if reason:
            raise AttachError(f"with --apply server the servers run the optimizer, and {reason}: use --apply worker")
        self._optimizer = optimizer
        self._rates = [_rate(group) for group in optimizer.param_groups]
        self._settings = [_settings(group) for group in optimizer.param_groups]

    def factor(self) -> float:
        """The present learning rate over the one at the start."""
        groups = self._optimizer.param_groups
        factors = [float(group["lr"]) / rate for group, rate in zip(groups, self._rates)]
        if len(groups) != len(self._rates) or any(abs(f - factors[0]) > 1e-6 * abs(factors[0]) for f in factors):
            raise AttachError(
                "the learning rates of the parameter groups have changed by different factors, and with --apply server "
                "one factor travels: use --apply worker"
            )
        for group, settings in zip(groups, self._settings):
            if _settings(group) != settings:
                raise AttachError(
                    "a setting of the optimizer beside its learning rate has changed (OneCycleLR changes momentum), "
                    "which --apply server cannot tell the servers: use --apply worker"
                )
        return factors[0]
