//! The thread that moves the bytes of all gRPC connections of a process. It starts with the first of them and
//! ends with the last.

use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;

use tokio::runtime::{Builder, Handle};
use tokio::sync::{Semaphore, mpsc};

/// Connections of refused strangers that stay until they have heard why.
const LINGERING: usize = 64;

/// The thread, as long as somebody holds it.
pub struct Runtime {
    handle: Handle,
    /// Each connection has a clone: the thread ends when all are gone.
    alive: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Permissions to stay after a refusal.
    pub(super) lingering: Arc<Semaphore>,
}

impl Runtime {
    pub(super) fn get() -> io::Result<Arc<Self>> {
        static CURRENT: Mutex<Weak<Runtime>> = Mutex::new(Weak::new());
        let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = current.upgrade() {
            return Ok(runtime);
        }
        let runtime = Arc::new(Self::start()?);
        *current = Arc::downgrade(&runtime);
        Ok(runtime)
    }

    fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let handle = runtime.handle().clone();
        let (alive, mut end) = mpsc::channel(1);
        let thread = std::thread::Builder::new().name("grpc".into()).spawn(move || {
            runtime.block_on(end.recv());
        })?;
        let lingering = Arc::new(Semaphore::new(LINGERING));
        Ok(Self { handle, alive: Some(alive), thread: Some(thread), lingering })
    }

    /// Lets a connection live on the thread.
    pub(super) fn spawn(&self, connection: impl Future<Output = ()> + Send + 'static) {
        let alive = self.alive.clone();
        self.handle.spawn(async move {
            connection.await;
            drop(alive);
        });
    }
}

/// Waits for connections that still have something to deliver; each of them has its deadline.
impl Drop for Runtime {
    fn drop(&mut self) {
        self.alive = None;
        if let Some(thread) = self.thread.take() {
            // A panic there has said on standard error what it was about.
            let _ = thread.join();
        }
    }
}
