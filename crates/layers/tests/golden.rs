//! Whole tiny models against PyTorch and transformers: logits, losses, every gradient, ten AdamW steps.
//! The numbers come from `tests/golden/make.py` at the top of the repository.

mod common;

use common::{ModelRun, f64s};
use megatrain_layers::{Activations, ModelConfig};
use megatrain_ops::Real;
use safetensors::SafeTensors;
use std::path::PathBuf;

struct Golden {
    name: &'static str,
    config: ModelConfig,
    model: Vec<u8>,
    golden: Vec<u8>,
}

const NAMES: [&str; 5] = ["llama3", "llama_tied", "mistral", "qwen2", "qwen3"];

fn bytes4(data: &[u8], name: &str) -> Vec<[u8; 4]> {
    let file = SafeTensors::deserialize(data).unwrap();
    let tensor = file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
    tensor.data().chunks_exact(4).map(|b| b.try_into().unwrap()).collect()
}

impl Golden {
    fn all() -> Vec<Golden> {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
        let read = |name: &str, file| std::fs::read(folder.join(name).join(file)).unwrap();
        NAMES
            .map(|name| Golden {
                name,
                config: ModelConfig::from_hf(&serde_json::from_slice(&read(name, "config.json")).unwrap()).unwrap(),
                model: read(name, "model.safetensors"),
                golden: read(name, "golden.safetensors"),
            })
            .into()
    }
    fn run<R: Real>(&self) -> ModelRun<R> {
        ModelRun::new(&self.config, |name| floats(&self.model, name))
    }
    fn floats(&self, name: &str) -> Vec<f64> {
        floats(&self.golden, name)
    }
    fn ints(&self, name: &str) -> Vec<i32> {
        bytes4(&self.golden, name).into_iter().map(i32::from_le_bytes).collect()
    }
    fn documents(&self) -> Vec<usize> {
        self.ints("cu_seqlens").windows(2).map(|w| (w[1] - w[0]) as usize).collect()
    }
    /// Batch number `step`: token ids, targets, number of targets.
    fn batch(&self, step: usize) -> (Vec<i32>, Vec<i32>, usize) {
        let tokens: usize = self.documents().iter().sum();
        let row = |name| self.ints(name)[step * tokens..][..tokens].to_vec();
        let targets = row("targets");
        let count = targets.iter().filter(|&&t| t != -100).count();
        (row("input_ids"), targets, count)
    }
}

fn floats(data: &[u8], name: &str) -> Vec<f64> {
    bytes4(data, name).into_iter().map(|b| f32::from_le_bytes(b) as f64).collect()
}

/// ‖a - b‖ / ‖b‖
fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied())
}

/// How far an f32 computation may be from the f64 truth: twice as far as our own plain f32 computation is, plus one
/// rounding. `make.py`'s numbers were at most 1.7 times as far when this was written.
fn bound(own: f64) -> f64 {
    2.0 * own + 2f64.powi(-24)
}

#[test]
fn every_weight_of_the_checkpoint_has_its_place() {
    for golden in Golden::all() {
        let file = SafeTensors::deserialize(&golden.model).unwrap();
        let mut theirs: Vec<(String, Vec<u64>)> =
            file.tensors().iter().map(|(n, t)| (n.clone(), t.shape().iter().map(|&d| d as u64).collect())).collect();
        let mut ours: Vec<(String, Vec<u64>)> =
            golden.run::<f32>().tensors().iter().map(|(n, w, _)| (n.clone(), w.shape.dims().to_vec())).collect();
        theirs.sort();
        ours.sort();
        assert_eq!(ours, theirs, "{}", golden.name);
    }
}

#[test]
fn logits_are_pytorchs() {
    for golden in Golden::all() {
        let (ids, _, _) = golden.batch(0);
        let (documents, rows) = (golden.documents(), (0..ids.len() as i32).collect::<Vec<_>>());
        let truth = golden.run::<f64>().logits(&ids, &documents, &rows);
        let own = f64s(&golden.run::<f32>().logits(&ids, &documents, &rows));
        let (theirs, own) = (distance(&golden.floats("logits"), &truth), distance(&own, &truth));
        assert!(theirs <= bound(own), "{}: PyTorch {theirs:.1e}, own f32 {own:.1e}", golden.name);

        let picked = golden.run::<f64>().logits(&ids, &documents, &[23, 8, 8]);
        let row = |r: usize| &truth[r * golden.config.vocab..][..golden.config.vocab];
        assert_eq!(picked, [row(23), row(8), row(8)].concat(), "{}: selected rows", golden.name);
    }
}

#[test]
fn losses_and_every_gradient_are_pytorchs() {
    for golden in Golden::all() {
        let (ids, targets, count) = golden.batch(0);
        let documents = golden.documents();
        let (mut truth, mut own) = (golden.run::<f64>(), golden.run::<f32>());
        let losses = truth.step(&ids, &targets, &documents, count, Activations::Keep, 10, false);
        own.step(&ids, &targets, &documents, count, Activations::Keep, 10, false);
        let loss = losses.iter().sum::<f64>() / count as f64;
        assert!((golden.floats("losses")[0] / loss - 1.0).abs() < 16.0 * 2f64.powi(-24), "{}: {loss}", golden.name);
        for (name, _, g) in truth.tensors() {
            let exact = truth.memory.get(&g);
            let own = distance(&f64s(&own.memory.get(&g)), &exact);
            let theirs = distance(&golden.floats(&format!("grad.{name}")), &exact);
            assert!(theirs <= bound(own), "{} {name}: PyTorch {theirs:.1e}, own f32 {own:.1e}", golden.name);
        }
    }
}

#[test]
fn micro_batches_chunks_and_levels_change_rounding_only() {
    for golden in Golden::all() {
        let (ids, targets, count) = golden.batch(0);
        let documents = golden.documents();
        let mut whole = golden.run::<f64>();
        let losses = whole.step(&ids, &targets, &documents, count, Activations::Keep, 24, false);
        assert_eq!(losses, golden.run::<f64>().losses(&ids, &targets, &documents, 5), "{}: evaluation", golden.name);
        let first = documents[0];
        let mut parts = golden.run::<f64>();
        let (a, b) = (first, &documents[1..]);
        let mut split = parts.step(&ids[..a], &targets[..a], &[a], count, Activations::Partial, 4, false);
        split.extend(parts.step(&ids[a..], &targets[a..], b, count, Activations::Recompute, 7, true));
        assert_eq!(losses, split, "{}", golden.name);
        for (name, _, g) in whole.tensors() {
            let error = distance(&parts.memory.get(&g), &whole.memory.get(&g));
            assert!(error < 1e-13, "{} {name}: {error:.1e}", golden.name);
        }
    }
}

/// AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101) as `make.py` runs it, on the gradients of the twins, in their
/// arithmetic: mean loss and gradient norm of each step, and how far each tensor has moved from its start.
#[allow(clippy::type_complexity)]
fn ten_steps<R: Real>(golden: &Golden) -> (Vec<(f64, f64)>, Vec<(String, Vec<f64>)>) {
    let (lr, beta1, beta2, eps, decay, clip) = (1e-3f64, 0.9f64, 0.999f64, 1e-8f64, 0.01f64, 1.0f64);
    let one_less = |beta: f64| R::of(1.0 - beta);
    let mut run = golden.run::<R>();
    let (tensors, mut steps) = (run.tensors(), Vec::new());
    let zero = (R::of(0.0), R::of(0.0));
    let mut moments: Vec<Vec<(R, R)>> = tensors.iter().map(|(_, w, _)| vec![zero; w.elems()]).collect();
    for step in 0..10 {
        let (ids, targets, count) = golden.batch(step);
        let losses = run.step(&ids, &targets, &golden.documents(), count, Activations::Keep, 24, false);
        let gradients: Vec<Vec<R>> = tensors.iter().map(|(_, _, g)| run.memory.get(g)).collect();
        let norm = gradients.iter().flatten().map(|g| g.f64() * g.f64()).sum::<f64>().sqrt();
        steps.push((losses.iter().map(|l| l.f64()).sum::<f64>() / count as f64, norm));
        let scale = R::of((clip / (norm + 1e-6)).min(1.0));
        let (c1, c2) = (R::of(1.0 - beta1.powi(step as i32 + 1)), R::of(1.0 - beta2.powi(step as i32 + 1)));
        for (((_, w, _), gradient), moments) in tensors.iter().zip(&gradients).zip(&mut moments) {
            let keep = R::of(if w.shape.rank() > 1 { 1.0 - lr * decay } else { 1.0 });
            let mut values = run.memory.get(w);
            for ((p, &g), (m, v)) in values.iter_mut().zip(gradient).zip(moments) {
                let g = g * scale;
                *m = R::of(beta1) * *m + one_less(beta1) * g;
                *v = R::of(beta2) * *v + one_less(beta2) * g * g;
                *p = *p * keep - R::of(lr) * (*m / c1) / ((*v / c2).sqrt() + R::of(eps));
            }
            run.memory.put(w, &values);
        }
    }
    let path = |name: &str, w| moved(golden, name, &f64s(&run.memory.get(w)));
    (steps, tensors.iter().map(|(name, w, _)| (name.clone(), path(name, w))).collect())
}

fn moved(golden: &Golden, name: &str, after: &[f64]) -> Vec<f64> {
    floats(&golden.model, name).iter().zip(after).map(|(start, end)| end - start).collect()
}

#[test]
fn ten_steps_of_adamw_are_pytorchs() {
    for golden in Golden::all() {
        let ((truth_steps, truth), (_, own)) = (ten_steps::<f64>(&golden), ten_steps::<f32>(&golden));
        let (losses, norms) = (golden.floats("losses"), golden.floats("grad_norms"));
        for (step, (loss, norm)) in truth_steps.iter().enumerate() {
            for (what, ours, theirs) in [("loss", loss, losses[step]), ("norm", norm, norms[step])] {
                // A mean of some 17 losses, or a norm, each itself the end of a chain of roundings: 16 ulps.
                let error = (ours / theirs - 1.0).abs();
                assert!(error < 16.0 * 2f64.powi(-24), "{} step {step}: {what} {ours} and {theirs}", golden.name);
            }
        }
        for ((name, truth), (_, own)) in truth.iter().zip(&own) {
            let theirs = moved(&golden, name, &golden.floats(&format!("after.{name}")));
            let (theirs, own) = (distance(&theirs, truth), distance(own, truth));
            assert!(theirs <= bound(own), "{} {name}: PyTorch {theirs:.1e}, own f32 {own:.1e}", golden.name);
        }
    }
}
