//! Strings out of the JSON that cargo prints, without a parser: cargo writes it without spaces.

/// The string that is the value of the first `"KEY":` in the text; `None` if there is none.
pub fn string(text: &str, key: &str) -> Option<String> {
    let start = format!("\"{key}\":\"");
    let mut rest = text.split_once(&start)?.1.chars();
    let mut value = String::new();
    loop {
        value.push(match rest.next()? {
            '"' => return Some(value),
            '\\' => match rest.next()? {
                'n' => '\n',
                't' => '\t',
                'u' => char::from_u32(u32::from_str_radix(&rest.by_ref().take(4).collect::<String>(), 16).ok()?)?,
                literal => literal,
            },
            plain => plain,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_and_unescaped() {
        let text = r#"{"about":"\"a\":\"no\"","a":"one \"two\" \\ \u00e9/\t","b":null,"c":"end"}"#;
        assert_eq!(string(text, "a").as_deref(), Some("one \"two\" \\ é/\t"));
        assert_eq!(string(text, "c").as_deref(), Some("end"));
        assert_eq!(string(text, "b"), None);
        assert_eq!(string(r#"{"a":"cut"#, "a"), None);
    }
}
