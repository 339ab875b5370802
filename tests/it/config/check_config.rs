//! `check-config`: precedence, origins, masks, exit codes, and everything wrong in one report.

use std::path::Path;

use super::check_config;

/// A folder with one file `f.toml`.
fn folder_with(text: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("f.toml"), text).unwrap();
    dir
}

#[test]
fn an_empty_configuration_runs_and_every_value_is_a_default() {
    let dir = folder_with("");
    for args in [&[][..], &["--config", "f.toml"]] {
        let run = check_config(dir.path(), args, &[]);
        assert_eq!(run.code, Some(0), "{}", run.stderr);
        let values: Vec<_> = run.stdout.lines().filter(|line| line.contains(" = ")).collect();
        assert_eq!(values.len(), 84);
        assert!(values.iter().all(|line| line.ends_with("  # default")), "{}", run.stdout);
    }
}

#[test]
fn no_file_is_read_unless_it_is_named() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["forkpoint.toml", "config.toml"] {
        std::fs::write(dir.path().join(name), "not toml at all").unwrap();
    }
    let run = check_config(dir.path(), &[], &[]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
}

#[test]
fn each_value_says_which_layer_it_came_from() {
    let dir = folder_with(
        "[server]\nlisten = \"127.0.0.1:1001\"\nadmin_listen = \"127.0.0.1:1002\"\n\n[limits]\nbody_bytes = \"1 MiB\"\nstall_s = 7\n",
    );
    let env = [
        ("FORKPOINT_CONFIG", "f.toml"),
        ("FORKPOINT_ADMIN_LISTEN", "127.0.0.1:2002"),
        ("FORKPOINT_LISTEN", "127.0.0.1:2001"),
        ("FORKPOINT_LIMITS__BODY_BYTES", "2 MiB"),
        ("FORKPOINT_IDENTITY__TENANT_HEADERS", "x-user, x-team"),
    ];
    let args = ["--listen", "127.0.0.1:3001", "--mode", "observe", "--store", "memory", "--json"];
    let run = check_config(dir.path(), &args, &env);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let json = run.json();
    for (path, value, origin) in [
        ("server.listen", "127.0.0.1:3001".into(), "--listen"),
        ("server.admin_listen", "127.0.0.1:2002".into(), "FORKPOINT_ADMIN_LISTEN"),
        ("server.mode", "observe".into(), "--mode"),
        ("store.kind", "memory".into(), "--store"),
        ("limits.body_bytes", (2 << 20).into(), "FORKPOINT_LIMITS__BODY_BYTES"),
        ("limits.stall_s", serde_json::Value::from(7), "f.toml:7"),
        ("limits.header_s", 75.into(), "default"),
        ("identity.tenant_headers", vec!["x-user", "x-team"].into(), "FORKPOINT_IDENTITY__TENANT_HEADERS"),
    ] {
        let key = &json["keys"][path];
        assert_eq!((&key["value"], key["origin"].as_str()), (&value, Some(origin)), "{path}");
    }
}

#[test]
fn the_flag_names_the_file_before_the_environment_does() {
    let dir = folder_with("[drain]\ndelay_ms = 5\n");
    let run = check_config(dir.path(), &["--config", "f.toml"], &[("FORKPOINT_CONFIG", "nowhere.toml")]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(run.stdout.contains("delay_ms   = 5    # f.toml:2"), "{}", run.stdout);
}

#[test]
fn a_secret_prints_as_its_mask_and_the_mask_is_refused() {
    let env = [("FORKPOINT_IDENTITY__PEPPER", "hunter2")];
    for args in [&[][..], &["--json"]] {
        let run = check_config(Path::new("."), args, &env);
        assert_eq!(run.code, Some(0), "{}", run.stderr);
        assert!(run.stdout.contains("\"MASKED\"") && !run.stdout.contains("hunter2"), "{}", run.stdout);
    }
    let dir = folder_with(&check_config(Path::new("."), &[], &env).stdout);
    let run = check_config(dir.path(), &["--config", "f.toml"], &[]);
    assert_eq!(run.code, Some(64));
    assert!(run.stderr.contains("identity.pepper = MASKED: this is the mask"), "{}", run.stderr);
}

#[test]
fn a_store_url_prints_without_its_password_and_is_refused_so() {
    let env = [("FORKPOINT_STORE__URL", "redis://:hunter2@h:6379/1"), ("FORKPOINT_STORE", "redis")];
    let run = check_config(Path::new("."), &[], &env);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(run.stdout.contains("\"redis://MASKED@h:6379/1\"") && !run.stdout.contains("hunter2"));
    assert!(run.stdout.contains("a secret, refused if fed back masked"), "{}", run.stdout);
    let dir = folder_with(&run.stdout);
    let run = check_config(dir.path(), &["--config", "f.toml"], &[]);
    assert_eq!(run.code, Some(64));
    assert!(run.stderr.contains("this is the mask that check-config prints"), "{}", run.stderr);
}

#[test]
fn problems_of_all_layers_are_reported_at_once() {
    let dir = folder_with("[server]\nlisten = 5\n");
    let env = [("FORKPOINT_LIMITS__CONNECTIONS", "many"), ("FORKPOINT_SERVER__MOED", "observe")];
    let run = check_config(dir.path(), &["--config", "f.toml", "--upstream", "ftp://a"], &env);
    assert_eq!((run.code, run.stdout.as_str()), (Some(64), ""));
    assert_eq!(
        run.stderr,
        "\
error: 4 problems in the configuration

f.toml:2: server.listen = 5: a number where the key takes an IP address with a port, in quotes
  hint: leave the key out for its default, \"127.0.0.1:8787\"

FORKPOINT_LIMITS__CONNECTIONS: limits.connections = \"many\": not a whole number from 1 to 1000000
  hint: leave the key out for its default, 4096

FORKPOINT_SERVER__MOED: unknown variable
  hint: did you mean FORKPOINT_SERVER__MODE?

--upstream: upstream.url = \"ftp://a\": not an http or https URL
  hint: write it like https://api.anthropic.com
"
    );
}

#[test]
fn machines_get_the_problems_as_json_too() {
    let run = check_config(Path::new("."), &["--json", "--store", "radis"], &[]);
    assert_eq!(run.code, Some(64));
    let problem = &run.json()["problems"][0];
    assert_eq!(problem["origin"], "--store");
    assert_eq!(problem["subject"], "store.kind = \"radis\"");
}

#[test]
fn a_file_that_is_not_there_is_named_with_who_asked_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let by_flag = check_config(dir.path(), &["--config", "nowhere.toml"], &[]);
    let by_env = check_config(dir.path(), &[], &[("FORKPOINT_CONFIG", "nowhere.toml")]);
    assert_eq!((by_flag.code, by_env.code), (Some(64), Some(64)));
    assert!(
        by_flag.stderr.contains("--config: nowhere.toml: the file cannot be read: "),
        "{}",
        by_flag.stderr
    );
    assert!(
        by_env.stderr.contains("FORKPOINT_CONFIG: nowhere.toml: the file cannot be read: "),
        "{}",
        by_env.stderr
    );
    let empty = check_config(dir.path(), &[], &[("FORKPOINT_CONFIG", "")]);
    assert!(empty.stderr.contains("names no file"), "{}", empty.stderr);
}

#[test]
fn a_file_without_end_is_not_read_to_its_end() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("f.toml"), "#".repeat((1 << 20) + 1)).unwrap();
    let run = check_config(dir.path(), &["--config", "f.toml"], &[]);
    assert_eq!(run.code, Some(64));
    assert!(run.stderr.contains("larger than 1 MiB"), "{}", run.stderr);
}

#[test]
fn nesting_without_end_is_a_syntax_error() {
    for text in [format!("a = {}", "[".repeat(100_000)), format!("{} = 1", vec!["a"; 100_000].join("."))] {
        let dir = folder_with(&text);
        let run = check_config(dir.path(), &["--config", "f.toml"], &[]);
        assert_eq!(run.code, Some(64));
        assert!(run.stderr.contains("f.toml:1:"), "{}", run.stderr);
    }
}

#[cfg(unix)]
#[test]
fn an_environment_that_is_not_utf8_is_survived() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let run = std::process::Command::new(env!("CARGO_BIN_EXE_forkpoint"))
        .env_clear()
        .env("FOREIGN", OsStr::from_bytes(b"\xff"))
        .env("FORKPOINT_LOG__LEVEL", OsStr::from_bytes(b"info\xff"))
        .arg("check-config")
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(64));
    let stderr = String::from_utf8(run.stderr).unwrap();
    assert!(
        stderr.contains("1 problem") && stderr.contains("FORKPOINT_LOG__LEVEL: log.level: not UTF-8"),
        "{stderr}"
    );
}

#[test]
fn help_fits_a_terminal_and_shows_an_example() {
    let short = check_config(Path::new("."), &["-h"], &[]);
    assert_eq!(short.code, Some(0));
    assert!(short.stdout.lines().all(|line| line.chars().count() <= 79), "{}", short.stdout);
    let long = check_config(Path::new("."), &["--help"], &[]);
    for help in [&short.stdout, &long.stdout] {
        assert!(help.contains("forkpoint check-config --config forkpoint.toml"), "{help}");
    }
    assert!(long.stdout.contains("FORKPOINT_UPSTREAM"), "{}", long.stdout);
}

const TABLE: &str = "[m]\ninput = 3.0\nsource = \"a contract\"\nas_of = 2026-02-01\n";

#[test]
fn the_prices_in_force_are_named() {
    let dir = folder_with("[prices]\nfile = \"p.toml\"\n");
    std::fs::write(dir.path().join("p.toml"), TABLE).unwrap();
    let built_in = check_config(dir.path(), &[], &[]);
    let line = "# prices: built in; models 23, with a price 21, oldest figures 2026-11-16\n";
    assert!(built_in.stdout.contains(line), "{}", built_in.stdout);
    let own = check_config(dir.path(), &["--config", "f.toml"], &[]);
    let line = "# prices: \"p.toml\"; models 1, with a price 1, oldest figures 2026-02-01\n";
    assert!(own.stdout.contains(line), "{}", own.stdout);
    let env = [("FORKPOINT_PRICES__FILE", "p.toml")];
    let json = check_config(dir.path(), &["--json"], &env).json();
    let expected = serde_json::json!({"source": "p.toml", "models": 1, "priced": 1, "as_of": "2026-02-01"});
    assert_eq!(json["prices"], expected);
}

#[test]
fn a_price_table_that_cannot_be_used_is_refused_with_everything_else() {
    let dir = folder_with("[server]\nlisten = 5\n[prices]\nfile = \"p.toml\"\n");
    let missing = check_config(dir.path(), &["--config", "f.toml"], &[]);
    assert_eq!(missing.code, Some(64));
    assert!(missing.stderr.starts_with("error: 2 problems"), "{}", missing.stderr);
    assert!(missing.stderr.contains("f.toml:4: p.toml: the file cannot be read: "), "{}", missing.stderr);
    std::fs::write(dir.path().join("p.toml"), TABLE.replace("3.0", "\"3.0\"")).unwrap();
    let malformed = check_config(dir.path(), &["--config", "f.toml"], &[]);
    assert!(
        malformed.stderr.contains("p.toml:2: m.input = \"3.0\": not a number of USD per million tokens"),
        "{}",
        malformed.stderr
    );
}
