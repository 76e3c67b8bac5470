//! Measurements as a table for other programs (CSV, RFC 4180).

use std::fmt::Write;

/// Named columns, and rows of cells.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Data {
    /// Header of each column, with its unit.
    pub columns: Vec<&'static str>,
    pub rows: Vec<Vec<Cell>>,
}

/// A value of the table.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    Number(f64),
    Text(String),
}

/// With four significant digits.
pub fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(f64::NAN)
}

/// "32 KiB", "1 MiB"; other numbers of bytes as "100 B".
pub fn size_name(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 20 && b.is_multiple_of(1 << 20) => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 && b.is_multiple_of(1 << 10) => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
    }
}

impl Data {
    /// A table without rows.
    pub fn new<const N: usize>(columns: [&'static str; N]) -> Data {
        Data { columns: columns.into(), rows: vec![] }
    }

    /// Adds a row, which must have as many cells as there are columns.
    pub fn push<const N: usize>(&mut self, cells: [Cell; N]) {
        debug_assert_eq!(N, self.columns.len());
        self.rows.push(cells.into());
    }

    /// The table as CSV; NaN and infinite numbers are empty cells.
    pub fn csv(&self) -> String {
        let mut text = self.columns.join(",") + "\n";
        for row in &self.rows {
            let cells: Vec<String> = row.iter().map(Cell::csv).collect();
            let _ = writeln!(text, "{}", cells.join(","));
        }
        text
    }
}

impl Cell {
    fn csv(&self) -> String {
        match self {
            Cell::Number(value) if value.is_finite() => value.to_string(),
            Cell::Number(_) => String::new(),
            Cell::Text(text) if text.contains([',', '"', '\n']) => format!("\"{}\"", text.replace('"', "\"\"")),
            Cell::Text(text) => text.clone(),
        }
    }
}

impl From<f64> for Cell {
    fn from(value: f64) -> Cell {
        Cell::Number(value)
    }
}

impl From<u32> for Cell {
    fn from(value: u32) -> Cell {
        Cell::Number(value.into())
    }
}

impl From<usize> for Cell {
    fn from(value: usize) -> Cell {
        Cell::Number(value as f64)
    }
}

impl From<u64> for Cell {
    fn from(value: u64) -> Cell {
        Cell::Number(value as f64)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell::Text(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_with_commas_or_quotes_are_quoted() {
        let mut data = Data::new(["side", "ms"]);
        data.push(["client, \"both\"".into(), 1.5.into()]);
        data.push(["none".into(), f64::NAN.into()]);
        assert_eq!(data.csv(), "side,ms\n\"client, \"\"both\"\"\",1.5\nnone,\n");
    }
}
