//! Terminal output, compared with files.

use std::path::Path;

/// Compares with a file in `tests/golden/terminal`, or writes it with `UPDATE=1`.
pub fn assert_golden(name: &str, actual: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/terminal").join(name);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, actual).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(expected == actual, "{name} differs; run again with UPDATE=1 and look at the change:\n{actual}");
}
