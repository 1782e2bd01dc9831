//! Texts that may be shown although they hold addresses.

/// `text` without user names and passwords in the addresses it holds: `https://user:secret@host` becomes `https://***@host`.
pub fn text(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(scheme) = rest.find("://") {
        let (before, after) = rest.split_at(scheme + 3);
        shown.push_str(before);
        let authority =
            after.find(|c: char| c == '/' || c == '?' || c == '#' || c == '"' || c == '\'' || c.is_whitespace()).unwrap_or(after.len());
        match after[..authority].rfind('@') {
            Some(at) => {
                shown.push_str("***");
                rest = &after[at..];
            }
            None => rest = after,
        }
    }
    shown + rest
}

/// `address` without user name, password and query; signed addresses carry their signature in the query.
pub fn address(address: &str) -> String {
    text(address.split(['?', '#']).next().unwrap_or(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_in_addresses_are_not_shown() {
        assert_eq!(
            text("Looking in indexes: https://me:pass@word@index.example/simple, ok"),
            "Looking in indexes: https://***@index.example/simple, ok"
        );
        assert_eq!(text("https://token@a/x https://b/y@z"), "https://***@a/x https://b/y@z");
        assert_eq!(text("nothing here: a@b"), "nothing here: a@b");
        assert_eq!(address("https://u:p@cdn.example/f.gguf?X-Signature=abc#x"), "https://***@cdn.example/f.gguf");
    }
}
