//! Whole runs of the command on a tiny model: what they write, and how they end.

mod common;

use common::Scene;
use megatrain_scheduler::{ComputeRate, MachineProfile};
use serde_json::Value;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Metrics without what depends on the clock.
fn timeless(mut lines: Vec<Value>) -> Vec<Value> {
    for line in &mut lines {
        for key in ["seconds", "tokens_per_s", "model_tflops"] {
            assert!(line.as_object_mut().unwrap().remove(key).unwrap().as_f64().unwrap() >= 0.0);
        }
    }
    lines
}

#[test]
fn a_configuration_file_says_what_flags_say() {
    let scene = Scene::new();
    let rest = "--dtype f32 --steps 3 --batch-size 3 --micro-batch-size 2 --seq-len 16 --lr 1e-2 --lr-schedule linear \
                --warmup 1 --weight-decay 0.1 --beta1 0.8 --beta2 0.9 --eps 1e-6 --clip 0.5 --seed 5 --held-out 0.2 \
                --update after-norm --activations recompute --spill --executor inline --slots 2";
    scene.run(&format!("{{train}} {rest}")).unwrap();
    let toml = r#"
        model = "@/model"
        data = "@/data.txt"
        dtype = "f32"
        steps = 3
        batch_size = 3
        micro_batch_size = 2
        seq_len = 16
        lr = 1e-2
        lr_schedule = "linear"
        warmup = 1
        weight_decay = 0.1
        beta1 = 0.8
        beta2 = 0.9
        eps = 1e-6
        clip = 0.5
        seed = 5
        held_out = 0.2
        update = "after-norm"
        activations = "recompute"
        spill = true
        executor = "inline"
        slots = 2
        out = "@/out2"
    "#;
    scene.write("run.toml", scene.fill(toml));
    scene.run("train --config @/run.toml").unwrap();
    let metrics = scene.metrics("out");
    assert_eq!(metrics.len(), 3);
    let first = metrics[0].as_object().unwrap();
    let keys: Vec<_> = first.keys().map(String::as_str).collect();
    let mut want =
        ["step", "loss", "grad_norm", "lr", "tokens", "targets", "seconds", "tokens_per_s", "model_tflops", "skipped"];
    want.sort_unstable();
    assert_eq!(
        {
            let mut keys = keys;
            keys.sort_unstable();
            keys
        },
        want
    );
    assert_eq!(timeless(metrics), timeless(scene.metrics("out2")));
    let weights = |out: &str| scene.read(&format!("{out}/model/model.safetensors"));
    assert!(weights("out") == weights("out2"), "the same settings must give the same bits");
    assert!(weights("out") != scene.read("model/model.safetensors"), "nothing was trained");
    // A flag wins over the file.
    scene.run("train --config @/run.toml --steps 1 --out @/out3").unwrap();
    assert_eq!(scene.metrics("out3").len(), 1);
}

#[test]
fn a_byte_order_mark_and_windows_line_ends_change_nothing() {
    let scene = Scene::new();
    let text = "one line\nanother line\n";
    scene.write("plain/a.txt", text);
    scene.write("plain/b.jsonl", "{\"text\": \"third\"}\n{\"text\": \"fourth\"}\n");
    scene.write("windows/a.txt", format!("\u{feff}{}", text.replace('\n', "\r\n")));
    scene.write("windows/b.jsonl", "\u{feff}{\"text\": \"third\"}\r\n\r\n{\"text\": \"fourth\"}\r\n");
    for kind in ["plain", "windows"] {
        let args = format!("train --model @/model --data @/{kind} --out @/out-{kind} --dtype f32 --steps 2");
        scene.run(&args).unwrap();
    }
    assert_eq!(timeless(scene.metrics("out-plain")), timeless(scene.metrics("out-windows")));
}

#[test]
fn steps_without_targets_are_logged_and_change_nothing() {
    let scene = Scene::new();
    let (masked, taught) = ("{\"input_ids\": [1, 2], \"labels\": [-100, -100]}\n", "{\"input_ids\": [1, 2]}\n");
    scene.write("data.jsonl", [masked, taught, masked, masked].concat());
    let args = "train --model @/model --data @/data.jsonl --out @/out --dtype f32 --no-shuffle --batch-size 1 \
                --lr-schedule constant --epochs 4";
    scene.run(args).unwrap();
    let metrics = scene.metrics("out");
    assert_eq!(metrics.len(), 16);
    for (i, line) in metrics.iter().enumerate() {
        let empty = i % 4 != 1;
        assert_eq!(line["targets"], if empty { 0 } else { 1 });
        assert_eq!(line["skipped"].is_string(), empty, "{line}");
        assert_eq!(line["loss"].is_number(), !empty, "{line}");
    }
    assert!(common::opens(&scene.path("out/model")));
}

#[test]
fn steps_that_are_not_finite_are_logged_as_skipped() {
    let scene = Scene::new();
    scene.set_tensor("lm_head.weight", 3e38);
    scene.run("{train} --dtype f32 --steps 20").unwrap_err();
    let metrics = scene.metrics("out");
    assert_eq!(metrics.len(), 10);
    for line in metrics {
        assert!(line["skipped"].as_str().unwrap().contains("NaN or infinite"), "{line}");
        assert!(line["loss"].is_string() && line["grad_norm"].is_string(), "a number that is none: {line}");
    }
}

#[test]
fn a_trace_is_valid_json_of_the_last_step() {
    let scene = Scene::new();
    scene.run("{train} --steps 2 --trace @/trace.json").unwrap();
    let trace: Value = serde_json::from_slice(&scene.read("trace.json")).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let spans: Vec<_> = events.iter().filter(|e| e["ph"] == "X").collect();
    assert!(spans.iter().all(|e| e["ts"].as_f64().unwrap() >= 0.0 && e["dur"].as_f64().unwrap() >= 0.0));
    let lanes: std::collections::HashSet<_> =
        spans.iter().map(|e| (e["pid"].to_string(), e["tid"].to_string())).collect();
    assert!(spans.len() > 50 && lanes.len() >= 4, "{} spans on {} lanes", spans.len(), lanes.len());
}

/// Figures of a machine that was not measured here.
fn profile() -> MachineProfile {
    MachineProfile {
        name: "a small machine".into(),
        h2d_gb_s: 10.0,
        d2h_gb_s: 10.0,
        both_ways_gb_s: 15.0,
        compute_tflops: ComputeRate::Flat(1.0),
        device_gb_s: 100.0,
        ops: Default::default(),
        host_tflops: 0.1,
        host_gb_s: 20.0,
        host_cores_gb_s: None,
        tasks: Default::default(),
        file_gb_s: 1.0,
        peer_gb_s: 10.0,
        launch_us: 5.0,
        event_us: 5.0,
        hop_us: None,
        device_is_host: false,
    }
}

#[test]
fn a_plan_lists_regions_totals_and_a_simulated_step() {
    let scene = Scene::new();
    scene.write("profile.json", serde_json::to_string(&profile()).unwrap());
    let plan = |args: &str| {
        let output = scene.output(&format!("plan --profile @/profile.json {args}"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let text = plan("--model @/model --verbose");
    for part in ["weights", "optimizer state", "gradients", "device", "total", "traffic", "a small machine", "step"] {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
    // What does not fit this machine is planned all the same, and said to be too large.
    let text = plan("--preset llama-3.1-8b --seq-len 131072 --batch-size 16 --micro-batch-size 1 --activations keep");
    assert!(text.contains("does not fit") && text.contains("tokens/s"), "{text}");
}

#[test]
fn every_preset_can_be_planned() {
    let scene = Scene::new();
    scene.write("profile.json", serde_json::to_string(&profile()).unwrap());
    for name in megatrain_layers::preset_names() {
        scene.run(&format!("plan --profile @/profile.json --preset {name} --seq-len 128 --batch-size 2")).unwrap();
    }
}

/// The process, its output going to pipes that nobody reads.
fn unheard(scene: &Scene, args: &str) -> Child {
    let mut child = scene.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop((child.stdout.take(), child.stderr.take()));
    child
}

#[test]
fn a_run_that_nobody_listens_to_ends_well() {
    let scene = Scene::new();
    scene.write("profile.json", serde_json::to_string(&profile()).unwrap());
    for (args, code) in [
        ("{train} --steps 2 --held-out 0.2", 0),
        ("plan --model @/model --profile @/profile.json", 0),
        ("generate --model @/model --prompt the --max-tokens 3", 0),
        ("{train} --lr nan", 1),
    ] {
        assert_eq!(unheard(&scene, args).wait().unwrap().code(), Some(code), "{args}");
    }
    assert!(common::opens(&scene.path("out/model")));
}

/// `megatrain train 2>&1 | tee log`: Ctrl-C ends `tee` too, and the model is saved all the same.
#[test]
fn ctrl_c_saves_though_nobody_listens() {
    let scene = Scene::new();
    let mut child = unheard(&scene, "{train} --dtype f32 --steps 100000000");
    wait_for("the first steps", || has_begun(&scene));
    press_ctrl_c(&child);
    wait_for("the end", || child.try_wait().unwrap().is_some());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(common::opens(&scene.path("out/model")));
}

/// A run that would take days, and what it says on stderr.
fn start(scene: &Scene, args: &str) -> Child {
    let stderr = std::fs::File::create(scene.path("stderr")).unwrap();
    let child = scene.command(args).stderr(stderr).stdout(Stdio::null()).spawn().unwrap();
    wait_for("the first steps", || has_begun(scene));
    child
}

fn has_begun(scene: &Scene) -> bool {
    std::fs::read_to_string(scene.path("out/metrics.jsonl")).is_ok_and(|text| text.lines().count() > 1)
}

fn wait_for(what: &str, mut ready: impl FnMut() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn press_ctrl_c(child: &Child) {
    signal(child, "-INT");
}

fn signal(child: &Child, which: &str) {
    assert!(std::process::Command::new("kill").args([which, &child.id().to_string()]).status().unwrap().success());
}

#[test]
fn ctrl_c_and_sigterm_end_after_the_step_and_save() {
    ["-INT", "-TERM"].into_iter().for_each(ends_after_the_step_and_saves);
}

fn ends_after_the_step_and_saves(by: &str) {
    let scene = Scene::new();
    let mut child = start(&scene, "{train} --dtype f32 --steps 100000000 --lr 1e-2 --lr-schedule constant");
    signal(&child, by);
    wait_for("the end", || child.try_wait().unwrap().is_some());
    let said = String::from_utf8(scene.read("stderr")).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{said}");
    let steps = scene.metrics("out").len();
    assert!(
        said.contains("ending after this step") && said.contains(&format!("interrupted after step {steps}")),
        "{said}"
    );
    scene.run("generate --model @/out/model --prompt the --max-tokens 2").unwrap();
    assert!(scene.read("out/model/model.safetensors") != scene.read("model/model.safetensors"));
}

#[test]
fn signals_at_one_moment_are_one_request() {
    let scene = Scene::new();
    let mut child = start(&scene, "{train} --dtype f32 --steps 100000000");
    press_ctrl_c(&child);
    press_ctrl_c(&child);
    wait_for("the end", || child.try_wait().unwrap().is_some());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(scene.path("out/model").exists());
}

#[test]
fn a_second_ctrl_c_ends_at_once() {
    let scene = Scene::new();
    // Steps long enough to be met in the middle.
    scene.write("data.txt", "the quick brown fox jumps over the lazy dog\n".repeat(3000));
    let mut child = start(&scene, "{train} --dtype f32 --steps 100000000 --batch-size 4096 --micro-batch-size 512");
    let steps = scene.metrics("out").len();
    press_ctrl_c(&child);
    wait_for("the first to be taken", || scene.read("stderr").windows(6).any(|w| w == b"ending"));
    // Signals at one moment are one request.
    std::thread::sleep(Duration::from_millis(250));
    press_ctrl_c(&child);
    wait_for("the end", || child.try_wait().unwrap().is_some());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(scene.metrics("out").len() <= steps + 1 && !scene.path("out/model").exists());
}
