//! Any bytes as a configuration file load or are refused with their problems; what loads prints as a file
//! that loads to the same configuration.

#![no_main]

use std::fmt::Write;
use std::path::PathBuf;

use forkpoint::config::{self, Loaded, Overrides, Problems, SECTIONS, ShownValue, ValueOrigin};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    match load(bytes) {
        Err(problems) => {
            let lines = bytes.split(|byte| *byte == b'\n').count();
            for problem in problems.iter() {
                let ValueOrigin::File { line, .. } = problem.origin else { panic!("{problem}") };
                assert!((1..=lines).contains(&line), "{problem}");
                assert!(!problem.message.is_empty() && !problem.hint.is_empty(), "{problem}");
            }
            assert!(!problems.to_string().chars().any(|c| c.is_control() && c != '\n'), "{problems:?}");
        }
        Ok(loaded) => {
            let printed = print(&loaded);
            let again = load(printed.as_bytes()).unwrap_or_else(|problems| panic!("{problems}\n{printed}"));
            let (config, config_again) = (format!("{:?}", loaded.config), format!("{:?}", again.config));
            assert_eq!(config, config_again, "{printed}");
        }
    }
});

/// The loader reads files only, so the bytes become one, in memory where the system has such a folder.
fn load(bytes: &[u8]) -> Result<Loaded, Problems> {
    let memory = PathBuf::from("/dev/shm");
    let folder = if memory.is_dir() { memory } else { std::env::temp_dir() };
    let path = folder.join(format!("forkpoint-fuzz-{}.toml", std::process::id()));
    std::fs::write(&path, bytes).expect("a folder for temporary files");
    let overrides = Overrides { config: Some(path.clone()), ..Overrides::default() };
    let loaded = config::load(&overrides, [("", ""); 0]);
    let _ = std::fs::remove_file(path);
    loaded
}

/// As `check-config` prints it, without the secrets, whose mask is refused by intent.
fn print(loaded: &Loaded) -> String {
    let mut text = String::new();
    for section in SECTIONS {
        let _ = writeln!(text, "[{}]", section.name);
        for setting in loaded.settings().filter(|setting| setting.key.section() == section.name) {
            if setting.value != ShownValue::Masked {
                let (name, value, origin) = (setting.key.name(), setting.value.to_toml(), setting.origin);
                let _ = writeln!(text, "{name} = {value}  # {origin}");
            }
        }
        if section.name == "tenants" {
            for tenant in loaded.tenant_names() {
                let name = ShownValue::Text(tenant.name.to_owned()).to_toml();
                let _ = writeln!(text, "{} = {name}  # {}", tenant.digest, tenant.origin);
            }
        }
    }
    text
}
