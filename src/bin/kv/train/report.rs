//! Progress: a bar for people, lines where there is no terminal, JSON for programs.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::model::Score;

/// What worker 0 tells of a training.
pub(super) struct Report {
    output: Output,
    started: Instant,
    examples: u64,
    traffic: Traffic,
}

enum Output {
    Json,
    Lines,
    Bar(ProgressBar),
    Quiet,
}

/// Bytes of values that this worker has sent and received.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Traffic {
    pub(super) pushed: u64,
    pub(super) pulled: u64,
}

impl Report {
    /// A report over `steps` steps in all.
    pub(super) fn new(json: bool, quiet: bool, steps: u64) -> Self {
        let output = if json {
            Output::Json
        } else if quiet {
            Output::Quiet
        } else if std::io::stderr().is_terminal() {
            let bar = ProgressBar::new(steps);
            let style = ProgressStyle::with_template("{bar:20} {pos}/{len} steps, {eta} left  {wide_msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            Output::Bar(bar)
        } else {
            Output::Lines
        };
        Self { output, started: Instant::now(), examples: 0, traffic: Traffic::default() }
    }

    /// A step is done: this many examples by all workers together.
    pub(super) fn step(&mut self, examples: usize, traffic: Traffic, loss: f64) {
        self.examples += examples as u64;
        self.traffic = traffic;
        if let Output::Bar(bar) = &self.output {
            bar.inc(1);
            bar.set_message(format!("loss {loss:.4}  {:.0} examples/s  {}", self.rate(), self.bytes()));
        }
    }

    /// An epoch is done. `loss` is the mean over this worker's own examples while training.
    pub(super) fn epoch(&self, epoch: u32, loss: f64, test: Score) {
        let seconds = self.started.elapsed().as_secs_f64();
        match &self.output {
            Output::Json => self.print_json(
                json!({
                    "event": "epoch", "epoch": epoch, "train_loss": loss, "test_loss": test.loss,
                    "test_accuracy": test.accuracy, "seconds": seconds, "examples_per_s": self.rate(),
                    "pushed_bytes": self.traffic.pushed, "pulled_bytes": self.traffic.pulled,
                }),
                test,
            ),
            Output::Lines => self.print(&format!(
                "epoch {epoch:>3}  train loss {loss:.4}  test loss {:.4}{}  {:.0} examples/s  {}",
                test.loss,
                quality(test),
                self.rate(),
                self.bytes()
            )),
            Output::Bar(_) | Output::Quiet => {}
        }
    }

    /// Training is done.
    pub(super) fn done(&self, test: Score) {
        let seconds = self.started.elapsed().as_secs_f64();
        match &self.output {
            Output::Json => self.print_json(
                json!({
                    "event": "done", "test_accuracy": test.accuracy, "test_loss": test.loss, "seconds": seconds,
                    "examples_per_s": self.rate(),
                }),
                test,
            ),
            other => {
                if let Output::Bar(bar) = other {
                    bar.finish_and_clear();
                }
                self.print(&format!(
                    "done in {:.2?}: test loss {:.4}{}  {:.0} examples/s  {}",
                    Duration::from_secs_f64(seconds),
                    test.loss,
                    quality(test),
                    self.rate(),
                    self.bytes()
                ));
            }
        }
    }

    /// One object on one line; `test_r2` is in it when numbers are predicted.
    fn print_json(&self, mut object: Value, test: Score) {
        if let Some(r2) = test.r2 {
            object["test_r2"] = r2.into();
        }
        self.print(&object.to_string());
    }

    fn print(&self, line: &str) {
        // A reader that has gone away does not stop the training.
        let _ = writeln!(std::io::stdout().lock(), "{line}");
    }

    fn rate(&self) -> f64 {
        self.examples as f64 / self.started.elapsed().as_secs_f64().max(1e-9)
    }

    fn bytes(&self) -> String {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        format!("pushed {:.1} MiB, pulled {:.1} MiB", mib(self.traffic.pushed), mib(self.traffic.pulled))
    }
}

/// How good the model is, in the terms of its task.
fn quality(test: Score) -> String {
    match (test.accuracy, test.r2) {
        (Some(accuracy), _) => format!("  test accuracy {accuracy:.4}"),
        (None, Some(r2)) => format!("  test R2 {r2:.4}"),
        (None, None) => String::new(),
    }
}
