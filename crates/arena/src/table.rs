//! The printed plan: a table by group, and with `{:#}` a list of every region.

use crate::plan::{Backing, Kind, Plan, Reservation};
use megatrain_base::fmt_bytes;
use std::fmt;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<18} {:>8} {:>12} {:>12}", "memory plan", "regions", "memory", "files")?;
        let mut row = |name: &str, regions: usize, memory: u64, files: u64| {
            let files = if files == 0 { "-".into() } else { fmt_bytes(files) };
            writeln!(f, "{name:<18} {regions:>8} {:>12} {files:>12}", fmt_bytes(memory))
        };
        for kind in Kind::ALL {
            let regions = self.regions().iter().filter(|r| r.kind == kind).count();
            if regions > 0 {
                row(&kind.to_string(), regions, self.memory_bytes(kind), self.file_bytes(kind))?;
            }
        }
        let allowed = self.allowances().iter().map(|(_, bytes)| *bytes).fold(0, u64::saturating_add);
        if allowed > 0 {
            row("outside the arena", 0, allowed, 0)?;
        }
        let memory = self.sum(|r| r.backing == Backing::Anonymous).saturating_add(allowed);
        row("total", self.regions().len(), memory, self.sum(|r| r.backing != Backing::Anonymous))?;
        if self.pinned_bytes() > 0 {
            writeln!(f, "to be page-locked where a device asks for it: {}", fmt_bytes(self.pinned_bytes()))?;
        }
        if f.alternate() { self.list(f) } else { Ok(()) }
    }
}

impl Plan {
    fn list(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let allowances = self.allowances();
        let names = self.regions().iter().map(|r| &r.name).chain(allowances.iter().map(|(name, _)| name));
        let width = names.map(|name| name.chars().count()).max().unwrap_or(0).max("region".len());
        writeln!(f, "\n{:>5} {:<width$} {:<15} {:>16} {:>12}  place", "#", "region", "group", "bytes", "size")?;
        for (i, r) in self.regions().iter().enumerate() {
            let size = fmt_bytes(r.bytes);
            writeln!(f, "{i:>5} {:<width$} {:<15} {:>16} {size:>12}  {}", r.name, r.kind, r.bytes, place(r))?;
        }
        for (name, bytes) in allowances {
            let size = fmt_bytes(*bytes);
            writeln!(f, "{:>5} {name:<width$} {:<15} {bytes:>16} {size:>12}  outside the arena", "", "")?;
        }
        Ok(())
    }
}

fn place(r: &Reservation) -> String {
    let mut place = match &r.backing {
        Backing::Anonymous => "memory".to_string(),
        Backing::NewFile(path) => format!("new file {}", path.display()),
        Backing::ExistingFile(path) => format!("file {}", path.display()),
    };
    if let Some(node) = r.node {
        place += &format!(", node {node}");
    }
    if r.pinned {
        place += ", pinned";
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_totals_and_list_are_what_people_read() {
        let mut plan = Plan::new();
        plan.reserve("moments[0]", Kind::OptimizerState, 8 << 20);
        plan.add(Reservation::new("weights[0]", Kind::Weights, 3 << 20).on_node(1).pinned());
        plan.add(Reservation::new("spill", Kind::Activations, 4096).backed_by(Backing::NewFile("/nvme/spill".into())));
        plan.reserve("odd", Kind::Weights, 1);
        plan.allow_for("export: one shard", 1 << 20);
        assert_eq!(
            plan.to_string(),
            "memory plan         regions       memory        files\n\
             weights                   2     3.00 MiB            -\n\
             optimizer state           1     8.00 MiB            -\n\
             activations               1          0 B     4.00 KiB\n\
             outside the arena         0     1.00 MiB            -\n\
             total                     4    12.00 MiB     4.00 KiB\n\
             to be page-locked where a device asks for it: 3.00 MiB\n"
        );
        let list = format!("{plan:#}");
        for line in [
            "    0 moments[0]        optimizer state          8388608     8.00 MiB  memory\n",
            "    1 weights[0]        weights                  3145728     3.00 MiB  memory, node 1, pinned\n",
            "    2 spill             activations                 4096     4.00 KiB  new file /nvme/spill\n",
            "    3 odd               weights                        1          1 B  memory\n",
            "      export: one shard                          1048576     1.00 MiB  outside the arena\n",
        ] {
            assert!(list.contains(line), "{line:?} is not in\n{list}");
        }
    }

    #[test]
    fn a_plan_with_impossible_sizes_still_prints() {
        let mut plan = Plan::new();
        plan.reserve("a", Kind::Weights, u64::MAX);
        plan.reserve("b", Kind::Weights, u64::MAX);
        assert!(format!("{plan:#}").contains("18446744073709551615"));
        assert!(Plan::new().to_string().contains("total                     0          0 B            -\n"));
    }
}
