//! Templates against transformers' rendering: the built-in ones on a set of conversations, and Python's ways one by one.

use super::template::{Rendered, Template, Variables, from_json};
use super::{built_in, built_in_names};
use minijinja::Value;
use serde_json::{Value as Json, json};

/// Made by `tests/golden/chat/make_rendering.py` with transformers 5.24.
const GOLDEN: &str = include_str!("../../tests/golden/chat/rendering.json");

fn variables(golden: &Json) -> Variables {
    golden["variables"].as_object().unwrap().iter().map(|(name, value)| (name.clone(), from_json(value))).collect()
}

fn values(messages: &Json) -> Vec<Value> {
    let named = |message: &Json| {
        // transformers gives thoughts under both names that templates know.
        let mut message = message.clone();
        if let Some(thoughts) = message.get("reasoning_content").cloned() {
            message["thinking"] = thoughts;
        }
        from_json(&message)
    };
    messages.as_array().unwrap().iter().map(named).collect()
}

/// Compares with `row`'s text, or that both refuse.
fn check(row: &Json, rendered: Result<Rendered, String>, context: &str) {
    match (row.get("text").and_then(Json::as_str), rendered) {
        (Some(text), Ok(rendered)) => {
            assert_eq!(rendered.text, text, "{context}");
            // Python counts characters.
            let count = |bytes: usize| rendered.text[..bytes].chars().count();
            let marks: Vec<[usize; 2]> = rendered.marks.iter().map(|m| [count(m.start), count(m.end)]).collect();
            assert_eq!(json!(marks), row.get("marks").cloned().unwrap_or(json!([])), "{context}");
        }
        (None, Err(_)) => {}
        (text, rendered) => panic!("{context}: expected {text:?}, got {rendered:?}"),
    }
}

#[test]
fn built_in_templates_render_as_in_transformers() {
    let golden: Json = serde_json::from_str(GOLDEN).unwrap();
    let rows = golden["templates"].as_array().unwrap();
    assert_eq!(rows.len(), 16 * 12);
    assert_eq!(built_in_names().count(), 16);
    for row in rows {
        let (name, conversation) = (row["template"].as_str().unwrap(), row["conversation"].as_str().unwrap());
        let chat = &golden["conversations"][conversation];
        let template = Template::new(built_in(name).unwrap(), 0).unwrap();
        let mut variables = variables(&golden);
        if let Some(tools) = chat.get("tools") {
            variables.insert("tools".to_owned(), from_json(tools));
        }
        let prompt = row["prompt"].as_bool().unwrap();
        let rendered = template.render(&values(&chat["messages"]), prompt, &variables);
        let refused = row.get("error").and_then(Json::as_str);
        if let (Some(reason), Err(e)) = (refused, &rendered) {
            assert!(e.problem.ends_with(reason), "{name}, {conversation}: {e} is not {reason}");
        }
        check(row, rendered.map_err(|e| e.problem), &format!("{name}, {conversation}, prompt {prompt}"));
    }
}

#[test]
fn pythons_ways_are_kept() {
    let golden: Json = serde_json::from_str(GOLDEN).unwrap();
    let rows = golden["expressions"].as_array().unwrap();
    assert_eq!(rows.len(), 39);
    for row in rows {
        let source = row["template"].as_str().unwrap();
        let rendered = Template::new(source, 0)
            .and_then(|t| t.render(&values(&golden["messages"]), false, &variables(&golden)).map_err(|e| e.problem));
        check(row, rendered, source);
    }
}

#[test]
fn mistakes_are_named_with_their_place() {
    let refused = |source: &str| Template::new(source, 0).err().unwrap();
    assert!(refused("a\n{{ b").starts_with("line 2, column "), "{}", refused("a\n{{ b"));
    assert!(refused("{% for m in messages %}").contains("end of input"), "{}", refused("{% for m in messages %}"));
    let e = refused("x\n  {% unless a %}");
    assert!(e.starts_with("line 2, column 6: ") && e.contains("unless"), "{e}");
    let e = refused("{% generation %}x");
    assert!(e.starts_with("line 1"), "{e}");

    let render = |source: &str| Template::new(source, 0).unwrap().render(&[], false, &Variables::new()).unwrap_err();
    let e = render("\n{{ 'a' | frobnicate }}");
    assert!(e.is_mistake && e.problem.starts_with("line 2") && e.problem.contains("frobnicate"), "{e}");
    let e = render("{{ raise_exception('no tools here') }}");
    assert_eq!((e.problem.as_str(), e.is_mistake), ("line 1: no tools here", false));
    assert!(render("{{ strftime_now('%Q') }}").problem.contains("%Q"));
    // Depth is bounded instead of overflowing the stack.
    for print in ["ns.x", "ns.x | tojson"] {
        let nest = "{% for i in range(500) %}{% set ns.x = [ns.x] %}{% endfor %}";
        let e = render(&format!("{{% set ns = namespace(x=1) %}}{nest}{{{{ {print} }}}}"));
        assert!(e.problem.contains("nested too deeply"), "{e}");
    }
}

#[test]
fn generation_marks_are_found_in_any_spelling() {
    let source =
        "{%generation%}a{%endgeneration%}b{%- generation -%} c {%- endgeneration +%}\n{% raw %}{% x %}{% endraw %}";
    let rendered = Template::new(source, 0).unwrap().render(&[], false, &Variables::new()).unwrap();
    assert_eq!(rendered, Rendered { text: "abc\n{% x %}".to_owned(), marks: vec![0..1, 2..3] });
    let inner = "{% generation %}a{% generation %}b{% endgeneration %}c{% endgeneration %}";
    let rendered = Template::new(inner, 0).unwrap().render(&[], false, &Variables::new()).unwrap();
    assert_eq!(rendered, Rendered { text: "abc".to_owned(), marks: vec![0..3] });
    let cut = "{% set x %}{% generation %}a{% endgeneration %}{% endset %}{{ x[:1] }}";
    assert!(Template::new(cut, 0).unwrap().render(&[], false, &Variables::new()).is_err());
    assert!(!Template::new("{# {% generation #}{{ generation }}", 0).unwrap().has_marks);
}

#[test]
fn dates_are_the_given_ones() {
    let template = Template::new("{{ strftime_now('%d %b %Y') }}", 1_735_689_599).unwrap();
    assert_eq!(template.render(&[], false, &Variables::new()).unwrap().text, "31 Dec 2024");
}
