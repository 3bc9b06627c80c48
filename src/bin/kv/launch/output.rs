//! Lines of many processes on one output: never mixed within a line, in bounded memory.

use std::io::{self, Write};
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::sync::{mpsc, oneshot, watch};

use super::plan::Node;
use kv_core::cluster::Role;

/// A longer line is passed on in pieces of this many bytes, each on a line of its own.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// Pieces that wait to be written. With the piece in every reader's hand this bounds the memory; a process whose
/// output nobody takes waits.
const WAITING_MAX: usize = 64;

/// A process that is gone but whose output is still open (something that left its group holds it) is done when it is
/// silent for this long.
const SILENCE: Duration = Duration::from_millis(100);

/// Where a piece is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Out,
    Err,
}

/// What is written, with its end of line if it has one.
pub(super) type Piece = (Stream, Vec<u8>);

/// The thread that writes. Writing may block for as long as the reader likes, and signals must be heard meanwhile.
pub(super) struct Printer {
    pub(super) sender: mpsc::Sender<Piece>,
    done: oneshot::Receiver<()>,
}

impl Printer {
    pub(super) fn start() -> io::Result<Self> {
        let (sender, mut receiver) = mpsc::channel::<Piece>(WAITING_MAX);
        let (done_sender, done) = oneshot::channel();
        std::thread::Builder::new().name("printer".into()).spawn(move || {
            while let Some((stream, bytes)) = receiver.blocking_recv() {
                let written = match stream {
                    Stream::Out => write(&mut io::stdout().lock(), &bytes),
                    // When nobody reads the messages, the job goes on without them.
                    Stream::Err => write(&mut io::stderr().lock(), &bytes).or(Ok(())),
                };
                if written.is_err() {
                    break;
                }
            }
            let _ = done_sender.send(());
        })?;
        Ok(Self { sender, done })
    }

    /// Waits until all that was sent is written. Readers must have ended: they hold senders.
    pub(super) async fn finish(self) {
        drop(self.sender);
        let _ = self.done.await;
    }
}

fn write(to: &mut dyn Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}

/// What stands before every line of a process.
pub(super) fn label(name: &str, style: Option<Style>) -> Vec<u8> {
    match style {
        Some(style) => format!("{style}{name} |{style:#} ").into_bytes(),
        None => format!("{name} | ").into_bytes(),
    }
}

/// A node's colour: its own among its neighbours.
pub(super) fn style(node: Node) -> Style {
    const SERVERS: [AnsiColor; 3] = [AnsiColor::Yellow, AnsiColor::Magenta, AnsiColor::BrightYellow];
    const WORKERS: [AnsiColor; 5] =
        [AnsiColor::Cyan, AnsiColor::Green, AnsiColor::Blue, AnsiColor::BrightCyan, AnsiColor::BrightGreen];
    let rank = usize::from(node.rank);
    let color = match node.role {
        Role::Server => SERVERS[rank % SERVERS.len()],
        Role::Worker => WORKERS[rank % WORKERS.len()],
        Role::Scheduler | Role::Observer => AnsiColor::BrightBlack,
    };
    color.on_default()
}

/// Passes on one output of one process.
pub(super) struct Forward {
    /// Where to.
    pub(super) stream: Stream,
    /// What stands before each line; `None` passes bytes on as they are.
    pub(super) label: Option<Vec<u8>>,
    /// Is also given the first line, without its end.
    pub(super) first_line: Option<oneshot::Sender<String>>,
    /// Becomes true when the process and its group are gone.
    pub(super) over: watch::Receiver<bool>,
    pub(super) printer: mpsc::Sender<Piece>,
}

impl Forward {
    pub(super) async fn run(mut self, from: impl AsyncRead + Unpin) {
        let mut lines = LineReader::new(from);
        loop {
            let mut over = self.over.clone();
            let silence = async move {
                // An error means that the sender is gone, and with it the process.
                let _ = over.wait_for(|over| *over).await;
                tokio::time::sleep(SILENCE).await;
            };
            let line = tokio::select! {
                biased;
                line = lines.next() => line,
                () = silence => return,
            };
            // An output that cannot be read is an output that has ended.
            let Ok(Some(line)) = line else { return };
            if let Some(sender) = self.first_line.take() {
                let _ = sender.send(String::from_utf8_lossy(&line.bytes).into_owned());
            }
            if self.printer.send((self.stream, self.dress(line))).await.is_err() {
                return;
            }
        }
    }

    fn dress(&self, mut line: Line) -> Vec<u8> {
        let Some(label) = &self.label else {
            line.bytes.extend_from_slice(if line.ended { b"\n" } else { b"" });
            return line.bytes;
        };
        let text = String::from_utf8_lossy(&line.bytes);
        let text = text.strip_suffix('\r').unwrap_or(&text);
        let mut piece = Vec::with_capacity(label.len() + text.len() + 1);
        piece.extend_from_slice(label);
        piece.extend_from_slice(text.as_bytes());
        piece.push(b'\n');
        piece
    }
}

/// A line, or a piece of a long one.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    bytes: Vec<u8>,
    /// Whether a newline followed.
    ended: bool,
}

/// Cuts bytes into lines of bounded length.
struct LineReader<R> {
    from: BufReader<R>,
    /// The beginning of the next line.
    line: Vec<u8>,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    fn new(from: R) -> Self {
        Self { from: BufReader::new(from), line: Vec::new() }
    }

    /// The next line; the last one may lack its newline. Nothing is lost when the future is dropped.
    async fn next(&mut self) -> io::Result<Option<Line>> {
        loop {
            let room = LINE_BYTES_MAX - self.line.len();
            let bytes = self.from.fill_buf().await?;
            if bytes.is_empty() {
                let bytes = std::mem::take(&mut self.line);
                return Ok((!bytes.is_empty()).then_some(Line { bytes, ended: false }));
            }
            let bytes = &bytes[..bytes.len().min(room)];
            let newline = bytes.iter().position(|byte| *byte == b'\n');
            let taken = newline.unwrap_or(bytes.len());
            self.line.extend_from_slice(&bytes[..taken]);
            self.from.consume(taken + usize::from(newline.is_some()));
            if newline.is_some() {
                return Ok(Some(Line { bytes: std::mem::take(&mut self.line), ended: true }));
            }
            if self.line.len() == LINE_BYTES_MAX {
                let rest = self.line.split_off(whole_chars(&self.line));
                return Ok(Some(Line { bytes: std::mem::replace(&mut self.line, rest), ended: false }));
            }
        }
    }
}

/// How many bytes can be cut off without cutting a character in two.
fn whole_chars(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        // Not an error yet, but the beginning of a character.
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => error.valid_up_to(),
        _ => bytes.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lines(bytes: &[u8]) -> Vec<(String, bool)> {
        let mut reader = LineReader::new(bytes);
        let mut lines = Vec::new();
        while let Some(line) = reader.next().await.unwrap() {
            lines.push((String::from_utf8_lossy(&line.bytes).into_owned(), line.ended));
        }
        lines
    }

    #[tokio::test]
    async fn lines_end_at_newlines_and_at_the_end() {
        let line = |text: &str, ended| (text.to_owned(), ended);
        assert_eq!(lines(b"").await, []);
        assert_eq!(lines(b"a\n\nb").await, [line("a", true), line("", true), line("b", false)]);
    }

    #[tokio::test]
    async fn long_lines_are_cut_between_characters() {
        let text = format!("x{}", "é".repeat(LINE_BYTES_MAX));
        let lines = lines(text.as_bytes()).await;
        assert!(lines.iter().all(|(line, ended)| line.len() <= LINE_BYTES_MAX && !ended));
        assert_eq!(lines.into_iter().map(|(line, _)| line).collect::<String>(), text);
    }

    #[tokio::test]
    async fn a_line_of_just_the_limit_keeps_its_newline() {
        let exact = [vec![b'x'; LINE_BYTES_MAX], b"\ny\n".to_vec()].concat();
        let pieces: String =
            lines(&exact).await.into_iter().map(|(line, ended)| line + if ended { "\n" } else { "" }).collect();
        assert_eq!(pieces.as_bytes(), exact);
    }

    #[test]
    fn labels_are_coloured_on_request() {
        let worker = Node { role: Role::Worker, rank: 0 };
        assert_eq!(label(&worker.to_string(), None), b"worker 0 | ");
        assert_eq!(label("worker 0", Some(style(worker))), b"\x1b[36mworker 0 |\x1b[0m ");
    }
}
