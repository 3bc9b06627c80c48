//! `kv train`: the main job.

use std::path::Path;

use crate::job::{Outcome, Running};
use crate::killed::kv;

fn train(args: &[&str]) -> Outcome {
    let mut all = vec!["train"];
    all.extend(args);
    Running::of(kv(&all, &[])).finish()
}

fn done(outcome: &Outcome) -> serde_json::Value {
    assert_eq!(outcome.code, 0, "{}", outcome.err());
    let lines: Vec<serde_json::Value> = outcome.out().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (done, epochs) = lines.split_last().unwrap();
    assert_eq!(done["event"], "done");
    assert!(!epochs.is_empty());
    for (index, epoch) in epochs.iter().enumerate() {
        assert_eq!((epoch["event"].as_str(), epoch["epoch"].as_u64()), (Some("epoch"), Some(index as u64 + 1)));
        for field in ["train_loss", "test_loss", "seconds", "examples_per_s", "pushed_bytes", "pulled_bytes"] {
            assert!(epoch[field].is_number(), "{field} in {epoch}");
        }
    }
    done.clone()
}

#[test]
fn the_default_job_learns_the_digits_as_well_as_one_process() {
    let distributed = done(&train(&["--json"]));
    let local = done(&train(&["--json", "--local"]));
    let accuracy = |done: &serde_json::Value| done["test_accuracy"].as_f64().unwrap();
    assert!(accuracy(&distributed) >= 0.95, "{distributed}");
    assert!((accuracy(&distributed) - accuracy(&local)).abs() <= 0.005, "{distributed} {local}");
}

fn saved(folder: &Path, name: &str, args: &[&str]) -> Vec<u8> {
    let path = folder.join(name);
    let mut all = vec!["--quiet", "--epochs", "2", "--save", path.to_str().unwrap()];
    all.extend(args);
    let outcome = train(&all);
    assert_eq!(outcome.code, 0, "{}", outcome.err());
    std::fs::read(path).unwrap()
}

#[test]
fn deterministic_weights_are_the_serial_reference_to_the_last_bit() {
    let folder = tempfile::tempdir().unwrap();
    for (workers, servers) in [("1", "3"), ("2", "2"), ("3", "1"), ("8", "3")] {
        let run = |name| saved(folder.path(), name, &["-n", workers, "-s", servers, "--deterministic"]);
        let first = run("first");
        assert!(first == run("second"), "{workers} workers, {servers} servers: not the same twice");
        let serial = saved(folder.path(), "serial", &["--local", "-n", workers]);
        assert!(first == serial, "{workers} workers, {servers} servers: not the serial reference");
    }
}

#[test]
fn threads_of_one_process_train_the_same_weights() {
    let folder = tempfile::tempdir().unwrap();
    for (workers, servers) in [("1", "1"), ("3", "2")] {
        let job = ["-n", workers, "-s", servers, "--deterministic"];
        let processes = saved(folder.path(), "processes", &job);
        let threads = saved(folder.path(), "threads", &[&job[..], &["--transport", "memory"]].concat());
        assert!(processes == threads, "{workers} workers, {servers} servers: not the same weights");
    }
    let in_memory = done(&train(&["--json", "--transport", "memory", "--mode", "async", "--lr", "0.02"]));
    assert!(in_memory["test_accuracy"].as_f64().unwrap() > 0.9, "{in_memory}");
    let variable = Running::of(kv(&["train", "--json", "--epochs", "1"], &[("KV_TRANSPORT", "memory")])).finish();
    assert_eq!(variable.err(), "", "nothing was launched");
    done(&variable);
}

#[test]
fn every_model_and_mode_runs() {
    let folder = tempfile::tempdir().unwrap();
    let csv = folder.path().join("line.csv");
    let rows: String = (0..200).map(|x| format!("{},{},{}\n", x, x % 7, 3 * x + x % 7 + 1)).collect();
    std::fs::write(&csv, rows).unwrap();
    let csv = csv.to_str().unwrap();
    let line = done(&train(&["--json", "--model", "linear", "--data", csv, "--epochs", "200"]));
    assert!(line["test_loss"].as_f64().unwrap() < 0.5 && line["test_accuracy"].is_null(), "{line}");
    assert!(line["test_r2"].as_f64().unwrap() > 0.999, "{line}");
    let svm = folder.path().join("sign.libsvm");
    let rows: String = (0..200).map(|x| format!("{} 1:{} 3:1\n", if x % 3 == 0 { 1 } else { -1 }, x % 3)).collect();
    std::fs::write(&svm, rows).unwrap();
    for mode in ["sync", "async"] {
        let sign = done(&train(&["--json", "--model", "logistic", "--data", svm.to_str().unwrap(), "--mode", mode]));
        assert!(sign["test_accuracy"].as_f64().unwrap() > 0.99, "{mode}: {sign}");
        let digits = done(&train(&["--json", "--model", "softmax", "--mode", mode, "--lr", "0.05"]));
        assert!(digits["test_accuracy"].as_f64().unwrap() > 0.93, "{digits}");
    }
}

#[test]
fn bad_input_is_told_before_anything_is_started() {
    let folder = tempfile::tempdir().unwrap();
    let bad = folder.path().join("bad.csv");
    std::fs::write(&bad, "1,2,0\n1,two,1\n").unwrap();
    let bad = bad.to_str().unwrap();
    for (args, message) in [
        (&["--data", bad][..], "line 2, column 2"),
        (&["--data", "/no/such/file"], "/no/such/file"),
        (&["--save", "/no/such/folder/model"], "/no/such/folder/model"),
        (&["--model", "logistic"], "2 classes"),
        (&["--workers", "0"], "--workers"),
        (&["--momentum", "1"], "--momentum"),
        (&["--transport", "pigeon"], "tcp"),
        (&["--scheduler", "127.0.0.1:1"], "expected --role or --by-rank beside it"),
        (&["--role", "worker", "--scheduler", "ipc:///x"], "which is for transport zmq-ipc"),
        (&["--role", "observer"], "expected scheduler, server or worker"),
    ] {
        let outcome = train(args);
        assert_ne!(outcome.code, 0);
        assert!(outcome.err().contains(message), "no {message:?} in:\n{}", outcome.err());
        assert!(!outcome.err().contains("listening"), "{}", outcome.err());
    }
}

#[test]
fn a_training_that_diverges_says_so() {
    for model in ["softmax", "mlp"] {
        for place in [&["--local"][..], &[], &["--transport", "memory"]] {
            let args = [&["--json", "--model", model, "--lr", "1e30", "--epochs", "3"], place].concat();
            let outcome = train(&args);
            assert_ne!(outcome.code, 0);
            assert!(outcome.err().contains("diverged in epoch 1"), "{}", outcome.err());
        }
    }
}
