//! Being connected to.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::handshake::{Answer, HandshakeError, Hello, cut, read_open};
use crate::peers::{Existing, NoLink, Peer, Shared, set_up};

/// First pause after the system could not accept a connection; doubled with each further failure.
const PAUSE: Duration = Duration::from_millis(5);

/// Longest such pause.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Bytes read from a refused dialer before its connection is closed.
const LINGER_BYTES: u64 = 64 * 1024;

/// Bytes of each job's name in a refusal, so that both fit.
const JOB_SHOWN_BYTES: usize = 90;

/// Accepts connections until the van closes.
pub(crate) async fn accept_all(shared: Arc<Shared>, listener: TcpListener) {
    let mut closing = shared.closing.subscribe();
    let mut handshakes = JoinSet::new();
    let mut pause = PAUSE;
    let unfinished_max = shared.config.unfinished_handshakes_max.max(1);
    loop {
        let accepted = tokio::select! {
            biased;
            _ = closing.wait_for(|closing| *closing) => break,
            Some(_) = handshakes.join_next() => continue,
            accepted = listener.accept(), if handshakes.len() < unfinished_max => accepted,
        };
        match accepted {
            Ok((stream, from)) => {
                pause = PAUSE;
                let shared = Arc::clone(&shared);
                handshakes.spawn(async move {
                    let deadline = shared.config.handshake_deadline;
                    let done = timeout(deadline, welcome(&shared, stream)).await;
                    if let Err(what) = done.unwrap_or_else(|_| Err(format!("no handshake within {deadline:?}"))) {
                        shared.count_stranger();
                        tracing::debug!(%from, what, "dropped a stranger");
                    }
                });
            }
            // These concern the one connection, which is gone already.
            Err(error) if is_of_the_connection(&error) => {}
            Err(error) => {
                // Most likely no file descriptor is left. Others may be closed soon; until then accepting again at
                // once would only burn the processor.
                tracing::warn!(%error, ?pause, "cannot accept connections");
                tokio::select! {
                    _ = closing.wait_for(|closing| *closing) => break,
                    () = sleep(pause) => pause = (pause * 2).min(PAUSE_MAX),
                }
            }
        }
    }
}

fn is_of_the_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Shakes hands; the error says why somebody was dropped who is no node of this job.
async fn welcome(shared: &Arc<Shared>, mut stream: TcpStream) -> Result<(), String> {
    set_up(&stream, &shared.config);
    let hello = match Hello::read(&mut stream).await {
        Ok(hello) => hello,
        Err(error) => {
            if let HandshakeError::Version { theirs } = error {
                let ours = kv_core::wire::WIRE_VERSION;
                let reason = format!("it speaks version {ours} of the protocol, this node version {theirs}");
                refuse(shared, stream, &Answer::Refused(reason)).await;
            }
            return Err(error.to_string());
        }
    };
    let own = &shared.config;
    if hello.job != own.job {
        let reason = format!(
            "it belongs to the job '{}', this node to '{}'",
            cut(&own.job, JOB_SHOWN_BYTES),
            cut(&hello.job, JOB_SHOWN_BYTES)
        );
        refuse(shared, stream, &Answer::Refused(reason)).await;
        return Err(format!("a node of the job '{}' was refused", hello.job));
    }
    if hello.node == own.node {
        // Itself, by another name of its address; or somebody who made up the same identity.
        let answer = if hello.endpoint == shared.endpoint {
            Answer::Linked(own.node)
        } else {
            Answer::Refused(format!("it has the id {} itself", own.node))
        };
        refuse(shared, stream, &answer).await;
        return Ok(());
    }

    let peer = Peer::of_hello(hello);
    let welcome = Answer::Welcome(own.node).encode(own.node);
    if !shared.decides_over(peer.node) {
        let opened = async {
            stream.write_all(&welcome).await?;
            read_open(&mut stream).await
        };
        return match opened.await {
            Ok(()) => {
                // Refused only when this van is closing: then the peer sees the end of the connection.
                let _ = shared.link(&peer, stream, Vec::new(), Existing::Replace).await;
                Ok(())
            }
            // The peer thought better of it: it has a link by now.
            Err(HandshakeError::Io(_)) => Ok(()),
            Err(error) => Err(error.to_string()),
        };
    }
    if let Err(NoLink::Exists(stream)) = shared.link(&peer, stream, welcome, Existing::Keep).await {
        refuse(shared, stream, &Answer::Linked(own.node)).await;
    }
    Ok(())
}

/// Answers and hangs up, in such a way that the answer arrives: a connection closed with unread bytes is reset.
async fn refuse(shared: &Shared, mut stream: TcpStream, answer: &Answer) {
    let answered = async {
        stream.write_all(&answer.encode(shared.config.node)).await?;
        stream.shutdown().await?;
        tokio::io::copy(&mut (&mut stream).take(LINGER_BYTES), &mut tokio::io::sink()).await
    };
    // The other side may have hung up itself.
    let _ = answered.await;
}
