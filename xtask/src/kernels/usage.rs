//! What the assembler reports of each kernel, and which spills a source declares.

/// What a kernel takes.
#[derive(PartialEq, Debug)]
pub struct Usage {
    pub name: String,
    pub registers: u64,
    pub shared_bytes: u64,
    pub spill_bytes: u64,
}

/// Reads the assembler's report.
pub fn usage(log: &str) -> Vec<Usage> {
    let mut found = Vec::new();
    let (mut name, mut spill_bytes) = (None, 0);
    for line in log.lines() {
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            name = rest.split('\'').next().map(str::to_owned);
        } else if line.contains("bytes spill stores") {
            spill_bytes = number_before(line, " bytes spill stores").max(number_before(line, " bytes spill loads"));
        } else if line.contains("Used ")
            && let Some(name) = name.take()
        {
            let registers = number_before(line, " registers");
            found.push(Usage { name, registers, shared_bytes: number_before(line, " bytes smem"), spill_bytes });
            spill_bytes = 0;
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// The number that stands before these words; 0 if there is none.
fn number_before(line: &str, words: &str) -> u64 {
    let before = line.split(words).next().filter(|b| b.len() < line.len()).unwrap_or_default();
    before.rsplit(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// Bytes that a source allows a kernel to spill.
pub fn declared_spills(text: &str, kernel: &str) -> u64 {
    let lines = text.lines().filter_map(|l| l.strip_prefix("// spills: "));
    lines
        .filter_map(|l| l.split_once(' '))
        .find(|(name, _)| *name == kernel)
        .map_or(0, |(_, n)| n.trim().parse().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "stamp
ptxas info    : Compiling entry function 'b_bf16' for 'sm_90a'
ptxas info    : Function properties for b_bf16
    56 bytes stack frame, 92 bytes spill stores, 104 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 56 bytes cumulative stack size
ptxas info    : Compiling entry function 'a_f32' for 'sm_90a'
ptxas info    : Function properties for a_f32
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 8192 bytes smem
";

    #[test]
    fn the_assemblers_report_is_read() {
        let of = |name: &str, registers, shared_bytes, spill_bytes| Usage {
            name: name.into(),
            registers,
            shared_bytes,
            spill_bytes,
        };
        assert_eq!(usage(LOG), [of("a_f32", 40, 8192, 0), of("b_bf16", 255, 0, 104)]);
    }

    #[test]
    fn declared_spills_are_a_kernels_own() {
        let text = "// Formula.\n// spills: b_bf16 104\n";
        assert_eq!(declared_spills(text, "b_bf16"), 104);
        assert_eq!(declared_spills(text, "a_f32"), 0);
    }
}
