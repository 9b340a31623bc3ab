//! Dates for templates that print one: `strftime` in UTC.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Seconds since 1970 now.
pub(super) fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

/// `(year, month 1..=12, day 1..=31)` of a day counted from 1970-01-01, by the proleptic Gregorian calendar. Source: H.
/// Hinnant, "chrono-compatible low-level date algorithms": years begin in March, so that the leap day ends them.
fn civil(days: i64) -> (i64, usize, i64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month as usize, day)
}

/// Formats a moment (seconds since 1970, UTC) by C's `strftime` codes, those that a date or time of day needs; `%-d` and
/// the like leave out leading zeros. The error is the unknown code.
pub(super) fn strftime(seconds: i64, format: &str) -> Result<String, String> {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let weekday = (days + 4).rem_euclid(7) as usize;
    let new_year = {
        let january_first = |days: i64| civil(days) == (year, 1, 1);
        (0..366).find(|back| january_first(days - back)).expect("a year has at most 366 days")
    };
    let hour = second / 3600;
    let twelve = if hour % 12 == 0 { 12 } else { hour % 12 };
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let code = chars.next().unwrap_or('%');
        let (plain, code) = if code == '-' { (true, chars.next().unwrap_or('-')) } else { (false, code) };
        let mut number = |value: i64, width: usize| {
            let width = if plain { 0 } else { width };
            write!(out, "{value:0width$}").expect("a string takes everything");
        };
        match code {
            'Y' => number(year, 4),
            'y' => number(year.rem_euclid(100), 2),
            'm' => number(month as i64, 2),
            'd' => number(day, 2),
            'j' => number(new_year + 1, 3),
            'H' => number(hour, 2),
            'I' => number(twelve, 2),
            'M' => number(second / 60 % 60, 2),
            'S' => number(second % 60, 2),
            'w' => number(weekday as i64, 1),
            'e' => write!(out, "{day:2}").expect("a string takes everything"),
            'B' => out.push_str(MONTHS[month - 1]),
            'b' | 'h' => out.push_str(&MONTHS[month - 1][..3]),
            'A' => out.push_str(DAYS[weekday]),
            'a' => out.push_str(&DAYS[weekday][..3]),
            'p' => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            'F' => out.push_str(&strftime(seconds, "%Y-%m-%d")?),
            'T' => out.push_str(&strftime(seconds, "%H:%M:%S")?),
            'D' => out.push_str(&strftime(seconds, "%m/%d/%y")?),
            'R' => out.push_str(&strftime(seconds, "%H:%M")?),
            'Z' => out.push_str("UTC"),
            '%' => out.push('%'),
            other => return Err(format!("%{other}")),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ```python
    /// from datetime import datetime, timezone
    /// f = "%Y-%m-%d %H:%M:%S %A %a %B %b %d %-d %j %y %I %p %%"
    /// for s in (0, 951782400, 1735689599, 1735689600, 4107542400, -1): print(datetime.fromtimestamp(s, timezone.utc).strftime(f))
    /// ```
    #[test]
    fn dates_are_pythons() {
        let format = "%Y-%m-%d %H:%M:%S %A %a %B %b %d %-d %j %y %I %p %%";
        let expected = [
            (0, "1970-01-01 00:00:00 Thursday Thu January Jan 01 1 001 70 12 AM %"),
            (951_782_400, "2000-02-29 00:00:00 Tuesday Tue February Feb 29 29 060 00 12 AM %"),
            (1_735_689_599, "2024-12-31 23:59:59 Tuesday Tue December Dec 31 31 366 24 11 PM %"),
            (1_735_689_600, "2025-01-01 00:00:00 Wednesday Wed January Jan 01 1 001 25 12 AM %"),
            (4_107_542_400, "2100-03-01 00:00:00 Monday Mon March Mar 01 1 060 00 12 AM %"),
            (-1, "1969-12-31 23:59:59 Wednesday Wed December Dec 31 31 365 69 11 PM %"),
        ];
        for (seconds, text) in expected {
            assert_eq!(strftime(seconds, format).unwrap(), text);
        }
        assert_eq!(strftime(0, "%Q"), Err("%Q".to_owned()));
    }
}
