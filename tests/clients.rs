//! The clients that users already have work as they are, down to their own exceptions.

mod support;

use roundhouse::config::{Environment, Key, Limit, Limits, Name, Tenant};
use roundhouse::roundhouse::Models;
use std::process::Command;
use std::sync::Arc;
use support::{Silent, python, server};

const SPENT_KEY: &str = "rh_a-key-that-may-send-nothing";

#[test]
fn the_official_python_client_chats_streams_completes_and_raises_its_own_exceptions() {
    let mut config = server::config();
    let acme = config.tenants.get_mut("acme").expect("it is configured");
    let limits = Limits { all: Limit { requests_per_minute: Some(0), ..Limit::default() }, ..Limits::default() };
    let spent = Key { limits, ..Key::new(Name::from("spent"), *blake3::hash(SPENT_KEY.as_bytes()).as_bytes()) };
    let keys = [acme.keys.clone(), vec![spent]].concat();
    *acme = Arc::new(Tenant { keys, ..Tenant::clone(acme) });
    let models = Models::new(&config, &Environment::from_process(), &Silent).expect("the device opens");
    let server = server::with(config, models);

    let url = format!("http://{}/v1", server.address());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/openai_python.py");
    let mut client = Command::new(python::with(&["openai==3.57.0"]));
    let said = python::run(client.args([script, &url, server::KEY, SPENT_KEY, "smollm2-135m"]));
    assert_eq!(said.trim(), "all held");
}
