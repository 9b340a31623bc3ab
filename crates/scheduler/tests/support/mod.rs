//! Generated worlds and programs, and an interpreter that runs them on real bytes in any legal order.
#![allow(dead_code, reason = "each test binary uses its part")]

use megatrain_base::{Access, Command, Rank, RegionId, Span, Work};
use megatrain_scheduler::{
    Builder, Cmd, Collective, Contract, Entry, EventId, Label, LaneId, LaneKind, Phase, Program, Space,
};
use proptest::prelude::*;
use std::sync::Arc;

/// Bytes of every region: few, so that commands meet.
pub const REGION_BYTES: u64 = 24;

/// An op or host task that writes a hash of what it reads.
#[derive(Clone, PartialEq, Debug)]
pub struct Toy {
    pub seed: u64,
    pub spans: Vec<(Span, Access)>,
}

impl Command for Toy {
    fn name(&self) -> &'static str {
        "toy"
    }
    fn accesses(&self, visit: &mut dyn FnMut(Span, Access)) {
        self.spans.iter().for_each(|(span, access)| visit(*span, *access));
    }
    fn work(&self) -> Work {
        Work { flops: 1e6, bytes: self.spans.iter().map(|(s, _)| s.len_bytes as f64).sum() }
    }
}

pub type ToyProgram = Program<Toy, Toy>;

/// Numbers a generated command is read from.
pub type Raw = [u16; 8];

pub fn raws(max: usize) -> impl Strategy<Value = Vec<Raw>> {
    proptest::collection::vec(any::<Raw>(), 1..max)
}

/// Regions: host (defined), host scratch, file (defined), then a device per rank. Lanes: update, data, io, then h2d,
/// compute, d2h per rank. Every region is cut in guards; guards are dealt to boundaries.
pub fn contract(ranks: u16, cuts: &[u16]) -> Contract {
    let mut c = Contract::default();
    c.region("host", Space::Host, REGION_BYTES, true);
    c.region("scratch", Space::Host, REGION_BYTES, false);
    c.region("file", Space::File, REGION_BYTES, true);
    for kind in [LaneKind::Update, LaneKind::Data, LaneKind::Io] {
        c.lane(rank(0), kind);
    }
    for r in 0..ranks {
        c.region(format!("device{r}"), Space::Device(rank(r)), REGION_BYTES, false);
        for kind in [LaneKind::H2d, LaneKind::Compute, LaneKind::D2h] {
            c.lane(rank(r), kind);
        }
    }
    let mut dealt = vec![Vec::new(); 1 + cuts.len() / 2];
    let boundaries = dealt.len();
    let mut number = 0;
    for region in 0..c.regions.len() {
        let mut at = 0;
        while at < REGION_BYTES {
            let cut = cuts.get(number % cuts.len().max(1)).copied().unwrap_or(7);
            let len = (1 + u64::from(cut) % 16).min(REGION_BYTES - at);
            dealt[number % boundaries].push(Span::new(RegionId(region as u32), at, len));
            at += len;
            number += 1;
        }
    }
    for (b, guards) in dealt.into_iter().enumerate() {
        c.boundary(format!("boundary{b}"), guards);
    }
    c
}

pub fn rank(local: u16) -> Rank {
    Rank { node: 0, local }
}

/// Reads commands from `raws`, leaving out what the contract or the definedness of bytes does not allow.
pub fn build(contract: &Arc<Contract>, raws: &[Raw]) -> ToyProgram {
    let mut builder: Builder<Toy, Toy> = Builder::new("generated", contract.clone());
    let ranks = (contract.lanes.len() - 3) / 3;
    let mut defined: Vec<Vec<bool>> =
        contract.regions.iter().map(|r| vec![r.defined_at_entry; r.len_bytes as usize]).collect();
    for (number, raw) in raws.iter().enumerate() {
        builder.label(Label { phase: Phase::Forward, unit: None, micro: Some(number as u32) });
        let lane = LaneId(raw[0] % contract.lanes.len() as u16);
        let Lane { kind, rank: home } = contract.lanes[lane.0 as usize].into();
        let device = 3 + u32::from(home.local);
        let host = u32::from(raw[1] % 2);
        let (a, b) = (span(host, raw[2], raw[3]), span(device, raw[4], raw[3]));
        let file = span(2, raw[4], raw[3]);
        match kind {
            LaneKind::H2d | LaneKind::D2h | LaneKind::Compute if raw[1] % 5 == 4 && ranks > 1 => {
                let group: Arc<[Rank]> =
                    (0..ranks as u16).filter(|r| ranks == 2 || *r != raw[7] % ranks as u16).map(rank).collect();
                for member in group.iter() {
                    let own = LaneId(3 + 3 * member.local + (lane.0 % 3));
                    let device = 3 + u32::from(member.local);
                    let salt = raw[5].wrapping_mul(member.local + 3);
                    let accesses = spans(&mut defined, &[device], &[salt, raw[4], raw[3]]);
                    let (kind, tag, group) = ("all_reduce", number as u32, group.clone());
                    builder.collective(own, Collective { kind, group, tag, accesses });
                }
            }
            LaneKind::H2d if is_defined(&defined, a) => copy(&mut builder, &mut defined, lane, a, b),
            LaneKind::D2h if is_defined(&defined, b) => copy(&mut builder, &mut defined, lane, b, a),
            LaneKind::Io if raw[1] % 3 == 1 => copy(&mut builder, &mut defined, lane, file, a),
            LaneKind::Io if raw[1] % 3 == 2 && is_defined(&defined, a) => {
                copy(&mut builder, &mut defined, lane, a, file);
            }
            LaneKind::H2d | LaneKind::D2h => {}
            LaneKind::Compute => {
                let spans = spans(&mut defined, &[device], &raw[2..]);
                builder.launch(lane, Toy { seed: number as u64, spans });
            }
            LaneKind::Update | LaneKind::Data | LaneKind::Io => {
                let spans = spans(&mut defined, &[0, 1, 2], &raw[2..]);
                builder.host(lane, Toy { seed: number as u64, spans });
            }
        }
    }
    builder.finish().expect("generated commands are valid")
}

struct Lane {
    kind: LaneKind,
    rank: Rank,
}

impl From<megatrain_scheduler::Lane> for Lane {
    fn from(lane: megatrain_scheduler::Lane) -> Self {
        Lane { kind: lane.kind, rank: lane.rank }
    }
}

fn copy(builder: &mut Builder<Toy, Toy>, defined: &mut [Vec<bool>], lane: LaneId, src: Span, dst: Span) {
    define(defined, dst);
    builder.copy(lane, src, dst);
}

fn span(region: u32, start: u16, len: u16) -> Span {
    let start = u64::from(start) % REGION_BYTES;
    // The other end of a copy may start later: keep the length common by making both short.
    let len = (1 + u64::from(len) % 8).min(REGION_BYTES);
    Span::new(RegionId(region), start.min(REGION_BYTES - len), len)
}

/// Up to three accesses; reads of undefined bytes become writes, and what conflicts within the command is left out.
fn spans(defined: &mut [Vec<bool>], regions: &[u32], raw: &[u16]) -> Vec<(Span, Access)> {
    let mut out: Vec<(Span, Access)> = Vec::new();
    for (i, &number) in raw.iter().enumerate().take(3) {
        let region = regions[usize::from(number / 7) % regions.len()];
        let span = span(region, number, number / 64 + i as u16);
        let mut access = [Access::Read, Access::Read, Access::Write, Access::Update][usize::from(number / 512) % 4];
        if access.reads() && !is_defined(defined, span) {
            access = Access::Write;
        }
        if !out.iter().any(|(s, a)| s.overlaps(&span) && a.conflicts(access)) {
            out.push((span, access));
        }
    }
    out.iter().filter(|(_, a)| a.writes()).for_each(|(s, _)| define(defined, *s));
    out
}

fn is_defined(defined: &[Vec<bool>], span: Span) -> bool {
    defined[span.region.0 as usize][span.offset_bytes as usize..span.end_bytes() as usize].iter().all(|d| *d)
}

fn define(defined: &mut [Vec<bool>], span: Span) {
    defined[span.region.0 as usize][span.offset_bytes as usize..span.end_bytes() as usize].fill(true);
}

/// Bytes of all regions.
pub type Memory = Vec<Vec<u8>>;

pub fn fresh(contract: &Contract) -> Memory {
    (0u8..).zip(&contract.regions).map(|(r, spec)| (0..spec.len_bytes as u8).map(|i| r * 31 + i).collect()).collect()
}

/// Does what the members of one meeting, or one ordinary command, do.
pub fn execute(commands: &[&Cmd<Toy, Toy>], memory: &mut Memory) {
    if let [Cmd::Copy { src, dst }] = commands {
        let bytes = memory[src.region.0 as usize][src.offset_bytes as usize..src.end_bytes() as usize].to_vec();
        memory[dst.region.0 as usize][dst.offset_bytes as usize..dst.end_bytes() as usize].copy_from_slice(&bytes);
        return;
    }
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut mix = |byte: u8| hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    for cmd in commands {
        if let Cmd::Launch(toy) | Cmd::Host(toy) = cmd {
            mix(toy.seed as u8);
        }
        cmd.accesses(&mut |span, access| {
            if access.reads() {
                let bytes = &memory[span.region.0 as usize][span.offset_bytes as usize..span.end_bytes() as usize];
                bytes.iter().for_each(|b| mix(*b));
            }
        });
    }
    for cmd in commands {
        cmd.accesses(&mut |span, access| {
            if access.writes() {
                let start = span.offset_bytes;
                let bytes = &mut memory[span.region.0 as usize][start as usize..span.end_bytes() as usize];
                bytes.iter_mut().zip(start..).for_each(|(b, i)| *b = (hash >> (i % 8 * 8)) as u8 ^ i as u8);
            }
        });
    }
}

/// A run of several programs, one issued after the other, in an order that `pick` chooses among the lanes that can go.
/// Returns `false` when lanes are left that cannot.
pub fn run(programs: &[ToyProgram], memory: &mut Memory, mut pick: impl FnMut(usize) -> usize) -> bool {
    let contract = &programs[0].contract;
    let flat: Vec<(usize, &Entry<Toy, Toy>)> =
        programs.iter().enumerate().flat_map(|(p, program)| program.commands.iter().map(move |e| (p, e))).collect();
    let boundaries = contract.boundaries.len() as u32;
    let mut last_record = std::collections::HashMap::new();
    let mut target = vec![None; flat.len()];
    let mut lanes = vec![Vec::new(); contract.lanes.len()];
    for (index, (p, entry)) in flat.iter().enumerate() {
        let key = |e: EventId| (if e.0 < boundaries { 0 } else { p + 1 }, e);
        match entry.cmd {
            Cmd::Record(e) => drop(last_record.insert(key(e), index)),
            Cmd::Wait(e) => target[index] = last_record.get(&key(e)).copied(),
            _ => {}
        }
        lanes[entry.lane.0 as usize].push(index);
    }
    let (mut done, mut next) = (vec![false; flat.len()], vec![0; lanes.len()]);
    loop {
        let front: Vec<Option<usize>> = lanes.iter().zip(&next).map(|(l, n)| l.get(*n).copied()).collect();
        // The members of the meeting that the collective at the front of a lane belongs to, if all are there.
        let meeting = |index: usize| -> Option<Vec<usize>> {
            let (p, entry) = flat[index];
            let Cmd::Collective(own) = &entry.cmd else { return Some(vec![index]) };
            let kind = contract.lanes[entry.lane.0 as usize].kind;
            let member = |rank: &Rank| {
                front.iter().flatten().copied().find(|&i| {
                    let lane = contract.lanes[flat[i].1.lane.0 as usize];
                    matches!(&flat[i].1.cmd, Cmd::Collective(c)
                        if flat[i].0 == p && c.tag == own.tag && c.group == own.group && lane.rank == *rank && lane.kind == kind)
                })
            };
            own.group.iter().map(member).collect()
        };
        let ready: Vec<Vec<usize>> = front
            .iter()
            .flatten()
            .filter(|&&i| !matches!(flat[i].1.cmd, Cmd::Wait(_)) || target[i].is_none_or(|t| done[t]))
            .filter_map(|&i| meeting(i))
            .collect();
        if ready.is_empty() {
            return front.iter().all(Option::is_none);
        }
        let chosen = &ready[pick(ready.len())];
        let commands: Vec<_> = chosen.iter().map(|&i| &flat[i].1.cmd).collect();
        execute(&commands, memory);
        for &i in chosen {
            done[i] = true;
            next[flat[i].1.lane.0 as usize] += 1;
        }
    }
}

/// Runs in program order. Members of a collective are adjacent in generated programs.
pub fn run_in_order(programs: &[ToyProgram], memory: &mut Memory) {
    for program in programs {
        let mut members: Vec<&Cmd<Toy, Toy>> = Vec::new();
        for entry in &program.commands {
            match &entry.cmd {
                Cmd::Collective(c) => {
                    members.push(&entry.cmd);
                    if members.len() == c.group.len() {
                        execute(&members, memory);
                        members.clear();
                    }
                }
                cmd => execute(&[cmd], memory),
            }
        }
    }
}
