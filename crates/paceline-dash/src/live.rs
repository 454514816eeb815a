//! What is new: one thread looks at the store twice a second, and whoever wants to know is told. Slow clients are
//! dropped, never waited for.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::Channel;
use hyper::body::{Bytes, Frame};
use tokio::sync::watch;

use crate::background::BackgroundAnalysis;
use crate::cache::StoreCache;

/// Time between two looks at the store.
const LOOK: Duration = Duration::from_millis(500);
/// A sign of life at least so often.
const ALIVE: Duration = Duration::from_secs(15);
/// Messages that a client may be behind.
const BEHIND: usize = 8;

/// Looks at the store until nobody wants to know any more.
pub fn watch(
    cache: &Arc<StoreCache>,
    background: &Arc<BackgroundAnalysis>,
) -> std::io::Result<watch::Receiver<u64>> {
    let (tell, told) = watch::channel(0);
    let (cache, background) = (Arc::clone(cache), Arc::clone(background));
    let look = move || {
        // Before the first page is asked for: reading thousands of runs takes a moment.
        cache.warm();
        while !tell.is_closed() {
            // Without anybody who listens, nothing is looked at.
            if tell.receiver_count() > 1 {
                let now = crate::group::stamp(&(cache.stamp(), background.made()));
                tell.send_if_modified(|last| std::mem::replace(last, now) != now);
            }
            std::thread::sleep(LOOK);
        }
    };
    std::thread::Builder::new().name("live".into()).spawn(look)?;
    Ok(told)
}

/// A stream that tells whenever something has changed, and every 15 seconds that it lives.
pub fn stream(mut news: watch::Receiver<u64>, gone: impl FnOnce() + Send + 'static) -> Channel<Bytes> {
    let (mut sender, body) = Channel::<Bytes>::new(BEHIND);
    tokio::spawn(async move {
        loop {
            let stamp = *news.borrow_and_update();
            let text = Bytes::from(format!("event: changed\ndata: {stamp:016x}\n\n"));
            // Whoever is that far behind has gone, or is too slow: it connects again if it wants to.
            if sender.try_send(Frame::data(text)).is_err() {
                break;
            }
            let waited = tokio::time::timeout(ALIVE, news.changed()).await;
            if matches!(waited, Ok(Err(_))) {
                break;
            }
        }
        gone();
    });
    body
}
