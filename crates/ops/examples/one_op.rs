//! Runs one op's reference twin on four tokens and prints what it would cost: `cargo run -p megatrain-ops --example one_op`.

use megatrain_base::DType;
use megatrain_ops::{Op, Places, RefIo, RmsNorm};

fn main() -> Result<(), megatrain_ops::OpError> {
    // An op says where its operands lie; each of these gets a region of its own.
    let mut places = Places::default();
    let norm = RmsNorm {
        x: places.tensor(DType::F32, [4usize, 8]),
        weight: places.tensor(DType::F32, [8usize]),
        y: places.tensor(DType::F32, [4usize, 8]),
        rstd: places.tensor(DType::F32, [4usize]),
        eps: 1e-5,
    };
    let op = Op::from(norm);
    op.check()?;
    println!("{}: {}", op.name(), op.work());
    for ((tensor, access), name) in op.operands().into_iter().zip(op.operand_names()) {
        println!("  {name:7} {access:?} {tensor}");
    }

    // The values live elsewhere: here in a table by address, in f64 (f32 works as well).
    let mut io = RefIo::<f64>::new();
    io.set(&norm.x, (0..32).map(|i| (i as f64 * 0.7).sin() * 10f64.powi(i / 8)).collect());
    io.set(&norm.weight, vec![1.0; 8]);
    op.reference(&mut io);
    for (row, rstd) in io.get(&norm.y).chunks(8).zip(io.get(&norm.rstd)) {
        let shown: Vec<String> = row.iter().map(|y| format!("{y:6.3}")).collect();
        println!("rstd {rstd:10.6}  y {}", shown.join(" "));
    }
    Ok(())
}
