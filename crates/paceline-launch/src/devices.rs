//! The GPUs that a run's scripts are given: whether they are there, who takes which, and several workers on one.

use paceline_gpu::{Gpu, Mps, MpsState, NoGpus, Nvml, gpus};
use paceline_plan::{Plan, PlanError, Script};
use paceline_record::{AssignedGpu, Event};
use serde::{Deserialize, Serialize};

/// Memory that CUDA itself takes in each process, about; a worker without as much cannot even begin.
const LEAST_BYTES: u64 = 600 << 20;

/// What scripts are started with besides what the plan says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ScriptConditions {
    /// The port at which the scripts' own framework meets, if that averages.
    pub meeting: Option<u16>,
    /// Variables of their environment.
    pub environment: Vec<(String, String)>,
}

/// The GPUs of a run on this machine. Dropping it ends what was started for them.
pub struct ScriptDevices {
    assigned: Vec<AssignedGpu>,
    state: MpsState,
    mps: Option<Mps>,
    notes: Vec<String>,
}

impl ScriptDevices {
    /// Those that a plan names, if they are there; where other machines join, of this machine's workers. Starts the
    /// multi-process service where one GPU has several workers, unless the plan says otherwise.
    pub fn prepare(plan: &Plan, joined: bool) -> Result<Option<Self>, PlanError> {
        let Some(script) = &plan.script else { return Ok(None) };
        if script.gpus.is_empty() {
            return Ok(Self::unassigned());
        }
        let mut notes = Vec::new();
        let known = match gpus() {
            Ok(known) => Some(known),
            Err(NoGpus::NoDriver) => {
                let problem = "this machine has no NVIDIA driver: libnvidia-ml.so.1, nvidia-smi and /dev/nvidiactl are not \
                               there; leave --gpus out to compute on its cores";
                return Err(PlanError::new("--gpus", script.gpus.join(","), problem));
            }
            Err(NoGpus::NotTold(problem)) => {
                notes.push(format!("whether the GPUs of --gpus are there was not checked: {problem}"));
                None
            }
        };
        let assigned = assign(plan, script, joined, known.as_deref())?;
        let named = script.gpus.len();
        if assigned.len() < named {
            notes.push(format!("of {named} GPUs {} have no worker", named - assigned.len()));
        }
        let shared = assigned.iter().any(|gpu| gpu.ranks.len() > 1);
        let (state, mps) = match (shared, script.without_mps) {
            (false, _) => (MpsState::NotNeeded, None),
            (true, true) => (MpsState::Absent("--mps off".into()), None),
            (true, false) => Mps::start(),
        };
        if let MpsState::Absent(why) = &state {
            notes.push(format!("MPS is not used ({why}): workers of one GPU take turns"));
        }
        Ok(Some(Self { assigned, state, mps, notes }))
    }

    /// The GPUs of this machine where scripts choose themselves, if NVML tells of any.
    fn unassigned() -> Option<Self> {
        let all = Nvml::load().ok()?.gpus();
        let assigned: Vec<AssignedGpu> =
            all.iter().map(|gpu| told(&gpu.index.to_string(), Some(gpu), Vec::new())).collect();
        let (state, notes) = (MpsState::NotNeeded, Vec::new());
        (!assigned.is_empty()).then_some(Self { assigned, state, mps: None, notes })
    }

    /// What is told of them at the start of the run.
    pub fn event(&self) -> Event<'_> {
        Event::Devices { gpus: &self.assigned, mps: self.state.name(), notes: &self.notes }
    }

    /// Variables with which scripts find what was started for them.
    pub fn environment(&self) -> Vec<(String, String)> {
        self.mps.as_ref().map(Mps::variables).unwrap_or_default()
    }
}

/// Which workers take which GPU, in the order of the plan; refused where one is not there, or has no room.
fn assign(
    plan: &Plan,
    script: &Script,
    joined: bool,
    known: Option<&[Gpu]>,
) -> Result<Vec<AssignedGpu>, PlanError> {
    let layout = plan.layout();
    let here = |rank: &usize| !joined || layout[*rank] == 0;
    let mut assigned = Vec::new();
    for name in &script.gpus {
        let refused = |problem: String| PlanError::new("--gpus", script.gpus.join(","), problem);
        let ranks: Vec<usize> =
            (0..plan.workers).filter(here).filter(|rank| plan.gpu_of(*rank) == Some(name)).collect();
        // Parts of a GPU (MIG) are no GPUs of the list.
        let known = known.filter(|_| !name.starts_with("MIG-"));
        let found = known.and_then(|all| all.iter().find(|gpu| is(gpu, name)));
        if let (Some(all), None) = (known, found) {
            return Err(refused(format!("there is no GPU {name}: {}", listed(all))));
        }
        if ranks.is_empty() {
            continue;
        }
        let needed = LEAST_BYTES * ranks.len() as u64;
        if let Some(free) = found.and_then(|gpu| gpu.free_bytes).filter(|free| *free < needed) {
            let mib = |bytes: u64| bytes >> 20;
            return Err(refused(format!(
                "GPU {name} has {} MiB of free memory, and CUDA alone takes about {} MiB in each of its {}: end what else \
                 uses it, or give it fewer workers",
                mib(free),
                mib(LEAST_BYTES),
                crate::capacity::counted(ranks.len() as u64, "worker")
            )));
        }
        assigned.push(told(name, found, ranks));
    }
    Ok(assigned)
}

/// A GPU of this name as events tell of it.
fn told(name: &str, found: Option<&Gpu>, ranks: Vec<usize>) -> AssignedGpu {
    AssignedGpu {
        gpu: name.to_owned(),
        index: found.map(|gpu| gpu.index),
        name: found.map(|gpu| gpu.name.clone()),
        uuid: found.map(|gpu| gpu.uuid.clone()),
        memory_bytes: found.and_then(|gpu| gpu.memory_bytes),
        ranks,
    }
}

fn is(gpu: &Gpu, name: &str) -> bool {
    name.parse() == Ok(gpu.index) || gpu.uuid == name
}

fn listed(all: &[Gpu]) -> String {
    let one = |gpu: &Gpu| format!("{} ({}, {})", gpu.index, gpu.name, gpu.uuid);
    match all {
        [] => "this machine has none".into(),
        _ => format!("this machine has {}", all.iter().map(one).collect::<Vec<_>>().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(workers: usize, gpus: &[&str]) -> Plan {
        let script = Script {
            file: "t.py".into(),
            sha256: String::new(),
            args: Vec::new(),
            python: "python3".into(),
            apply: "worker".into(),
            delegated: None,
            gpus: gpus.iter().map(|gpu| (*gpu).to_owned()).collect(),
            without_mps: false,
            staged: false,
            auto: false,
        };
        Plan { workers, script: Some(script), ..Plan::example() }
    }

    fn two() -> Vec<Gpu> {
        let gpu = |index, free_mib: u64| Gpu {
            index,
            uuid: format!("GPU-{index}"),
            name: "Fake".into(),
            memory_bytes: Some(80 << 30),
            free_bytes: Some(free_mib << 20),
        };
        vec![gpu(0, 40_000), gpu(1, 1_000)]
    }

    fn assigned(plan: &Plan, joined: bool, known: Option<&[Gpu]>) -> Result<Vec<AssignedGpu>, String> {
        assign(plan, plan.script.as_ref().unwrap(), joined, known).map_err(|error| error.to_string())
    }

    #[test]
    fn gpus_that_are_not_there_or_have_no_room_are_refused_with_what_is_there() {
        let known = two();
        let fine = assigned(&plan(3, &["0", "GPU-1"]), false, Some(&known)).unwrap();
        assert_eq!((&fine[0].ranks[..], &fine[1].ranks[..]), (&[0, 2][..], &[1][..]));
        assert_eq!((fine[1].name.as_deref(), fine[1].memory_bytes), (Some("Fake"), Some(80 << 30)));
        let missing = assigned(&plan(2, &["0", "2"]), false, Some(&known)).unwrap_err();
        assert!(
            missing.contains("there is no GPU 2: this machine has 0 (Fake, GPU-0), 1 (Fake,"),
            "{missing}"
        );
        let none = assigned(&plan(2, &["0"]), false, Some(&[])).unwrap_err();
        assert!(none.contains("this machine has none"), "{none}");
        let full = assigned(&plan(4, &["0", "1"]), false, Some(&known)).unwrap_err();
        assert!(
            full.contains("GPU 1 has 1000 MiB of free memory") && full.contains("its 2 workers"),
            "{full}"
        );
        // Nobody tells of GPUs, or of parts of them: they are taken as they are named.
        assert_eq!(assigned(&plan(2, &["7"]), false, None).unwrap()[0].ranks, [0, 1]);
        assert!(assigned(&plan(1, &["MIG-1-2"]), false, Some(&known)).is_ok());
    }

    #[test]
    fn of_several_machines_only_the_own_workers_count() {
        let apart = Plan { hosts: Some("2".parse().unwrap()), ..plan(4, &["0", "1"]) };
        let own = assigned(&apart, true, Some(&two())).unwrap();
        assert_eq!((&own[0].ranks[..], &own[1].ranks[..]), (&[0][..], &[1][..]));
    }
}
