//! What is new: one thread looks at the store twice a second, and whoever wants to know is told. Slow clients are
//! dropped, never waited for.

use std::path::{Path, PathBuf};
use std::time::Duration;

use paceline_record::{RecordError, Store};
use tokio::sync::watch;

/// Time between two looks at the store.
const LOOK: Duration = Duration::from_millis(500);

/// A number that changes when runs begin, go on or end.
pub fn stamp(store: &Store) -> Result<u64, RecordError> {
    let mut stamp = 0xcbf2_9ce4_8422_2325u64;
    for run in store.runs()? {
        for part in [run.id as u64, run.steps_done, run.state.len() as u64, run.ended_s.map_or(0, f64::to_bits)] {
            stamp = (stamp ^ part).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    Ok(stamp)
}

/// Looks at the store until nobody wants to know any more.
pub fn watch(folder: &Path) -> watch::Receiver<u64> {
    let (tell, told) = watch::channel(0);
    let folder: PathBuf = folder.into();
    let look = move || {
        while !tell.is_closed() {
            // A store that cannot be read now may be readable the next time.
            let now = Store::open(&folder).and_then(|store| stamp(&store)).unwrap_or(0);
            tell.send_if_modified(|last| std::mem::replace(last, now) != now);
            std::thread::sleep(LOOK);
        }
    };
    // Without the thread pages are right whenever they are loaded; they only do not follow.
    let _ = std::thread::Builder::new().name("live".into()).spawn(look);
    told
}
