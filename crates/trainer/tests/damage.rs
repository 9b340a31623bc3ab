//! Files damaged at random and settings of every strange value: whatever comes of it, nobody sees a panic.

mod common;

use common::Scene;
use megatrain_data::Random;
use serde_json::{Value, json};

/// Runs and returns the error, if there was one. A panic, or words meant for programmers, fail the test.
fn run(scene: &Scene, args: &str, what: &str) -> Option<String> {
    let error = scene.run(args).err();
    if let Some(text) = &error {
        assert!(text.starts_with("error: ") && !text.contains("panicked"), "{what}: {text}");
        assert!(!text.contains("internal error") && !text.contains("called `"), "{what}: {text}");
    }
    error
}

/// Damages a file in one to three places, differently for each seed.
fn damage(bytes: &mut Vec<u8>, from: usize, to: usize, seed: u64) {
    let mut random = Random::new(seed, 0);
    for _ in 0..1 + random.below(3) {
        let at = from + random.below((to.min(bytes.len()) - from) as u64) as usize;
        match random.below(4) {
            0 => bytes[at] = random.next_u64() as u8,
            1 => bytes[at] = b"0123456789-.,:{}[]\"\\"[random.below(20) as usize],
            2 => drop(bytes.remove(at)),
            _ => bytes.insert(at, b"0123456789-.,:{}[]\"\\"[random.below(20) as usize]),
        }
    }
}

fn damaged(file: &str, content: Option<&str>, args: &str, seeds: u64) {
    let scene = Scene::new();
    if let Some(content) = content {
        scene.write(file, scene.fill(content));
    }
    let sound = scene.read(file);
    // Behind the header of the weights any bytes are numbers.
    let end = if file.ends_with(".safetensors") { 8 + 1500 } else { usize::MAX };
    let mut refused = 0;
    for seed in 0..seeds {
        let mut bytes = sound.clone();
        damage(&mut bytes, 0, end, seed);
        scene.write(file, &bytes);
        refused += u64::from(run(&scene, args, &format!("{file}, seed {seed}")).is_some());
    }
    assert!(refused > 0, "no damage to {file} was noticed");
}

#[test]
fn damaged_models_do_not_panic() {
    damaged("model/config.json", None, "{train} --steps 1", 150);
    damaged("model/model.safetensors", None, "{train} --steps 1", 150);
    damaged("model/tokenizer.json", None, "{train} --steps 1", 60);
    damaged("model/tokenizer_config.json", None, "{train} --steps 1", 60);
}

#[test]
fn damaged_data_and_configurations_do_not_panic() {
    let data =
        "{\"input_ids\": [1, 2, 3, 200, 256], \"labels\": [-100, 2, 3, -100, 256]}\n{\"input_ids\": [7, 8, 9]}\n";
    damaged("data.jsonl", Some(data), "train --model @/model --data @/data.jsonl --out @/out --steps 1", 150);
    damaged("data.txt", None, "{train} --steps 1", 40);
    let toml = "steps = 1\nlr = 1e-3\nbatch_size = 2\nmicro_batch_size = 1\nclip = 1.0\nwarmup = 1\nseq_len = 8\n\
                dtype = \"f32\"\nupdate = \"auto\"\nspill = true\nheld_out = 0.25\ndevice_memory = \"64MiB\"\n";
    damaged("run.toml", Some(toml), "{train} --config @/run.toml --steps 1", 150);
}

#[test]
fn no_value_of_a_model_setting_panics() {
    let strange = [
        Value::Null,
        json!(true),
        json!(-1),
        json!(0),
        json!(1),
        json!(3),
        json!(7.5),
        json!(1e300),
        json!(u64::MAX),
        json!("16"),
        json!(""),
        json!([]),
        json!([1]),
        json!({}),
        json!({"rope_type": "llama3"}),
    ];
    let keys = [
        "architectures",
        "model_type",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "max_position_embeddings",
        "rms_norm_eps",
        "rope_theta",
        "rope_scaling",
        "rope_parameters",
        "hidden_act",
        "tie_word_embeddings",
        "eos_token_id",
        "bos_token_id",
        "sliding_window",
        "use_sliding_window",
        "layer_types",
        "attention_bias",
        "mlp_bias",
        "initializer_range",
        "quantization_config",
        "torch_dtype",
    ];
    let scene = Scene::new();
    let sound = scene.read("model/config.json");
    for key in keys {
        for value in &strange {
            scene.write("model/config.json", &sound);
            scene.config(key, value.clone());
            run(&scene, "{train} --steps 1 --seq-len 8", &format!("{key} = {value}"));
        }
    }
}

#[test]
fn no_value_of_a_flag_panics() {
    let strange =
        ["0", "1", "2", "-1", "7", "0.5", "1e300", "-0.0", "nan", "-inf", "18446744073709551615", "''", "all", "1KiB"];
    let scene = Scene::new();
    for key in megatrain_trainer::options::keys() {
        let flag = key.replace('_', "-");
        if ["config", "model", "data", "out", "steps", "trace"].contains(&flag.as_str()) {
            continue;
        }
        for value in strange {
            run(&scene, &format!("{{train}} --steps 2 --{flag} {value}"), &format!("--{flag} {value}"));
        }
    }
}
