//! PyTorch's `DistributedDataParallel` over gloo, started by `torchrun`.

use super::Peer;

pub(super) const PEER: Peer = Peer {
    name: "torch-ddp",
    about: "PyTorch's DistributedDataParallel over gloo, started by torchrun",
    packages: &[("torch", "torch"), ("numpy", "numpy")],
    files: &[("torch_ddp.py", include_str!("torch_ddp.py")), super::TORCH_NETWORK],
    // The address: a host's name may lead to a network that is not there.
    start: "{python} -m torch.distributed.run --nnodes 1 --nproc-per-node {workers} --rdzv-backend c10d \
            --rdzv-endpoint 127.0.0.1:0 --local-addr 127.0.0.1 {script}",
    beside: &["paceline-auto", "paceline-tcp"],
};
