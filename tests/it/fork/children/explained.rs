//! `explain` on a child that a running forkpoint plans too.

use std::process::Command;

use serde_json::Value;

use super::{FREE, Stage, child, directives, parent, plan};
use crate::harness::until;
use crate::workload::prose;

#[tokio::test]
async fn explain_and_serve_agree_whatever_the_gate_holds() {
    let mut verdicts = Vec::new();
    for min_tokens in [1_024, 1_000_000] {
        let stage = Stage::new(|config| {
            config.gate.min_tokens = min_tokens;
            config.fork.policy.context_premium = 0.25;
        })
        .await;
        let mut lead = parent(FREE, "[[sim:fan_out n=3 tool=Agent field=prompt | text words=20]]");
        lead["tools"][1]["description"] = prose("Reads a file.", 100_000).into();
        let answered = stage.send(&lead).await;
        let sealed = || stage.count("forks_total", &["outcome=\"sealed\""]) > 0;
        until("the fan-out to be sealed", sealed).await;
        let mut work = child(FREE, &directives(&answered)[1]);
        work["tools"][0] = lead["tools"][1].clone();
        let served = stage.send(&work).await;

        let folder = tempfile::tempdir().unwrap();
        let files = [
            ("parent.json", lead.to_string().into_bytes()),
            ("answer.sse", answered.answer.to_vec()),
            ("child.json", work.to_string().into_bytes()),
        ];
        for (name, bytes) in files {
            std::fs::write(folder.path().join(name), bytes).unwrap();
        }
        let output = Command::new(env!("CARGO_BIN_EXE_forkpoint"))
            .args(["explain", "--json", "--parent", "parent.json", "--answer", "answer.sse", "child.json"])
            .current_dir(folder.path())
            .env_clear()
            .env("FORKPOINT_GATE__MIN_TOKENS", min_tokens.to_string())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let explained: Value = serde_json::from_slice(&output.stdout).unwrap();
        let [_, plan, reason] = plan(&served);
        assert_eq!(
            (&explained["plan"], &explained["reason"]),
            (&plan.into(), &reason.into()),
            "{min_tokens}"
        );
        verdicts.push([plan, reason].map(str::to_owned));
    }
    // Where nobody is held, aligned siblings all write the tools that they share.
    assert_eq!(verdicts, [["aligned", "cost"], ["forked", "none"]]);
}
