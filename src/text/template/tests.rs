#![expect(clippy::unwrap_used, reason = "a panic is the failure of a test")]

use super::*;
use std::time::Duration;

fn turn<'m>(role: &'m str, content: &'m str) -> Turn<'m> {
    Turn { role: role.into(), content: content.into(), name: None }
}

fn render(source: &str, turns: &[Turn<'_>]) -> Result<String, TextError> {
    let (clock, _) = Clock::manual(Duration::from_secs(1_722_470_400)); // 2024-08-01
    Template::new(source, "<s>", "</s>", clock).unwrap().render(turns)
}

#[test]
fn blocks_take_their_line_with_them() {
    let source = "{% for m in messages %}\n    {% if m.role == 'user' %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\nend";
    assert_eq!(render(source, &[turn("user", "a"), turn("system", "b")]).unwrap(), "a\nend");
}

#[test]
fn pythons_methods_slices_and_loop_controls_work() {
    let source = "{% set rest = messages[1:] %}{% for m in rest %}{% if m['content'].startswith('stop') %}{% break %}{% endif %}\
        {{ m['content'].strip().split(' ')[-1] | upper }}{{ loop.index0 % 2 }};{% endfor %}{{ messages[0].get('name', 'nobody') }}";
    let turns = [turn("system", ""), turn("user", " a b "), turn("user", "c"), turn("user", "stop"), turn("user", "d")];
    assert_eq!(render(source, &turns).unwrap(), "B0;C1;nobody");
}

#[test]
fn bos_eos_and_what_isnt_there_are_as_hugging_face_has_them() {
    let source = "{{ bos_token }}{{ eos_token }}{% if tools is not none %}tools{% endif %}{% if custom is defined %}custom{% endif %}\
        {% if add_generation_prompt %}go{% endif %}";
    assert_eq!(render(source, &[]).unwrap(), "<s></s>go");
}

#[test]
fn json_is_pythons_with_keys_in_order_and_nothing_escaped_for_html() {
    let mut message = turn("user", "<b>'é' & \"q\"\n</b>");
    message.name = Some("x".into());
    assert_eq!(
        render("{{ messages | tojson }}", &[message]).unwrap(),
        r#"[{"role": "user", "content": "<b>'é' & \"q\"\n</b>", "name": "x"}]"#
    );
    assert_eq!(
        render("{{ messages | tojson(indent=2) }}", &[turn("a", "b")]).unwrap(),
        "[\n  {\n    \"role\": \"a\",\n    \"content\": \"b\"\n  }\n]"
    );
    assert_eq!(
        render("{{ {'a': [1, 2.5, none, true], 'b': {}} | tojson(ensure_ascii=false) }}", &[]).unwrap(),
        r#"{"a": [1, 2.5, null, true], "b": {}}"#
    );
    assert!(matches!(render("{{ messages | tojson(sort_keys=true) }}", &[]), Err(TextError::Render(_))));
}

#[test]
fn the_time_is_the_clocks() {
    assert_eq!(render("{{ strftime_now('%d %b %Y %H:%M') }}", &[]).unwrap(), "01 Aug 2024 00:00");
    assert!(matches!(render("{{ strftime_now('%') }}", &[]), Err(TextError::Render(_))));
}

#[test]
fn an_exception_raised_inside_a_macro_is_still_the_clients() {
    let source = "{% macro check(m) %}{{ raise_exception('no ' + m.role) }}{% endmacro %}{{ check(messages[0]) }}";
    assert!(matches!(render(source, &[turn("tool", "")]), Err(TextError::Refused(message)) if message == "no tool"));
}

#[test]
fn a_template_that_would_run_or_grow_for_ever_fails() {
    let long = "{% for a in range(10000) %}{% for b in range(10000) %}{% for c in range(10000) %}{% endfor %}{% endfor %}{% endfor %}";
    let deep = "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}";
    let wide = "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}";
    let json = "{% for i in range(100000) %}{% set s = messages | tojson %}{% endfor %}";
    let content = "x".repeat(100_000);
    for source in [long, deep, wide, json] {
        assert!(matches!(render(source, &[turn("user", &content)]), Err(TextError::Render(_))), "{source}");
    }
}

#[test]
fn a_long_conversation_is_no_reason_to_fail() {
    let source = "{% for m in messages %}{% if m.role == 'user' %}<u>{{ m.content | trim }}{% else %}<a>{{ m.content | trim }}{% endif %}{% endfor %}";
    let content = "word ".repeat(200);
    let turns: Vec<_> = (0..5_000).map(|at| turn(if at % 2 == 0 { "user" } else { "assistant" }, &content)).collect();
    assert_eq!(render(source, &turns).unwrap().len(), 5_000 * (3 + content.len() - 1));
}
