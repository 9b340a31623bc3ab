//! Programs that cannot run are refused whole, by command, and leave the executor usable.

use crate::tiny::{COMPUTE, D2H, H2D, Kind, Task, Tasks, Tiny, expected, matmul};
use megatrain_base::{Access, Rank, RegionId, Span, Tensor};
use megatrain_cpu::{CpuExecutor, ExecutorOptions};
use megatrain_exec::{ExecError, RegionMemory};
use megatrain_ops::Op;
use megatrain_scheduler::{Cmd, Collective, Contract, Entry, EventId, Label, LaneId, Program};
use std::sync::Arc;

fn program(tiny: &Tiny, lane: LaneId, cmd: Cmd<Op, Task>) -> Program<Op, Task> {
    let commands = vec![Entry { lane, label: Label::default(), cmd }];
    let events = tiny.contract.boundaries.len() as u32 + 1;
    Program { name: "bad".into(), contract: tiny.contract.clone(), events, commands }
}

fn collective(ranks: u16, accesses: &[(Tensor, Access)]) -> Cmd<Op, Task> {
    let group = (0..ranks).map(|local| Rank { node: 0, local }).collect();
    let accesses = accesses.iter().map(|(t, a)| (t.span, *a)).collect();
    Cmd::Collective(Collective { kind: "all_gather", group, tag: 0, accesses })
}

#[test]
fn bad_programs_are_refused_by_command() {
    let tiny = Tiny::new();
    let executor = tiny.executor(ExecutorOptions { threads: 1, ..Default::default() });
    let (w, s) = (tiny.weights[0], tiny.slots[0]);
    let half = Span { len_bytes: 32, ..s.span };
    let beyond = Span::new(w.span.region, 1250, 64);
    let nowhere = Span::new(RegionId(9), 0, 64);
    let flat = s.reshape([2usize, 8]);
    let table = [
        (LaneId(9), Cmd::Copy { src: w.span, dst: s.span }, "command 0 is on lane 9; the contract has 6 lanes"),
        (H2D, Cmd::Copy { src: w.span, dst: half }, "copies 64 bytes of r0[0..64] to 32 bytes of r2[0..32]"),
        (H2D, Cmd::Copy { src: beyond, dst: s.span }, "touches 64 bytes at 1250 of region `lasting`, which has 1280"),
        (H2D, Cmd::Copy { src: nowhere, dst: s.span }, "touches region r9; the contract has 3"),
        (H2D, Cmd::Copy { src: s.span, dst: s.span }, "writes bytes that two of its operands share"),
        (COMPUTE, Cmd::Launch(matmul(w, flat, tiny.slots[1], false, false)), "op matmul: "),
        (D2H, Cmd::Wait(EventId(99)), "names event 99; the program has"),
        (D2H, Cmd::Record(EventId(99)), "names event 99; the program has"),
        (D2H, Cmd::Wait(EventId(tiny.contract.boundaries.len() as u32)), "would never end: nothing before it records"),
        (COMPUTE, collective(2, &[(s, Access::Update)]), "spans 2 ranks; the CPU executor runs programs of one rank"),
        (COMPUTE, collective(1, &[(s, Access::Read)]), "is neither a copy"),
    ];
    for (lane, cmd, expected) in table {
        let program = program(&tiny, lane, cmd);
        let error = executor.run(Arc::new(program), Arc::new(Tasks::default())).unwrap_err();
        assert!(matches!(error, ExecError::Malformed { .. } | ExecError::Refused { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.starts_with("program `bad` refused: ") && text.contains(expected), "{expected} in: {text}");
    }
    let other =
        Program { contract: Arc::new(Contract::default()), commands: vec![], ..(*tiny.program(Kind::Train)).clone() };
    let error = executor.run(Arc::new(other), Arc::new(Tasks::default())).unwrap_err();
    assert!(error.to_string().contains("made for another contract"), "{error}");

    tiny.issue(&executor, &[tiny.program(Kind::Train)]).remove(0).wait().unwrap();
    assert_eq!(tiny.bits(&executor), expected(&[Kind::Train]), "refusals leave no trace");
}

#[test]
fn a_collective_of_one_rank_copies_or_leaves_its_bytes() {
    let tiny = Tiny::new();
    let executor = tiny.executor(ExecutorOptions { threads: 1, ..Default::default() });
    let [from, to, kept] = [tiny.weights[0], tiny.slots[0], tiny.weights[1]];
    let before: Vec<f32> = executor.read(&kept).unwrap();
    for accesses in [&[(to, Access::Write), (from, Access::Read)][..], &[(kept, Access::Update)], &[]] {
        let program = program(&tiny, COMPUTE, collective(1, accesses));
        executor.run(Arc::new(program), Arc::new(Tasks::default())).unwrap().wait().unwrap();
    }
    assert_eq!(executor.read::<f32>(&to).unwrap(), executor.read::<f32>(&from).unwrap());
    assert_eq!(executor.read::<f32>(&kept).unwrap(), before);
}

#[test]
fn an_empty_program_is_done_at_once() {
    let tiny = Tiny::new();
    let executor = tiny.executor(ExecutorOptions { threads: 1, ..Default::default() });
    let ticket = executor.run(Arc::new(tiny.builder("nothing").finish().unwrap()), Arc::new(Tasks::default())).unwrap();
    assert!(ticket.is_finished());
    assert_eq!(ticket.wait().unwrap().seconds, 0.0);
}

#[test]
fn tensors_are_read_and_written_as_what_they_are() {
    let tiny = Tiny::new();
    let executor = tiny.executor(ExecutorOptions { threads: 1, ..Default::default() });
    let text = |error: ExecError| error.to_string();
    assert!(text(executor.read::<i32>(&tiny.state).unwrap_err()).contains("cannot be taken as i32"));
    assert!(text(executor.write(&tiny.state, &[1f32]).unwrap_err()).contains("1 values for f32[4, 4]"));
    let outside = tiny.state.at(tiny.state.span.region, 1 << 40);
    assert!(text(executor.read::<f32>(&outside).unwrap_err()).contains("of region `lasting`"));
    executor.write(&tiny.state, &[7f32; 16]).unwrap();
    assert_eq!(executor.read::<f32>(&tiny.state).unwrap(), [7.0; 16]);
}

#[test]
fn memory_must_fit_the_contract() {
    let tiny = Tiny::new();
    let blocks = vec![RegionMemory::heap(4096).unwrap()];
    let error = CpuExecutor::<Task>::new(tiny.contract.clone(), blocks, ExecutorOptions::default()).unwrap_err();
    assert_eq!(error.to_string(), "memory does not fit the contract: 1 blocks for 3 regions");
}
