//! Connections: each is a task of its own with deadlines for what its other end says and takes, and there are not too
//! many. When all places are taken, whoever has been there the longest goes; pages connect again by themselves. So
//! nobody who is slow keeps others waiting.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::net::TcpListener;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use paceline_record::figures::Figures;
use tokio::task::AbortHandle;

use crate::access::Access;
use crate::cache::StoreCache;
use crate::group::Studies;
use crate::route::{ServerState, answer};

/// Time for the headers of a request, and between requests.
const HEADERS: Duration = Duration::from_secs(10);
/// A connection that lives longer is ended.
const LONGEST: Duration = Duration::from_secs(600);
const CONNECTIONS: usize = 128;
/// Bytes of a request's head.
const HEAD: usize = 16 * 1024;
/// Pages that are made at once.
const MAKERS: usize = 4;

/// Serves a store until `stop` is done. Runs are compared by `figures`.
pub fn serve(
    listener: TcpListener,
    store: PathBuf,
    studies: Box<dyn Studies>,
    figures: Figures,
    access: Access,
    stop: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(MAKERS).build()?;
    listener.set_nonblocking(true)?;
    runtime.block_on(async move {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let site = Arc::new(ServerState::new(StoreCache::new(store, studies, figures), access)?);
        let (mut stop, mut accept) = (pin!(stop), pin!(accept(listener, site)));
        std::future::poll_fn(|context| match stop.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => accept.as_mut().poll(context),
        })
        .await;
        Ok(())
    })
}

async fn accept(listener: tokio::net::TcpListener, site: Arc<ServerState>) {
    let mut members: VecDeque<AbortHandle> = VecDeque::with_capacity(CONNECTIONS);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors: give those who are connected time to go.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        members.retain(|context| !context.is_finished());
        if members.len() >= CONNECTIONS
            && let Some(oldest) = members.pop_front()
        {
            oldest.abort();
        }
        let site = Arc::clone(&site);
        let connection = async move {
            let service = service_fn(move |request| {
                let site = Arc::clone(&site);
                async move { Ok::<_, Infallible>(answer(site, request).await) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADERS)
                .max_buf_size(HEAD)
                .serve_connection(TokioIo::new(stream), service);
            // Whoever went away has nothing to be told.
            let _ = tokio::time::timeout(LONGEST, connection).await;
        };
        members.push_back(tokio::spawn(connection).abort_handle());
    }
}
