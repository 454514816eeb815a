//! How a script is started, and what it must say of itself before a run goes on with it.

use std::path::{Path, PathBuf};

use paceline_attach::{Attached, DelegatedGroup, Gives, PROTOCOL, ScriptCommand, Takes};
use paceline_plan::{Plan, Script};
use paceline_protocol::Rank;
use paceline_record::FailureKind;
use paceline_resolve::TypedPlan;

use super::script_exchange;
use crate::error::TrainError;

/// Most numbers of a model: 8 GiB.
const LARGEST: usize = 2 << 30;

/// Settings of glibc's allocator: memory that a script frees stays with it. Otherwise each step of a network on CPUs
/// gives its activations back to the system and has them cleared page by page again. (glibc takes no larger second value
/// in some versions.)
const KEPT_MEMORY: [(&str, &str); 2] =
    [("MALLOC_TRIM_THRESHOLD_", "17179869184"), ("MALLOC_MMAP_THRESHOLD_", "33554432")];
/// Variables by which a user has made a choice of allocator already.
const ALLOCATOR_CHOICES: [&str; 5] =
    ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES", "LD_PRELOAD"];

/// What a script calls the one GPU that it sees.
pub(super) const DEVICE: &str = "cuda:0";

/// What runs a script that says nothing of this program.
const AUTO: &str = "paceline.torch.auto";

/// A script to be started.
pub struct ScriptRequest<'a> {
    /// The plan.
    pub plan: &'a TypedPlan<'a>,
    /// This worker.
    pub rank: Rank,
    /// Whether it is to tell when each tensor was ready.
    pub times: bool,
    /// A folder that Python looks for packages in first.
    pub packages: Option<PathBuf>,
    /// Where the scripts' own framework meets, if that averages.
    pub delegated: Option<DelegatedGroup>,
    /// Further variables that it finds.
    pub environment: Vec<(String, String)>,
}

/// How the script of a rank is started.
pub(super) fn command(
    plan: &Plan,
    script: &Script,
    rank: Rank,
    request: &ScriptRequest<'_>,
) -> ScriptCommand {
    let threads = plan.threads.to_string();
    let environment = [
        ("PACELINE_RANK", plan.script_number(rank).to_string()),
        ("PACELINE_WORKERS", plan.script_workers().to_string()),
        ("PACELINE_SEED", plan.seed.to_string()),
        ("OMP_NUM_THREADS", threads.clone()),
        ("MKL_NUM_THREADS", threads),
    ];
    let device = plan.gpu_of(rank).map_or(Vec::new(), |gpu| {
        vec![
            ("CUDA_VISIBLE_DEVICES", gpu.to_owned()),
            // Numbers as nvidia-smi and NVML have them.
            ("CUDA_DEVICE_ORDER", "PCI_BUS_ID".into()),
            ("PACELINE_GPU", gpu.to_owned()),
            ("PACELINE_DEVICE", DEVICE.into()),
        ]
    });
    let set = |name: &str| std::env::var_os(name).is_some();
    let chosen = ALLOCATOR_CHOICES.iter().any(|name| set(name));
    let allocator = KEPT_MEMORY.iter().filter(|_| !chosen).map(|(name, value)| (*name, (*value).to_owned()));
    let environment = environment.into_iter().chain(device).chain(allocator);
    let environment = environment.map(|(name, value)| (name.to_owned(), value));
    ScriptCommand {
        python: script.python.clone(),
        module: script.auto.then_some(AUTO),
        file: script.file.clone(),
        args: script.args.clone(),
        environment: environment.chain(request.environment.iter().cloned()).collect(),
        packages: request.packages.clone(),
    }
}

/// Whether the script is the one that the plan was made with.
pub(super) fn check_file(script: &Script) -> Result<(), TrainError> {
    let found = paceline_files::open(Path::new(&script.file)).and_then(paceline_files::sha256);
    let problem = match found {
        Ok((_, sha256)) if sha256 == script.sha256 => return Ok(()),
        Ok(_) => "it is not the file that the run was planned with: it has changed".to_owned(),
        Err(error) => error.to_string(),
    };
    let hint = "every machine needs the same script at the same place";
    let message = format!("{}: {problem}", script.file);
    Err(TrainError::Script { message, hint: hint.into(), kind: FailureKind::Plan })
}

/// Whether script and program speak the same version of the protocol.
pub(super) fn check_version(attached: &Attached) -> Result<(), (String, String)> {
    let Attached { protocol, package, .. } = attached;
    if *protocol != PROTOCOL {
        let ours = env!("CARGO_PKG_VERSION");
        return Err((
            format!(
                "the script speaks version {protocol} of the attach protocol (its package is {package}), this program \
                 version {PROTOCOL} ({ours})"
            ),
            "install the package that came with this program: pip install ./paceline-….whl, or ./python"
                .into(),
        ));
    }
    Ok(())
}

/// What a script says of itself, if the run can do with it.
pub(super) fn check(plan: &TypedPlan<'_>, attached: &Attached) -> Result<(), (String, String)> {
    let Attached { tensors, optimizer, .. } = attached;
    let numbers: Option<usize> = tensors.iter().try_fold(0, |sum: usize, tensor| {
        let size = tensor.shape.iter().try_fold(1, |n: usize, side| n.checked_mul(*side))?;
        sum.checked_add(size)
    });
    if tensors.is_empty() || numbers == Some(0) {
        let hint = "attach the model after its parameters are made, and leave some of them trainable";
        return Err(("the script's model has no parameters that are trained".into(), hint.into()));
    }
    if numbers.is_none_or(|numbers| numbers > LARGEST) {
        let message = format!("the script's model has more than {LARGEST} parameters");
        return Err((message, "that is more than this program shares with a script".into()));
    }
    if script_exchange(plan) == (Gives::Gradients, Takes::Parameters) {
        let hint =
            "leave --apply out: then the script's own optimiser makes the updates, and servers add them up";
        let Some(optimizer) = optimizer else {
            let message = "the script's optimiser is none that servers know (SGD, Adam, AdamW)";
            return Err((message.into(), hint.into()));
        };
        let mut known = vec![0; tensors.len()];
        for &tensor in optimizer.groups.iter().flat_map(|group| &group.tensors) {
            *known
                .get_mut(tensor)
                .ok_or_else(|| (format!("its optimiser has a tensor {tensor}"), hint.into()))? += 1;
        }
        if let Some(at) = known.iter().position(|count| *count != 1) {
            let message = format!("its optimiser has {} {} times", tensors[at].name, known[at]);
            return Err((message, hint.into()));
        }
    }
    Ok(())
}
