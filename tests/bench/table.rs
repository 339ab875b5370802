//! One table, two spellings: aligned for a terminal, pipes for `tests/README.md`.

pub struct Table {
    pub title: String,
    pub head: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(title: impl Into<String>, head: &[&str]) -> Table {
        Table {
            title: title.into(),
            head: head.iter().map(|cell| (*cell).to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    pub fn aligned(&self) -> String {
        let columns = self.head.len();
        let width = |column: usize| {
            let cells = self.rows.iter().chain([&self.head]).filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = format!("{}\n", self.title);
        for row in [&self.head].into_iter().chain(&self.rows) {
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
                // The first column is a name, the others are figures.
                if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            });
            text.push_str(&format!("  {}\n", cells.collect::<Vec<_>>().join("   ")));
        }
        text
    }

    pub fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let rule = format!("|{}\n", "---|".repeat(self.head.len()));
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        format!("{}\n\n{}{rule}{rows}", self.title, line(&self.head))
    }
}
