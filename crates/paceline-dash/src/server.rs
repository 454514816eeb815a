//! Connections: each is a task of its own, has a deadline for its headers, and there are not too many.

use std::convert::Infallible;
use std::future::Future;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::Semaphore;

use crate::access::Access;
use crate::live;
use crate::route::{Site, answer};

/// Time for the headers of a request.
const HEADERS: Duration = Duration::from_secs(10);
/// A connection that lives longer is ended; pages connect again by themselves.
const LONGEST: Duration = Duration::from_secs(600);
/// Connections at once.
const CONNECTIONS: usize = 256;
/// Bytes of a request's head.
const HEAD: usize = 16 * 1024;

/// Serves a store until `stop` is done.
pub fn serve(
    listener: TcpListener,
    store: PathBuf,
    access: Access,
    stop: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    listener.set_nonblocking(true)?;
    runtime.block_on(async move {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let site = Arc::new(Site::new(store.clone(), access, live::watch(&store)));
        let seats = Arc::new(Semaphore::new(CONNECTIONS));
        let accept = async {
            loop {
                let Ok(seat) = Arc::clone(&seats).acquire_owned().await else { return };
                let Ok((stream, _)) = listener.accept().await else {
                    // Out of descriptors: give those who are connected time to go.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                };
                let site = Arc::clone(&site);
                tokio::spawn(async move {
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
                    drop(seat);
                });
            }
        };
        let (mut stop, mut accept) = (std::pin::pin!(stop), std::pin::pin!(accept));
        std::future::poll_fn(|context| match stop.as_mut().poll(context) {
            std::task::Poll::Ready(()) => std::task::Poll::Ready(()),
            std::task::Poll::Pending => accept.as_mut().poll(context),
        })
        .await;
        Ok(())
    })
}
