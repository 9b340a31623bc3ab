//! The page: one file that needs no other, with its data in it.

use anyhow::{Context, Result};
use serde_json::Value;
use std::path::Path;

const TEMPLATE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPTS: [&str; 3] = [include_str!("charts.js"), include_str!("timeline.js"), include_str!("page.js")];

/// The page with this data.
pub fn html(data: &Value) -> String {
    let pieces = [("STYLE", STYLE.to_owned()), ("DATA", embedded(data)), ("SCRIPT", SCRIPTS.concat())];
    let mut html = String::with_capacity(TEMPLATE.len() + pieces.iter().map(|(_, text)| text.len()).sum::<usize>());
    let mut rest = TEMPLATE;
    // One pass from the left: a mark inside a piece stays what it is.
    for (mark, text) in pieces {
        let (before, after) =
            rest.split_once(&format!("/*{mark}*/")).expect("the template has its marks in this order");
        html += before;
        html += &text;
        rest = after;
    }
    html + rest
}

/// JSON that cannot end the element it stands in: `<` occurs in its strings alone, and is escaped there.
fn embedded(data: &Value) -> String {
    data.to_string().replace('<', "\\u003c")
}

/// Replaces the page in one go: whoever reads it sees the old one or the new one.
///
/// # Errors
/// If it cannot be written.
pub fn write(dir: &Path, data: &Value) -> Result<()> {
    let path = dir.join(super::PAGE);
    let new = dir.join(format!(".{}.{}", super::PAGE, std::process::id()));
    let written = std::fs::write(&new, html(data)).and_then(|()| std::fs::rename(&new, &path));
    if written.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    written.with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The data of a page, as a browser's script reads it.
    fn data(html: &str) -> Value {
        let (_, rest) = html.split_once(r#"<script id="data" type="application/json">"#).unwrap();
        serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
    }

    #[test]
    fn no_text_leaves_its_place() {
        let hostile =
            json!({ "samples": ["</script><script>alert(1)</script>", "<!--", "/*SCRIPT*/", "\u{2028}&amp;"] });
        let html = html(&hostile);
        assert_eq!(data(&html), hostile);
        let count = |text: &str| html.matches(text).count();
        assert_eq!((count("<script"), count("</script>"), count("<!--")), (2, 2, 0));
    }

    #[test]
    fn the_page_names_nothing_outside_itself() {
        let html = html(&json!(null));
        for mark in ["http://", "https://", "src=", "@import", "url(", "<link"] {
            assert!(!html.contains(mark), "{mark}");
        }
        assert!(html.contains("default-src 'none'"));
    }

    #[test]
    fn the_page_is_replaced_whole() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &json!(1)).unwrap();
        write(dir.path(), &json!(2)).unwrap();
        let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|f| f.unwrap().file_name()).collect();
        assert_eq!(names, [super::super::PAGE]);
        assert_eq!(data(&std::fs::read_to_string(dir.path().join(super::super::PAGE)).unwrap()), json!(2));
        assert!(write(&dir.path().join("absent"), &json!(3)).is_err());
    }
}
