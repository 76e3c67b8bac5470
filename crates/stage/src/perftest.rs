//! Parses the output of perftest's programs.

use anyhow::{Context, Result};

/// A line of a result table.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Message size, bytes.
    pub bytes: u64,
    pub iterations: u64,
    /// Name without its unit, unit, value, in the order of the table.
    pub columns: Vec<(String, String, f64)>,
}

/// The rows of all tables in the output.
pub fn rows(stdout: &str) -> Vec<Row> {
    let mut header: Vec<(String, String)> = vec![];
    let mut rows = vec![];
    for line in stdout.lines() {
        let line = line.trim();
        if line.starts_with("#bytes") {
            header = columns(line);
        } else if let Some(row) = row(line, &header) {
            rows.push(row);
        }
    }
    rows
}

/// The only row of the output.
pub fn row_of(stdout: &str) -> Result<Row> {
    let mut rows = rows(stdout);
    let row = rows.pop().with_context(|| format!("no result in\n{stdout}"))?;
    anyhow::ensure!(rows.is_empty(), "more than one result in\n{stdout}");
    Ok(row)
}

impl Row {
    /// A column by its name without unit, such as `t_typical` or `BW average`.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.columns.iter().find(|(column, ..)| column == name).map(|(.., value)| *value)
    }

    /// Average throughput, GB/s (10^9 bytes).
    pub fn gigabytes(&self) -> Result<f64> {
        let (_, unit, value) =
            self.columns.iter().find(|(name, ..)| name == "BW average").context("no bandwidth in the result")?;
        match unit.as_str() {
            "Gb/sec" => Ok(value / 8.0),
            // perftest prints MB for 2^20 bytes.
            "MB/sec" | "MiB/sec" => Ok(value * f64::from(1 << 20) / 1e9),
            unit => anyhow::bail!("unknown unit of bandwidth {unit}"),
        }
    }

    /// Messages per second, millions.
    pub fn rate(&self) -> Result<f64> {
        self.get("MsgRate").context("no message rate in the result")
    }
}

/// Column names and units, such as `t_min[usec]`, `BW peak[MB/sec]`, `99% percentile[usec]`. Single spaces occur within
/// names and between columns, so columns are split at `]`.
fn columns(header: &str) -> Vec<(String, String)> {
    let rest = header.trim_start_matches("#bytes").trim_start().trim_start_matches("#iterations");
    rest.split_inclusive(']')
        .filter_map(|part| {
            let (name, unit) = part.trim().trim_end_matches(']').split_once('[')?;
            Some((name.trim().to_owned(), unit.to_owned()))
        })
        .collect()
}

fn row(line: &str, header: &[(String, String)]) -> Option<Row> {
    let mut words = line.split_whitespace();
    let bytes = words.next()?.parse().ok()?;
    let iterations = words.next()?.parse().ok()?;
    let values: Vec<f64> = words.map_while(|word| word.parse().ok()).collect();
    if header.is_empty() || values.is_empty() {
        return None;
    }
    let columns = header.iter().zip(values).map(|((name, unit), value)| (name.clone(), unit.clone(), value)).collect();
    Some(Row { bytes, iterations, columns })
}

#[cfg(test)]
mod tests {
    use super::*;

    // The format of perftest 6.06's tables.
    const BANDWIDTH: &str = "\
---------------------------------------------------------------------------------------
 remote address: LID 0000 QPN 0x0013 PSN 0xd7ef3e RKey 0x001c00 VAddr 0x007f6b8a
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 2          5000             12.50              10.00              5.242880
 8388608    5                5000.00            4768.37            0.000596
---------------------------------------------------------------------------------------
";
    const LATENCY: &str = "\
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 8       1000          3.10           60.20        3.50               3.70           0.40            9.10                   60.20
";

    #[test]
    fn bandwidth_in_both_units() {
        let rows = rows(BANDWIDTH);
        assert_eq!(rows.iter().map(|row| (row.bytes, row.iterations)).collect::<Vec<_>>(), [(2, 5000), (8388608, 5)]);
        assert!((rows[1].gigabytes().unwrap() - 5.0).abs() < 1e-4);
        assert_eq!(rows[0].rate().unwrap(), 5.242880);
        let gbits = row_of("#bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]\n8 5 50.0 40.0 1.0");
        assert_eq!(gbits.unwrap().gigabytes().unwrap(), 5.0);
    }

    #[test]
    fn latency_columns_by_name() {
        let row = row_of(LATENCY).unwrap();
        assert_eq!((row.get("t_typical"), row.get("99% percentile")), (Some(3.5), Some(9.1)));
        assert_eq!(row.get("99.9% percentile"), Some(60.2));
        assert!(row.gigabytes().is_err());
    }

    #[test]
    fn output_without_a_table_is_an_error() {
        assert!(row_of("Couldn't connect to 127.0.0.1:18515\n").is_err());
    }
}
