//! Who used what: for operators of all tenants, for clients of their own.

mod support;

use roundhouse::config::Config;
use serde_json::{Value, json};
use support::client::Client;
use support::server::KEY;
use support::tenants::Place;

const OTHER: &str = "rh_another-tenants-key";

fn place() -> Place {
    let other = blake3::hash(OTHER.as_bytes()).to_hex();
    Place::new(&format!(
        "[tenants.acme]\nkeys = [{{ name = \"ci\", hash = \"KEY_HASH\" }}]\n[tenants.other]\nkeys = [{{ name = \"main\", hash = \"{other}\" }}]\n\
         [billing]\ncurrency = \"EUR\"\n"
    ))
}

async fn complete(client: &Client) -> Value {
    let answer =
        client.post("/v1/completions", &json!({ "model": "tiny", "prompt": "the hand", "max_tokens": 4, "ignore_eos": true })).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

#[tokio::test]
async fn usage_is_the_sum_of_the_clients_own_and_each_tenant_sees_its_own() {
    let place = place();
    let config = Config::parse(&place.text(), &place.file()).expect("it is valid");
    assert_eq!(config.billing.currency, "EUR".into());
    let server = place.start();
    let (acme, other) = (Client::new(server.address(), Some(KEY)), Client::new(server.address(), Some(OTHER)));
    let (first, second, third) = (complete(&acme).await, complete(&acme).await, complete(&other).await);
    let tokens = |answers: &[&Value], of: &str| answers.iter().filter_map(|answer| answer["usage"][of].as_u64()).sum::<u64>();
    let nanos = |text: &Value| (text.as_str().expect("a decimal").parse::<f64>().expect("a decimal") * 1e9).round() as u64;

    let own = acme.get("/v1/usage").await.json();
    let row = &own["data"][0];
    assert_eq!((own["data"].as_array().map(Vec::len), &own["currency"]), (Some(1), &json!("EUR")), "{own}");
    assert_eq!((&row["tenant"], &row["model"], &row["requests"]), (&json!("acme"), &json!("tiny"), &json!(2)));
    assert_eq!(row["prompt_tokens"], tokens(&[&first, &second], "prompt_tokens"));
    assert_eq!(row["completion_tokens"], tokens(&[&first, &second], "completion_tokens"));
    assert_eq!(nanos(&row["cost"]), nanos(&first["usage"]["cost"]) + nanos(&second["usage"]["cost"]));
    assert!(row["device_ms"].as_f64() > Some(0.0));
    let refused = acme.get("/v1/usage?tenant=other").await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("tenant")));

    let admin = Client::new(server.admin_address(), None);
    for by in ["model", "key", "day", "variant"] {
        let all = admin.get(&format!("/admin/v1/usage?by={by}")).await.json();
        let rows = all["data"].as_array().unwrap_or_else(|| panic!("{all}")).clone();
        assert_eq!(rows.len(), 2, "{all}");
        let sum: u64 = rows.iter().filter_map(|row| row["completion_tokens"].as_u64()).sum();
        assert_eq!(sum, tokens(&[&first, &second, &third], "completion_tokens"));
        assert!(rows.iter().all(|row| row[by].is_string()), "{all}");
    }
    let one = admin.get("/admin/v1/usage?tenant=other&by=key").await.json();
    assert_eq!((&one["data"][0]["key"], one["data"].as_array().map(Vec::len)), (&json!("main"), Some(1)));
    assert_eq!(admin.get("/admin/v1/usage?to=2020-01-01&from=2019-01-01").await.json()["data"], json!([]));
    assert_eq!(admin.get("/admin/v1/usage?by=hour").await.status, 400);

    let table = admin.get("/admin/v1/usage?format=csv&tenant=acme").await;
    assert!(table.header("content-type").is_some_and(|kind| kind.starts_with("text/csv")));
    let table = String::from_utf8(table.body.to_vec()).expect("text");
    let lines: Vec<&str> = table.split_terminator("\r\n").collect();
    assert_eq!(lines[0], "tenant,model,requests,prompt_tokens,cached_tokens,completion_tokens,device_ms,cost");
    assert!(lines.len() == 2 && lines[1].starts_with("acme,tiny,2,"), "{table}");
}
