//! What whole runs leave for people to look at.

mod common;

use common::Scene;
use serde_json::{Value, json};
use std::process::Stdio;
use std::time::Duration;

/// The data of a run's page, as its script reads it.
fn page(scene: &Scene, out: &str) -> Value {
    let html = String::from_utf8(scene.read(&format!("{out}/report.html"))).unwrap();
    let (_, rest) = html.split_once(r#"<script id="data" type="application/json">"#).unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

#[test]
fn a_run_leaves_figures_events_and_a_page() {
    let scene = Scene::new();
    scene.run("{train} --dtype f32 --steps 3 --held-out 0.2 --seq-len 16").unwrap();
    let text = String::from_utf8(scene.read("out/metrics.jsonl")).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let evaluations: Vec<_> = lines.iter().filter(|line| line.get("eval_loss").is_some()).collect();
    assert_eq!(evaluations.iter().map(|line| line["step"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 3]);
    for line in evaluations {
        let (loss, perplexity) = (line["eval_loss"].as_f64().unwrap(), line["perplexity"].as_f64().unwrap());
        assert!((perplexity - loss.exp()).abs() < 1e-9 * perplexity);
    }

    let page = page(&scene, "out");
    assert_eq!(page["state"], "finished");
    assert_eq!(page["metrics_bytes"], text.len());
    assert_eq!(page["history"]["rows"]["step"], json!([1, 2, 3]));
    assert_eq!(page["history"]["evaluations"].as_array().unwrap().len(), 2);
    assert_eq!(page["facts"]["options"]["seq_len"], 16);
    assert!(page["facts"]["data"]["tokens"].as_u64().unwrap() > 100);
    let lanes: Vec<_> = page["lanes"].as_array().unwrap().iter().map(|lane| lane["name"].as_str().unwrap()).collect();
    assert_eq!(lanes, ["h2d", "compute", "d2h", "update", "data"]);
    assert_eq!((&page["timeline"]["step"], &page["facts"]["steps"]), (&json!(3), &json!(3)));
    assert!(page["timeline"]["bars"].as_array().unwrap().len() > 8 * 50);

    let events: Vec<_> = std::fs::read_dir(scene.path("out/tensorboard")).unwrap().collect();
    assert_eq!(events.len(), 1);
    // The next run in the folder has the folder to itself.
    scene.run("{train} --dtype f32 --steps 1").unwrap();
    assert_eq!(std::fs::read_dir(scene.path("out/tensorboard")).unwrap().count(), 1);
    assert_eq!(self::page(&scene, "out")["history"]["rows"]["step"], json!([1]));
}

#[test]
fn the_page_of_a_run_that_failed_says_so() {
    let scene = Scene::new();
    scene.set_tensor("lm_head.weight", 3e38);
    scene.run("{train} --dtype f32 --steps 20").unwrap_err();
    let page = page(&scene, "out");
    assert_eq!(page["state"], "stopped");
    assert_eq!(page["history"]["skipped_steps"], 10);
    assert_eq!(page["history"]["rows"]["loss"], json!([null, null, null, null, null, null, null, null, null, null]));
}

#[test]
fn a_run_that_cannot_be_shown_goes_on() {
    let scene = Scene::new();
    // Folders where files should be, and a file where a folder should be.
    scene.write("out/report.html/x", "");
    scene.write("out/tensorboard", "");
    scene.run("{train} --dtype f32 --steps 2").unwrap();
    assert_eq!(scene.metrics("out").len(), 2);
    assert!(common::opens(&scene.path("out/model")));
    let mut left = std::fs::read_dir(scene.path("out")).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap());
    assert_eq!(left.find(|name| name.starts_with('.')), None);
}

#[test]
fn watch_says_where_it_listens_and_what_is_wrong() {
    let scene = Scene::new();
    let error = scene.run("watch @/absent").unwrap_err();
    assert!(error.contains("there is no folder") && error.contains("absent"), "{error}");
    let error = scene.run("watch @/data.txt").unwrap_err();
    assert!(error.contains("is a file"), "{error}");
    assert!(scene.run("watch @/model --port 70000").is_err());

    let mut child = scene.command("watch @/model --port 0").stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let running = child.try_wait().unwrap().is_none();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(running && line.contains("http://127.0.0.1:"), "{line}");
}
