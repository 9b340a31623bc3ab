//! Units of measure for people: bytes in and out.

/// `1536` -> `1.50 KiB`.
pub fn fmt_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.2} {}", UNITS[unit]) }
}

/// Reads `4096`, `512MiB`, `1.5GB`, `2g`: binary for `K`, `Ki`, `KiB`, ...; decimal for `KB`, `MB`, ... .
///
/// # Errors
/// A sentence that says what was expected.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let bad = || format!("`{text}` is not a size in bytes; write for example 512MiB, 24GB or 1073741824");
    let number: f64 = number.parse().map_err(|_| bad())?;
    let unit = unit.trim().to_ascii_lowercase();
    let power = match unit.chars().next() {
        None | Some('b') if unit.len() <= 1 => 0,
        Some('k') => 1,
        Some('m') => 2,
        Some('g') => 3,
        Some('t') => 4,
        _ => return Err(bad()),
    };
    let base: f64 = match unit.get(1..).unwrap_or("") {
        "" | "i" | "ib" => 1024.0,
        "b" => 1000.0,
        _ => return Err(bad()),
    };
    let bytes = number * base.powi(power);
    if bytes.is_finite() && bytes < u64::MAX as f64 { Ok(bytes as u64) } else { Err(bad()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_and_print() {
        for (text, bytes) in
            [("4096", 4096), ("2KiB", 2048), ("2k", 2048), ("1.5GB", 1_500_000_000), ("1 GiB", 1 << 30), ("7b", 7)]
        {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "GiB", "1.2.3", "5xb", "-1", "1e400g", "9999999999999T"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
        assert_eq!(fmt_bytes(1536), "1.50 KiB");
    }
}
