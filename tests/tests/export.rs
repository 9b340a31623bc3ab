//! What comes out of a run: model directories like their source, the same model again, and how much memory it took.

use half::{bf16, f16};
use megatrain_base::DType;
use megatrain_checkpoint::{FloatDType, ModelDir};
use megatrain_cpu::{ExecutorOptions, Mode};
use megatrain_layers::{ModelConfig, preset_names};
use megatrain_planner::{Model, Plan, Purpose, Settings};
use megatrain_tests::batch::random_steps;
use megatrain_tests::golden::Golden;
use megatrain_tests::rig::{Optim, Rig};
use megatrain_trainer::generate::{Generator, Sampling};
use megatrain_trainer::options::{Device, Dtype as Compute};
use megatrain_trainer::setup::Source;
use megatrain_trainer::weights;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use std::path::Path;

const TOKENS: usize = 32;

/// A golden model's directory with its weights rounded to another type.
fn rounded(golden: &Golden, dtype: FloatDType, to: &Path) {
    std::fs::copy(golden.dir().join("config.json"), to.join("config.json")).unwrap();
    let file = std::fs::read(golden.dir().join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let converted: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
        .tensors()
        .into_iter()
        .map(|(name, t)| {
            let values = t.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b));
            (name, t.shape().to_vec(), values.flat_map(|x| bytes(x, dtype)).collect())
        })
        .collect();
    let tag = match dtype {
        FloatDType::F32 => Dtype::F32,
        FloatDType::F16 => Dtype::F16,
        FloatDType::Bf16 => Dtype::BF16,
    };
    let views = converted.iter().map(|(name, shape, data)| (name, TensorView::new(tag, shape.clone(), data).unwrap()));
    std::fs::write(to.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
}

/// A value as a file of this type stores it, rounded to nearest even.
fn bytes(x: f32, dtype: FloatDType) -> Vec<u8> {
    match dtype {
        FloatDType::F32 => x.to_le_bytes().into(),
        FloatDType::F16 => f16::from_f32(x).to_le_bytes().into(),
        FloatDType::Bf16 => bf16::from_f32(x).to_le_bytes().into(),
    }
}

fn rig(source: &Source, dtype: DType) -> Rig {
    let executor = ExecutorOptions { mode: Mode::Inline, poison: true, threads: 1, ..ExecutorOptions::default() };
    Rig::new(source, Settings::new(dtype, TOKENS, 1), executor)
}

fn export(rig: &Rig, source: &Source, to: &Path) {
    let dir = source.dir.as_ref();
    weights::export(rig.session(), to, dir, &source.config, None, source.extras()).unwrap();
}

/// huggingface/transformers#30202, vllm-project/vllm#6758
#[test]
fn an_exported_directory_is_like_its_source() {
    for golden in Golden::all() {
        for file_dtype in [FloatDType::F32, FloatDType::F16, FloatDType::Bf16] {
            let dir = tempfile::tempdir().unwrap();
            let (from, to) = (dir.path().join("from"), dir.path().join("to"));
            std::fs::create_dir(&from).unwrap();
            rounded(&golden, file_dtype, &from);
            let source = Source::open(&from).unwrap();
            let original = std::fs::read(from.join("model.safetensors")).unwrap();
            let original = SafeTensors::deserialize(&original).unwrap();
            for dtype in [DType::F32, DType::Bf16] {
                let what = format!("{} {file_dtype:?} trained in {dtype}", golden.name);
                let rig = rig(&source, dtype);
                export(&rig, &source, &to);
                let again = std::fs::read(to.join("model.safetensors")).unwrap();
                for (name, tensor) in SafeTensors::deserialize(&again).unwrap().tensors() {
                    assert!(tensor.data() == original.tensor(&name).unwrap().data(), "{what}: {name} untrained");
                }

                let vocab = golden.config().vocab;
                rig.train(&random_steps(&[1, 1], TOKENS, vocab, 1), Optim::lr(1e-2));
                export(&rig, &source, &to);
                let exported = std::fs::read(to.join("model.safetensors")).unwrap();
                let exported = SafeTensors::deserialize(&exported).unwrap();
                let mut names = (original.names(), exported.names());
                names.0.sort();
                names.1.sort();
                assert_eq!(names.0, names.1, "{what}");
                assert_eq!(exported.names().contains(&"lm_head.weight"), !golden.config().tied, "{what}");
                for (name, tensor) in exported.tensors() {
                    let before = original.tensor(&name).unwrap();
                    assert_eq!((tensor.dtype(), tensor.shape()), (before.dtype(), before.shape()), "{what}: {name}");
                    let want: Vec<u8> = rig.master(&name).into_iter().flat_map(|x| bytes(x, file_dtype)).collect();
                    assert!(tensor.data() == want, "{what}: {name} is not the rounded master");
                    assert!(tensor.data() != before.data(), "{what}: {name} was not trained");
                }
                let config = |dir: &Path| std::fs::read_to_string(dir.join("config.json")).unwrap();
                let parse = |dir: &Path| serde_json::from_str::<serde_json::Value>(&config(dir)).unwrap();
                assert_eq!(parse(&to), parse(&from), "{what}");
                let keys = |dir: &Path| parse(dir).as_object().unwrap().keys().cloned().collect::<Vec<_>>();
                assert_eq!(keys(&to), keys(&from), "{what}: order of the configuration's keys");
            }
        }
    }
}

#[test]
fn a_loaded_export_is_the_trained_model() {
    for golden in Golden::all() {
        let dir = tempfile::tempdir().unwrap();
        let rig = rig(&golden.source, DType::F32);
        let batch = &random_steps(&[1], TOKENS, golden.config().vocab, 1)[0];
        rig.step(batch, Optim::lr(1e-2));
        export(&rig, &golden.source, dir.path());
        let source = Source::open(dir.path()).unwrap();
        assert_eq!(&source.model.config, golden.config());
        let loaded = self::rig(&source, DType::F32);
        let (ours, theirs) = (rig.state(), loaded.state());
        for ((name, [ours, ..]), (_, [theirs, ..])) in ours.tensors.iter().zip(&theirs.tensors) {
            assert!(ours == theirs, "{} {name}", golden.name);
        }
        for row in [0, 5, TOKENS - 1] {
            let (ours, theirs) = (rig.logits(&batch[0], row), loaded.logits(&batch[0], row));
            assert!(ours.iter().zip(&theirs).all(|(a, b)| a.to_bits() == b.to_bits()), "{} row {row}", golden.name);
        }
    }
}

/// A preset's export stands alone: it opens, and has the weights it was made with.
#[test]
fn a_fresh_model_is_written_so_that_it_opens() {
    let dir = tempfile::tempdir().unwrap();
    let source = Source::preset("demo").unwrap();
    let rig = rig(&source, DType::F32);
    export(&rig, &source, dir.path());
    let opened = Source::open(dir.path()).unwrap();
    assert_eq!(opened.model.config, source.model.config);
    assert_eq!(ModelDir::open(dir.path()).unwrap().main_dtype(), Some(FloatDType::F32));
    assert!(opened.tokenizer.is_some());
    let loaded = self::rig(&opened, DType::F32);
    for (name, [ours, ..]) in &rig.state().tensors {
        let theirs: Vec<u32> = loaded.master(name).into_iter().map(f32::to_bits).collect();
        assert!(*ours == theirs, "{name}");
    }
}

#[test]
fn generation_ends_at_a_stop_token_and_is_the_likeliest_continuation() {
    for golden in Golden::all() {
        let mut generator = Generator::new(&golden.source, 12, Some(Compute::F32), Device::Cpu, 1).unwrap();
        let greedy = Sampling { temperature: 0.0, seed: 0 };
        let prompt = [1, 5, 9];
        let free = generator.generate(&prompt, 9, &[], greedy, |_| {}).unwrap();
        assert_eq!(free.len(), 9);
        let mut context = prompt.to_vec();
        for &token in &free {
            let logits = generator.logits(&context).unwrap();
            assert!(logits.iter().all(|&x| x <= logits[token as usize]), "{}", golden.name);
            context.push(token);
        }
        // The first token that has not come before ends the text where it comes.
        let end = (1..9).rev().find(|&i| !free[..i].contains(&free[i])).unwrap_or(0);
        let mut seen = Vec::new();
        let stopped = generator.generate(&prompt, 9, &[free[end]], greedy, |t| seen.push(t)).unwrap();
        assert_eq!(stopped, free[..end], "{}", golden.name);
        assert_eq!(seen, stopped);
        assert!(generator.generate(&[], 1, &[], greedy, |_| {}).is_err());
        assert!(generator.generate(&[golden.config().vocab as i32], 1, &[], greedy, |_| {}).is_err());
        assert!(generator.generate(&prompt, 1000, &[], greedy, |_| {}).is_err());
    }
}

#[test]
fn sampling_repeats_with_its_seed() {
    let golden = Golden::open("qwen3");
    let mut generator = Generator::new(&golden.source, 30, Some(Compute::F32), Device::Cpu, 1).unwrap();
    let mut sample = |seed| generator.generate(&[1], 20, &[], Sampling { temperature: 2.0, seed }, |_| {}).unwrap();
    assert_eq!(sample(1), sample(1));
    assert_ne!(sample(1), sample(2));
}

/// Twelve bytes a parameter hold weights, masters and moments, in both modes: 4 of master (whole or in halves, of which
/// the upper is the streamed weight), 4 and 4 of moments. Alignment of each tensor to 256 elements is the rest.
#[test]
fn persistent_state_is_twelve_bytes_a_parameter() {
    for name in preset_names().filter(|n| n.starts_with("demo") || n.starts_with("smollm2-135m") || n.contains("0.5b"))
    {
        let config = ModelConfig::preset(name).unwrap();
        for dtype in [DType::F32, DType::Bf16] {
            let plan = Plan::new(Model::new(&config), Settings::new(dtype, 64, 2)).unwrap();
            let state =
                plan.regions().iter().filter(|r| matches!(r.purpose, Purpose::Weights | Purpose::OptimizerState));
            let bytes: u64 = state.map(|r| r.len_bytes).sum();
            let elems: u64 = plan.model.units.iter().map(|u| u.layout.len_elems()).sum();
            assert_eq!(bytes, 12 * elems, "{name} {dtype}");
            let tensors = plan.model.units.iter().map(|u| u.layout.tensors.len() as u64).sum::<u64>();
            assert!(elems - config.params() < 256 * (tensors + plan.model.units.len() as u64), "{name}");
        }
    }
}
