//! One connection as a task: HTTP/2 over TCP, and in it the one call that both ends exchange bytes by.
//! `proto/link.proto` defines the service; with one call and one message it is written out here.
//!
//! An end that is done ends its direction of the call; the other, once it has heard everything, ends its own.
//! Only then do they hang up: a TCP connection that is closed earlier may lose what is still under way.

use std::convert::Infallible;
use std::error::Error;
use std::future::{Ready, poll_fn, ready};
use std::net::{SocketAddr, TcpStream};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper::http;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::sync::Semaphore;
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::StreamingService;
use tonic::{Request, Response, Status, Streaming};

use super::gate::{BEFORE_PROOF, Gate};
use super::link::{Link, Reached};
use super::{CHUNK, Sizes};

const EXCHANGE: &str = "/paceline.wire.Link/Exchange";
/// How long a connection lasts that this end is done with, if its peer does not take the rest.
const LINGER: Duration = Duration::from_secs(5);
/// The same for somebody who was refused: long enough to hear why.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Bytes of a call's headers.
const HEADERS: u32 = 4 << 10;
/// Bytes of a message besides its data.
const MESSAGE: usize = 16;

pub(super) async fn serve(stream: TcpStream, link: Arc<Link>, sizes: Sizes, lingering: Arc<Semaphore>) {
    let answer = async {
        let io = open(stream, &link, BEFORE_PROOF).map_err(|e| e.to_string())?;
        let mut http2 = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        http2
            .initial_stream_window_size(sizes.window)
            .initial_connection_window_size(sizes.window)
            .max_frame_size(sizes.frame)
            .max_concurrent_streams(1)
            .max_pending_accept_reset_streams(1)
            .max_local_error_reset_streams(1)
            .max_header_list_size(HEADERS)
            .auto_date_header(false);
        let call = service_fn(|request: http::Request<Incoming>| {
            let answer = Answer(Arc::clone(&link));
            async move {
                if request.uri().path() != EXCHANGE {
                    return Ok(Status::unimplemented("").into_http());
                }
                let mut grpc = tonic::server::Grpc::new(Chunks)
                    .max_decoding_message_size(CHUNK + MESSAGE)
                    .max_encoding_message_size(CHUNK + MESSAGE);
                Ok::<_, Infallible>(grpc.streaming(answer, request).await)
            }
        });
        http2.serve_connection(io, call).await.map_err(|e| innermost(&e))
    };
    let Some(answered) = until(answer, over(&link, &lingering)).await else { return };
    // Where there was a call, its end tells.
    if link.begin() {
        link.ended(answered.map_err(|cause| format!("no gRPC: {cause}")));
    }
}

/// What the listening end does about calls.
struct Answer(Arc<Link>);

impl StreamingService<Bytes> for Answer {
    type Response = Bytes;
    type ResponseStream = Answering;
    type Future = Ready<Result<Response<Answering>, Status>>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        if !self.0.begin() {
            return ready(Err(Status::failed_precondition("a connection is for one exchange")));
        }
        let link = Arc::clone(&self.0);
        tokio::spawn(async move { receive(request.into_inner(), &link).await });
        ready(Ok(Response::new(Answering(Saying(Arc::clone(&self.0))))))
    }
}

pub(super) async fn dial(
    stream: TcpStream,
    address: SocketAddr,
    link: Arc<Link>,
    sizes: Sizes,
    lingering: Arc<Semaphore>,
) {
    let talk = async {
        // The listening end's proof may come in one frame with what it says next.
        let before_proof = BEFORE_PROOF + sizes.frame as usize;
        let io = open(stream, &link, before_proof).map_err(|e| e.to_string())?;
        let mut http2 = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        http2
            .initial_stream_window_size(sizes.window)
            .initial_connection_window_size(sizes.window)
            .max_frame_size(sizes.frame)
            .max_header_list_size(HEADERS);
        let (requests, connection) = http2.handshake(io).await.map_err(|e| innermost(&e))?;
        let origin = format!("http://{address}").parse().map_err(|e| innermost(&e))?;
        let mut client = tonic::client::Grpc::with_origin(Requests(requests), origin)
            .max_decoding_message_size(CHUNK + MESSAGE)
            .max_encoding_message_size(CHUNK + MESSAGE);
        let call = async {
            client.ready().await.map_err(|e| format!("Service was not ready: {e}"))?;
            let (said, path) =
                (Request::new(Saying(Arc::clone(&link))), http::uri::PathAndQuery::from_static(EXCHANGE));
            let response = client.streaming(said, path, Chunks).await.map_err(|e| innermost(&e))?;
            link.begin();
            receive(response.into_inner(), &link).await;
            // The connection ends when nobody can call any more.
            drop(client);
            Ok(())
        };
        let (connected, called) = both(connection, call).await;
        called.and(connected.map_err(|e| innermost(&e)))
    };
    let Some(talked) = until(talk, over(&link, &lingering)).await else { return };
    link.ended(talked);
}

/// The stream of a connection, in the terms of HTTP/2's implementation.
fn open(stream: TcpStream, link: &Arc<Link>, before_proof: usize) -> std::io::Result<TokioIo<Gate>> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let stream = tokio::net::TcpStream::from_std(stream)?;
    Ok(TokioIo::new(Gate::new(stream, Arc::clone(link), before_proof)))
}

/// Takes in what the other end says, to its end.
async fn receive(mut chunks: Streaming<Bytes>, link: &Link) {
    loop {
        poll_fn(|cx| link.poll_room(cx)).await;
        match chunks.message().await {
            Ok(Some(chunk)) => link.arrived(chunk),
            Ok(None) => return link.ended(Ok(())),
            Err(status) => return link.ended(Err(innermost(&status))),
        }
    }
}

/// What a dialling end says.
struct Saying(Arc<Link>);

impl Stream for Saying {
    type Item = Bytes;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.0.poll_outgoing(cx)
    }
}

/// What a listening end says.
struct Answering(Saying);

impl Stream for Answering {
    type Item = Result<Bytes, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.0).poll_next(cx).map(|chunk| chunk.map(Ok))
    }
}

/// A connection as gRPC's client wants it.
struct Requests(SendRequest<Body>);

impl GrpcService<Body> for Requests {
    type ResponseBody = Incoming;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<http::Response<Incoming>, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// The message `Chunk`: bytes as field 1, which is how [`prost`] encodes [`Bytes`].
struct Chunks;

impl Codec for Chunks {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }
    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Chunks {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, data: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        data.encode(to).map_err(|e| Status::internal(e.to_string()))
    }
}

impl Decoder for Chunks {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Bytes::decode(from).map(Some).map_err(|e| Status::internal(e.to_string()))
    }
}

/// Ready when this end is done with a connection and the other has heard the rest, or has had the time to. An
/// end that is done or has heard the other's end says so by ending its own direction.
async fn over(link: &Link, lingering: &Semaphore) {
    let reached = poll_fn(|cx| link.poll_closed(cx)).await;
    let permission = lingering.try_acquire();
    let patience = match reached {
        Reached::Proof => LINGER,
        Reached::Call if permission.is_ok() => LAST_WORDS,
        // A crowd of strangers is not waited for.
        Reached::Call | Reached::Nothing => return,
    };
    until(tokio::time::sleep(patience), poll_fn(|cx| link.poll_ended(cx))).await;
}

/// What the first comes to, unless the second is ready before.
async fn until<T>(first: impl Future<Output = T>, second: impl Future<Output = ()>) -> Option<T> {
    let (mut first, mut second) = (pin!(first), pin!(second));
    poll_fn(|cx| match first.as_mut().poll(cx) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => second.as_mut().poll(cx).map(|()| None),
    })
    .await
}

/// Runs both to their ends. The first is gone as soon as it has finished: calls hear of the end of their
/// connection when it is dropped.
async fn both<A, B>(first: impl Future<Output = A>, second: impl Future<Output = B>) -> (A, B) {
    let (mut first, mut second) = (Some(Box::pin(first)), pin!(second));
    let (mut a, mut b) = (None, None);
    poll_fn(|cx| {
        if let Some(Poll::Ready(value)) = first.as_mut().map(|first| first.as_mut().poll(cx)) {
            (a, first) = (Some(value), None);
        }
        if b.is_none()
            && let Poll::Ready(value) = second.as_mut().poll(cx)
        {
            b = Some(value);
        }
        if a.is_some() && b.is_some() { Poll::Ready(a.take().zip(b.take())) } else { Poll::Pending }
    })
    .await
    .expect("both are there")
}

/// The error at the bottom: those above it only say that something below went wrong.
fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_the_definitions_message() {
        let definition = include_str!("../../proto/link.proto");
        let call = "rpc Exchange(stream Chunk) returns (stream Chunk);";
        for part in ["package paceline.wire;", "service Link {", call, "bytes data = 1;"] {
            assert!(definition.contains(part), "{part}");
        }
        // Field 1, a length, the bytes; a field that a later definition may add is passed over.
        assert_eq!(Bytes::from_static(b"ab").encode_to_vec(), [0x0a, 2, b'a', b'b']);
        assert_eq!(Bytes::decode(&[0x10, 7, 0x0a, 1, b'c'][..]).unwrap(), "c");
    }
}
