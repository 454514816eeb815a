//! Horovod with PyTorch over gloo, started by `horovodrun`.

use super::Peer;

pub(super) const PEER: Peer = Peer {
    name: "horovod",
    about: "Horovod with PyTorch over gloo, started by horovodrun",
    packages: &[("torch", "torch"), ("numpy", "numpy"), ("horovod.torch", "horovod")],
    files: &[("horovod_torch.py", include_str!("horovod_torch.py")), super::TORCH_NETWORK],
    // `horovodrun` is this module.
    start: "{python} -m horovod.runner.launch -np {workers} --gloo --network-interfaces lo {python} {script}",
    beside: &["paceline-auto", "paceline-tcp"],
};
