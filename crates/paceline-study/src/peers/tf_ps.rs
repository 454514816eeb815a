//! TensorFlow's `ParameterServerStrategy`: a coordinator, workers and one parameter server.

use super::Peer;

pub(super) const PEER: Peer = Peer {
    name: "tf-ps",
    about: "TensorFlow's ParameterServerStrategy: a coordinator, asynchronous workers, one server",
    packages: &[("tensorflow", "tensorflow-cpu"), ("numpy", "numpy")],
    files: &[("tf_ps.py", include_str!("tf_ps.py"))],
    // Without TF_CONFIG the script is the coordinator, and starts the others.
    start: "{python} {script} --workers {workers}",
    beside: &["paceline-auto", "paceline-ps"],
};
