//! `forkpoint top` in a terminal, before a forkpoint that runs.

use std::process::Stdio;

use crate::fork::scene::Scene;
use crate::harness::terminal::Terminal;
use crate::harness::{Binary, binary, get, within};

/// The escape that leaves the screen of its own, and gives back the one before.
const LEFT: &str = "\u{1b}[?1049l";

fn top(address: impl std::fmt::Display, more: &str) -> Terminal {
    Terminal::start(&format!("top --admin http://{address} {more}"), &[("NO_COLOR", "1")], 100, 30)
}

#[tokio::test]
async fn a_fan_out_is_watched_as_it_runs_and_q_gives_the_terminal_back() {
    let scene = Scene::fanned_out(2, |_| ()).await;
    let admin = crate::events::serve(&scene.forkpoint).await;
    let mut top = top(admin, "");
    top.shows("mode align").await;
    top.shows("Fan-outs 1").await;

    let mut leader = scene.arrives(0, 1).await;
    top.shows("1 running").await;
    let mut follower = scene.arrives(1, 2).await;
    top.shows("2 running").await;
    top.shows("is held").await;
    scene.answer(2).await;
    for client in [&mut leader, &mut follower] {
        assert_eq!(client.reply().await.status(), 200);
    }
    top.until("the end of both", |screen| {
        let text = screen.text();
        text.contains("Agent × 2") && text.contains("3 requests") && !text.contains("running")
    })
    .await;
    assert!(top.screen.text().contains("All aligned: the mode is align."), "{}", top.screen.text());

    top.press("\r").await;
    top.shows("child 2/2 turn 1").await;
    top.press("\u{1b}[B\t").await;
    top.shows("tokens were not read again").await;
    top.press("?").await;
    top.shows("Keys").await;
    top.press("qq").await;
    assert_eq!(top.ended().await.code(), Some(0));
    assert!(top.screen.raw.trim_end().ends_with("\u{1b}[?25h") || top.screen.raw.contains(LEFT));
    assert!(top.screen.raw.contains(LEFT));
    // A place on the screen may begin with the same digit.
    let has_colour = (30..=37).any(|code| top.screen.raw.contains(&format!("\u{1b}[{code}m")));
    assert!(!has_colour && !top.screen.raw.contains("\u{1b}[38;"), "{}", top.screen.raw);
}

#[tokio::test]
async fn it_goes_on_when_the_proxy_comes_back_and_says_that_figures_begin_anew() {
    let mut first = Binary::serve("http://127.0.0.1:1", &[]).await;
    let admin = first.admin.to_string();
    let mut top = top(&admin, "");
    top.shows("live").await;
    assert_eq!(first.client().await.ask(&get("/v1/models")).await.status(), 502);
    first.signal("KILL").await;
    first.exit().await;
    top.shows("connection lost, trying again").await;
    let second = Binary::serve("http://127.0.0.1:1", &[("--admin-listen", &admin)]).await;
    top.shows("the proxy was started anew at").await;
    top.until("the connection", |screen| !screen.text().contains("connection lost")).await;
    drop(second);
    top.press("\u{3}").await;
    assert_eq!(top.ended().await.code(), Some(0));
}

#[tokio::test]
async fn a_signal_ends_it_and_the_terminal_is_as_before() {
    let binary = Binary::serve("http://127.0.0.1:1", &[]).await;
    for (name, code) in [("TERM", 143), ("HUP", 129), ("INT", 130)] {
        let mut top = top(binary.admin, "");
        top.shows("live").await;
        top.signal(name).await;
        assert_eq!(top.ended().await.code(), Some(code), "{name}");
        assert!(top.screen.raw.contains(LEFT), "{name}");
    }
}

#[tokio::test]
async fn the_token_comes_from_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "0123456789abcdef\n").unwrap();
    let path = file.to_str().unwrap();
    let binary = Binary::serve("http://127.0.0.1:1", &[("ADMIN__TOKEN_FILE", path)]).await;
    let mut refused = top(binary.admin, "");
    assert_eq!(refused.ended().await.code(), Some(1));
    assert!(refused.screen.raw.contains("asks for a token"), "{}", refused.screen.raw);
    assert!(refused.screen.raw.contains("hint: name the file of admin.token_file with --token-file"));
    let mut top = top(binary.admin, &format!("--token-file {path}"));
    top.shows("live").await;
    top.press("q").await;
    assert_eq!(top.ended().await.code(), Some(0));
    assert!(!top.screen.raw.contains("0123456789abcdef"));
}

#[tokio::test]
async fn what_cannot_be_watched_is_said_in_plain_words_and_with_the_next_step() {
    let mut nobody = top("127.0.0.1:1", "");
    assert_eq!(nobody.ended().await.code(), Some(1));
    let said = &nobody.screen.raw;
    assert!(
        said.contains("error: nothing answers at http://127.0.0.1:1: ") && said.contains("forkpoint serve"),
        "{said}"
    );
    assert!(!said.contains(LEFT), "the screen was never cleared");

    let mut command = binary::command();
    let output = command.arg("top").stdout(Stdio::piped()).stderr(Stdio::piped()).output();
    let output = within("the refusal", output).await.unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(64), "{said}");
    assert!(said.contains("error: top needs a terminal, and standard input is none"), "{said}");
    assert!(said.contains("kubectl exec -it") && said.contains("http://127.0.0.1:8788/events"), "{said}");
}
