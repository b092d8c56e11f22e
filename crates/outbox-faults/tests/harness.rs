//! The harness, as people run it: the short pass over every fault, and the engine broken on purpose.

use std::process::{Command, Output};

use serde_json::Value;

/// Runs the harness, and returns its lines and how it ended.
fn harness(arguments: &[&str]) -> (Vec<Value>, Output) {
    let output = Command::new(env!("CARGO_BIN_EXE_outbox-faults"))
        .args(["run", "--json"])
        .args(arguments)
        .output()
        .expect("the harness runs");
    let lines = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    (lines, output)
}

fn number(line: &Value, name: &str) -> u64 {
    line[name].as_u64().unwrap_or_else(|| panic!("{name} in {line}"))
}

/// All faults, few seeds. The long pass is a command in the README.
#[test]
fn every_fault_is_survived() {
    let (lines, output) = harness(&["--seconds", "1"]);
    let progress = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{progress}");
    for line in &lines {
        assert_eq!(number(line, "runs"), 1, "{line}");
        assert!(number(line, "committed") > 0, "{line}");
        for column in ["lost", "phantom", "stale_writes"] {
            assert_eq!(number(line, column), 0, "{line}");
        }
        if line["mode"] == "ordered" {
            assert_eq!(number(line, "out_of_order"), 0, "{line}");
        }
    }
    for mode in ["unordered", "lanes", "ordered"] {
        assert!(lines.iter().any(|line| line["mode"] == mode), "{mode}\n{progress}");
    }
    let has = |fault: &str, database: &str| {
        let mut lines = lines.iter();
        lines.any(|line| line["fault"] == fault && line["database"] == database)
    };
    for database in ["sqlite", "postgres", "mariadb"] {
        for fault in ["kill-in-settle", "worker-stalled", "poison", "backlog"] {
            assert!(has(fault, database), "{fault} on {database}\n{progress}");
        }
    }
    assert!(has("commit-answer-lost", "postgres") && has("database-kill", "mariadb") && has("sqlite-busy", "sqlite"));
    assert!(!has("database-kill", "sqlite"));
}

/// Runs a fault with an engine that is broken on purpose, or with one that is a control.
fn with_engine(broken: &str, fault: &str) -> (Vec<Value>, Output) {
    let workload = ["--database", "sqlite", "--seconds", "2", "--seeds", "3"];
    harness(&[&["--broken", broken, "--fault", fault], &workload[..]].concat())
}

/// Whatever has been committed when the seeds end, one of them must have caught it.
#[track_caller]
fn is_caught(broken: &str, fault: &str, by: &str) {
    let (lines, output) = with_engine(broken, fault);
    let progress = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{broken} was not noticed:\n{progress}");
    let complaints: Vec<String> = lines
        .iter()
        .flat_map(|line| line["failed"].as_array().into_iter().flatten())
        .flat_map(|failed| failed["broken"].as_array().into_iter().flatten())
        .filter_map(|complaint| complaint.as_str().map(str::to_owned))
        .collect();
    assert!(
        complaints.iter().any(|complaint| complaint.starts_with(by)),
        "{broken} was noticed, but not by {by}: {complaints:#?}"
    );
    remove_what_was_kept(&lines);
}

/// The logs of a failed run are kept for people; here nobody will read them.
fn remove_what_was_kept(lines: &[Value]) {
    let failed = lines
        .iter()
        .flat_map(|line| line["failed"].as_array().into_iter().flatten());
    for kept in failed.filter_map(|failed| failed["kept"].as_str()) {
        let root = std::path::Path::new(kept).ancestors().find(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("outbox-faults-"))
        });
        if let Some(root) = root {
            let _ = std::fs::remove_dir_all(root);
        }
    }
}

/// The workloads of the tests below, with an engine that is right: nothing is noticed, so what they notice is the breakage.
#[test]
fn the_workloads_of_the_broken_engines_are_survived_by_one_that_is_not() {
    for (control, fault) in [
        ("nothing", "worker-stalled"),
        ("nothing", "clock-skew"),
        ("nothing", "kill-in-listener"),
        ("nothing-slow", "clock-skew"),
    ] {
        let (lines, output) = with_engine(control, fault);
        let progress = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{control}, {fault}:\n{progress}");
        assert!(number(&lines[0], "committed") > 0, "{progress}");
    }
}

#[test]
fn unfenced_settle_is_caught() {
    is_caught("unfenced-settle", "worker-stalled", "I6");
}

#[test]
fn hot_path_before_commit_is_caught() {
    is_caught("hot-before-commit", "clock-skew", "I2");
}

#[test]
fn poller_that_skips_is_caught() {
    is_caught("skipping-poller", "clock-skew", "I1");
}

#[test]
fn lost_lease_renewal_is_caught() {
    is_caught("lost-renewal", "clock-skew", "I4");
}

#[test]
fn done_before_the_listener_ran_is_caught() {
    is_caught("done-before-listener", "kill-in-listener", "I1");
}

#[test]
fn arguments_that_make_no_sense_are_refused() {
    for (arguments, says) in [
        (["--database", "oracle://x"], "unknown database"),
        (["--fault", "no-such-fault"], "invalid value"),
        (["--seeds", "0"], "invalid value"),
    ] {
        let (lines, output) = harness(&arguments);
        assert!(lines.is_empty() && !output.status.success());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains(says), "{stderr}");
    }
    let (_, output) = harness(&["--database", "sqlite", "--fault", "database-kill"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("does not apply"), "{stderr}");
}
