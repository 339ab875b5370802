//! The figures of the README are those of the tables in `tests/README.md`.

use super::read;

/// Returns the cells of the row of a page that begins with these words, the first aside, under a heading or sentence.
fn row(page: &str, under: &str, first: &str) -> Vec<String> {
    let text = read(page);
    let (_, below) = text.split_once(under).unwrap_or_else(|| panic!("{page} has no {under:?}"));
    let start = format!("| {first} |");
    let row =
        below.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("{page}: {start}"));
    row.trim_matches('|').split('|').skip(1).map(|cell| cell.trim().to_owned()).collect()
}

#[test]
fn the_latency_of_the_readme_is_that_of_the_table() {
    let measured = row("tests/README.md", "Added latency, µs: p50", "forkpoint-align");
    let p50 = |cell: &String| cell.split(' ').next().unwrap().parse::<u32>().unwrap();
    let [small, large] = [0, 1].map(|column| p50(&measured[column]));
    let shown = row("README.md", "## Figures", "latency that `align` adds at 24 KB and 200 KB (p50)");
    assert_eq!(shown, [format!("{small} and {large} µs")]);
}

#[test]
fn the_memory_of_the_readme_is_that_of_the_table() {
    let name = "peak memory beyond what the store holds";
    let measured = row("tests/README.md", "### Guard rails", name);
    let mb = |cell: &String| cell.split(' ').next().unwrap().parse::<u32>().unwrap();
    let modes: Vec<u32> = measured[..3].iter().map(mb).collect();
    // What these are differences of is in the table of resident memory.
    for (mode, difference) in ["observe", "align", "fork"].iter().zip(&modes) {
        let cells = row("tests/README.md", "Resident memory, MB:", &format!("forkpoint-{mode}"));
        let [peak, held] = [3, 4].map(|column| cells[column].parse::<f64>().unwrap());
        assert!((peak - held - f64::from(*difference)).abs() <= 1.0, "{mode}: {peak} less {held}");
    }
    let (least, most) = (modes.iter().min().unwrap(), modes.iter().max().unwrap());
    let shown =
        row("README.md", "## Figures", "memory beyond what the store holds, at the peak of the bench");
    assert_eq!(shown, [format!("{least} to {most} MB")]);
}
