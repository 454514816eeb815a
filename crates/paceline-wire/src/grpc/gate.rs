//! A TCP stream of which little is read before the other end has proved itself: whatever it says, in whatever
//! way it is framed, cannot fill more memory or keep anybody busy for longer than a handshake does.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::link::Link;

/// Bytes to read before a proof: a call and a handshake take about one thousand.
pub(super) const BEFORE_PROOF: usize = 8 << 10;

/// The stream of one connection.
pub(super) struct Gate {
    stream: TcpStream,
    link: Arc<Link>,
    /// Bytes that may still be read; no limit any more if none.
    left: Option<usize>,
}

impl Gate {
    /// A stream of which `most` bytes are read before a proof.
    pub(super) fn new(stream: TcpStream, link: Arc<Link>, most: usize) -> Self {
        Self { stream, link, left: Some(most) }
    }
}

impl AsyncRead for Gate {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let Some(left) = this.left.filter(|left| *left > 0) else {
            if this.left.is_some() {
                // Who has no proof waits here until somebody loses patience.
                ready!(this.link.poll_proven(cx));
                this.left = None;
            }
            return Pin::new(&mut this.stream).poll_read(cx, out);
        };
        let most = left.min(out.remaining());
        let mut part = ReadBuf::new(out.initialize_unfilled_to(most));
        ready!(Pin::new(&mut this.stream).poll_read(cx, &mut part))?;
        let n = part.filled().len();
        out.advance(n);
        this.left = Some(left - n);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Gate {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::task::Waker;

    use super::*;

    /// Reads until nothing more is given; how much it was.
    fn drain(gate: &mut Gate) -> usize {
        let (mut memory, mut all) = (vec![0; 100_000], 0);
        loop {
            let mut out = ReadBuf::new(&mut memory);
            match Pin::new(&mut *gate).poll_read(&mut Context::from_waker(Waker::noop()), &mut out) {
                Poll::Ready(result) => result.unwrap(),
                Poll::Pending => return all,
            }
            all += out.filled().len();
        }
    }

    #[test]
    fn little_is_read_before_a_proof_and_all_after_it() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
            let mut stranger = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let stream = listener.accept().unwrap().0;
            stream.set_nonblocking(true).unwrap();
            let link = Arc::new(Link::new(1000).unwrap());
            let mut gate = Gate::new(TcpStream::from_std(stream).unwrap(), Arc::clone(&link), BEFORE_PROOF);
            stranger.write_all(&[1; 50_000]).unwrap();
            let mut read = 0;
            while read < BEFORE_PROOF {
                gate.stream.readable().await.unwrap();
                read += drain(&mut gate);
            }
            assert_eq!((read, drain(&mut gate)), (BEFORE_PROOF, 0));
            link.prove();
            while read < 50_000 {
                gate.stream.readable().await.unwrap();
                read += drain(&mut gate);
            }
            assert_eq!(read, 50_000);
        });
    }
}
