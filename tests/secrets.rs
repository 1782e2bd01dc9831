//! Whatever happens, no secret and no prompt is printed: not in the log at its most talkative, not in errors, metrics or what
//! operators are answered.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use std::fs::File;
use std::io::Read;
use std::process::Command;
use support::bad_upstream::{BadUpstream, answer, good};
use support::client::Client;
use support::process::Process;
use support::server::KEY;
use support::tenants::Place;
use support::tokens::Issuer;

const ADMIN: &str = "the-token-of-the-operators";
const UPSTREAM: &str = "the-key-that-only-upstreams-see";
const PASSWORD: &str = "the-password-of-the-database";
const LITERAL: &str = "a-token-that-someone-wrote-into-the-file";
const WRONG: &str = "rh_a-key-that-was-mistyped-and-is-nobodys";
const PROMPT: &str = "whatwasaskedinconfidence";
const VARIABLES: [(&str, &str); 4] =
    [("RUST_LOG", "trace"), ("TEST_ADMIN_TOKEN", ADMIN), ("TEST_UPSTREAM_KEY", UPSTREAM), ("RUST_BACKTRACE", "1")];

/// What was printed, and where, in the order it was heard of.
#[derive(Default)]
struct Printed(Vec<(String, String)>);

// === impl Printed ===

impl Printed {
    fn add(&mut self, place: &str, text: impl AsRef<[u8]>) {
        self.0.push((place.to_owned(), String::from_utf8_lossy(text.as_ref()).into_owned()));
    }

    fn holds_none_of(&self, secrets: &[&str]) {
        for (place, text) in &self.0 {
            for secret in secrets {
                assert!(!text.contains(secret), "{secret} is in {place}: {:?}", around(text, secret));
            }
        }
    }
}

fn around<'t>(text: &'t str, secret: &str) -> &'t str {
    let line = text.find(secret).map_or(0, |at| text[..at].rfind('\n').map_or(0, |newline| newline + 1));
    text[line..].lines().next().unwrap_or_default()
}

fn place(issuer: &Issuer, upstream: &BadUpstream) -> Place {
    let place = Place::new(&format!(
        "[models.far.variants]\nonly.backends = [\"far\"]\n\
         [upstreams.far]\nurl = \"http://{}/v1\"\napi_key = \"${{TEST_UPSTREAM_KEY}}\"\nretries.attempts = 1\n\
         [tenants.acme]\nkeys = [{{ name = \"ci\", hash = \"KEY_HASH\" }}]\n{}",
        upstream.address,
        Issuer::toml()
    ));
    std::fs::write(place.file().with_file_name("jwks.json"), issuer.set()).unwrap();
    write(&place, "${TEST_ADMIN_TOKEN}");
    place
}

/// The place's file with this as the operators' token.
fn write(place: &Place, token: &str) {
    let admin = format!("admin = {{ listen = \"127.0.0.1:0\", token = \"{token}\" }}");
    std::fs::write(place.file(), place.text().replace("admin.listen = \"127.0.0.1:0\"", &admin)).unwrap();
}

/// Requests that go well and wrong in many ways; only answers to the operators are kept, as only these are nobody's own.
async fn use_it(process: &Process, secrets: &[&str], upstream: &BadUpstream, printed: &mut Printed) {
    let chat = |model: &str, stream: bool| json!({ "model": model, "messages": [{ "role": "user", "content": PROMPT }], "max_tokens": 3, "stream": stream, "user": PROMPT });
    for secret in secrets {
        let client = Client::new(process.address, Some(secret));
        for stream in [false, true] {
            printed.add("an answer", client.post("/v1/chat/completions", &chat("far", stream)).await.body);
            client.post("/v1/chat/completions", &chat("tiny", stream)).await;
        }
        client.post("/v1/completions", &json!({ "model": "tiny", "prompt": PROMPT, "n": 2, "max_tokens": 3 })).await;
        for broken in [
            json!({ "model": PROMPT, "prompt": PROMPT }),
            json!({ "model": "tiny", "prompt": { "text": PROMPT } }),
            json!({ "model": "tiny", "messages": PROMPT }),
            json!({ "model": "tiny", "prompt": PROMPT.repeat(2000) }),
            json!({ "model": "tiny", "prompt": PROMPT, "nonsense": PROMPT }),
        ] {
            client.post("/v1/completions", &broken).await;
        }
        let headers = [("content-type", "application/json"), ("cookie", *secret)];
        client.send(Method::POST, "/v1/completions", &headers, format!("{{\"prompt\": \"{PROMPT}")).await.whole().await;
        client.get(&format!("/v1/models?api_key={secret}")).await;
        client.get("/v1/models/none").await;
        client.get(&format!("/v1/{secret}")).await;
        http2(process, secret).await;
        let by_anthropics_header = Client::new(process.address, None);
        by_anthropics_header.send(Method::GET, "/v1/models", &[("x-api-key", secret)], "").await.whole().await;
    }
    for (status, deed) in [("401 Unauthorized", 401), ("400 Bad Request", 400), ("500 Sorry", 500)] {
        let body = json!({ "error": { "message": format!("Incorrect API key provided: {UPSTREAM}."), "code": deed } });
        upstream.changes_to(answer(status, "content-type: application/json\r\n", &body.to_string()));
        let refusal = Client::new(process.address, Some(KEY)).post("/v1/chat/completions", &chat("far", false)).await;
        assert_ne!(refusal.status, 200);
        if deed != 400 {
            printed.add("an answer", refusal.body); // what is wrong with a request its sender is told in the upstream's words
        }
    }
}

/// A request over HTTP/2, whose headers take another way.
async fn http2(process: &Process, secret: &str) {
    let stream = tokio::net::TcpStream::connect(process.address).await.unwrap();
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let body = json!({ "model": "tiny", "prompt": PROMPT, "max_tokens": 2 }).to_string();
    let request = Request::post(format!("http://{}/v1/completions", process.address));
    let request = request.header("authorization", format!("Bearer {secret}")).header("content-type", "application/json");
    let answer = sender.send_request(request.body(Full::<Bytes>::from(body)).unwrap()).await.unwrap();
    answer.into_body().collect().await.unwrap();
}

#[tokio::test]
async fn nothing_that_a_server_prints_holds_a_secret_or_a_prompt() {
    let (issuer, upstream) = (Issuer::new(), BadUpstream::always(good()).await);
    let place = place(&issuer, &upstream);
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut process = Process::with_log_file(&place, File::create(log.path()).unwrap(), &VARIABLES);
    let (mut printed, operator) = (Printed::default(), Client::new(process.admin, Some(ADMIN)));

    let made = operator.post("/admin/v1/keys", &json!({ "tenant": "acme", "name": "made" })).await.json();
    let rotated = operator.post("/admin/v1/keys/acme/made/rotate", &json!({ "overlap": "1h" })).await.json();
    let (made, rotated) = (made["secret"].as_str().unwrap().to_owned(), rotated["secret"].as_str().unwrap().to_owned());
    let (token, over, foreign) =
        (issuer.sign("acme", "alice", 600), issuer.sign("acme", "alice", -600), Issuer::new().sign("acme", "alice", 600));
    let secrets: Vec<&str> = vec![KEY, &made, &rotated, &token, &over, &foreign, WRONG, ADMIN];
    use_it(&process, &secrets, &upstream, &mut printed).await;

    for wrong in [WRONG, KEY] {
        printed.add("a refusal", Client::new(process.admin, Some(wrong)).get("/metrics").await.body);
    }
    write(&place, LITERAL);
    printed.add("a reload", operator.post("/admin/v1/reload", &json!({})).await.body);
    operator.post("/admin/v1/keys/acme/made/revoke", &json!({})).await;
    operator.post("/admin/v1/keys", &json!({ "tenant": "acme", "name": "ci", "secret": WRONG })).await;
    for path in ["/admin/v1/status", "/admin/v1/keys", "/metrics"] {
        let answer = operator.get(path).await;
        assert_eq!(answer.status, 200, "{path}");
        printed.add(path, answer.body);
    }
    process.signal("TERM");
    assert!(process.wait().success());
    let mut out = Vec::new();
    process.out.read_to_end(&mut out).unwrap();
    printed.add("stdout", out);
    let log = std::fs::read_to_string(log.path()).unwrap();
    printed.add("the log", &log);

    // What would make all of this say nothing:
    assert!(log.contains("TRACE") && log.matches("outcome=").count() > 50, "{log}");
    let asked = upstream.requests().concat();
    assert!(asked.contains(UPSTREAM) && asked.contains(PROMPT), "{asked}");
    assert!(secrets.iter().all(|secret| !asked.contains(secret)), "a client's key is never forwarded");

    let signatures: Vec<_> = [&token, &over, &foreign].map(|token| token.rsplit('.').next().unwrap()).into();
    printed.holds_none_of(&[&secrets[..], &signatures[..], &[UPSTREAM, LITERAL]].concat());
    let not_own: Vec<_> = printed.0.into_iter().filter(|(place, _)| place != "an answer").collect();
    Printed(not_own).holds_none_of(&[PROMPT, "Hello"]);
}

#[test]
fn nothing_that_the_command_line_prints_holds_the_password_of_a_store_that_isnt_there() {
    let place = Place::new("[tenants.acme]\nkeys = [{ name = \"ci\", hash = \"KEY_HASH\" }]\n");
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("postgres://roundhouse:{PASSWORD}@{unused}/bills");
    std::fs::write(place.file(), place.text().replace("sqlite:ledger.db", "${TEST_STORE}")).unwrap();
    let mut printed = Printed::default();
    for (arguments, code) in [
        (&["check"][..], 0),
        (&["check", "--json"], 0),
        (&["serve"], 1),
        (&["keys", "list"], 1),
        (&["keys", "new", "--tenant", "acme", "--name", "a"], 1),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_roundhouse"));
        let output = command.args(arguments).arg("--config").arg(place.file()).env("TEST_STORE", &url).env("RUST_LOG", "trace").output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        printed.add(&arguments.join(" "), [output.stdout, output.stderr].concat());
    }
    // Written down in the file it is refused, and not repeated.
    std::fs::write(place.file(), place.text().replace("sqlite:ledger.db", &url)).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_roundhouse")).args(["check", "--config"]).arg(place.file()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    printed.add("check of a password in the file", [output.stdout, output.stderr].concat());
    printed.holds_none_of(&[PASSWORD]);
}

#[test]
fn a_secret_that_is_made_is_printed_where_it_was_asked_for_and_nowhere_else() {
    let place = Place::new("[tenants.acme]\n");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_roundhouse"));
        command.args(arguments).arg("--config").arg(place.file()).env("RUST_LOG", "trace").output().unwrap()
    };
    let made = run(&["keys", "new", "--tenant", "acme", "--name", "a", "--json"]);
    let secret: Value = serde_json::from_slice(&made.stdout).unwrap();
    let secret = secret["secret"].as_str().unwrap();
    let mut printed = Printed::default();
    printed.add("the log of its making", made.stderr);
    let listed = run(&["keys", "list", "--json"]);
    printed.add("the list", [listed.stdout, listed.stderr].concat());
    for file in std::fs::read_dir(place.file().parent().unwrap()).unwrap() {
        let file = file.unwrap().path();
        printed.add(&file.display().to_string(), std::fs::read(&file).unwrap());
    }
    printed.holds_none_of(&[secret]);
    assert!(
        printed
            .0
            .iter()
            .any(|(place, text)| place.contains("ledger.db") && text.contains(blake3::hash(secret.as_bytes()).to_hex().as_str()))
    );
}
