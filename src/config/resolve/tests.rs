#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::config::{Class, KvDtype, Quantize, Weights};
use std::path::PathBuf;

fn parse(text: &str) -> Result<Config, ConfigError> {
    parse_with(text, Path::new("conf/r.toml"), &|name| (name == "TOKEN").then(|| "s3cret".to_owned()))
}

/// The problems as the user reads them, without the file's name.
fn problems(text: &str) -> Vec<String> {
    let Err(ConfigError::Invalid { problems }) = parse(text) else { panic!("this should be refused:\n{text}") };
    problems.iter().map(|problem| problem.to_string().strip_prefix("conf/r.toml:").unwrap().to_owned()).collect()
}

/// A valid configuration, so that a test adds only what it is about.
const VALID: &str = r#"
shards.a = { weights = "file:a.gguf", kv_cache = { memory = "1MiB" } }
models.m.variants.v = { backends = ["a"] }
"#;

fn problems_beside_valid(text: &str) -> Vec<String> {
    problems(&format!("{VALID}{text}"))
}

#[test]
fn an_empty_file_means_the_built_in_configuration() {
    assert_eq!(Config::parse("", Path::new("r.toml")).unwrap(), Config::default());
}

#[test]
fn the_reference_file_names_every_default() {
    let text = include_str!("../../../config/roundhouse.toml");
    assert_eq!(Config::parse(text, Path::new("r.toml")).unwrap(), Config::default());
    for key in [
        "listen",
        "threads",
        "isa",
        "memory",
        "sha256",
        "block_tokens",
        "share_prefixes",
        "on_store_loss",
        "top_p",
        "requests_per_minute",
        "token",
        "quota",
        "prices",
    ] {
        assert!(text.contains(key), "{key}");
    }
}

#[test]
fn every_ready_example_loads() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    let mut loaded = Vec::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let file = file.unwrap().path();
        loaded.push(file.file_name().unwrap().to_owned());
        Config::load(&file).unwrap();
    }
    assert!(loaded.len() >= 3, "{loaded:?}");
}

#[test]
fn an_unknown_key_is_refused_with_its_place_and_the_nearest_name() {
    assert_eq!(problems("[server]\nlistn = \"127.0.0.1:1\"\n"), ["2:1: server.listn: unknown key `listn`; did you mean `listen`?"]);
    assert_eq!(problems("\n[sever]\n"), ["2:2: sever: unknown key `sever`; did you mean `server`?"]);
    assert_eq!(
        problems_beside_valid("[shards.b]\nkv_cache = { memry = 1 }"),
        [
            "4:9: shards.b.weights: this key is missing",
            "4:9: shards.b: no model has this shard among its backends, so nobody could reach it",
            "5:14: shards.b.kv_cache.memry: unknown key `memry`; did you mean `memory`?",
        ]
    );
    let unlike = problems("[admin]\nqqqqqqqqq = 1\n");
    assert_eq!(unlike, ["2:1: admin.qqqqqqqqq: unknown key `qqqqqqqqq`; there is `listen`, `token`, `tls`"]);
}

#[test]
fn keys_that_nothing_enforces_yet_are_unknown() {
    let found = problems_beside_valid("[shards.b]\nweights = \"file:b\"\nreproducible = true\nitl_target = \"50ms\"\n");
    assert_eq!(found.iter().filter(|problem| problem.contains("unknown key `")).count(), 2, "{found:?}");
}

#[test]
fn a_currency_is_a_code() {
    assert_eq!(parse("[billing]\ncurrency = \"EUR\"\n").unwrap().billing.currency, "EUR".into());
    for wrong in ["\"\"", "\"eur\"", "\"€\"", "\"US Dollar\""] {
        assert_eq!(problems(&format!("[billing]\ncurrency = {wrong}\n")).len(), 1, "{wrong}");
    }
}

#[test]
fn a_tenant_has_a_weight_and_a_class() {
    let config = parse("[tenants.a]\nweight = 4\nclass = \"batch\"\n[tenants.b]\n").unwrap();
    assert_eq!((config.tenants["a"].weight.get(), config.tenants["a"].class), (4, Class::Batch));
    assert_eq!((config.tenants["b"].weight.get(), config.tenants["b"].class), (1, Class::Interactive));
    for wrong in ["weight = 0", "weight = -1", "class = \"bulk\""] {
        assert_eq!(problems(&format!("[tenants.a]\n{wrong}\n")).len(), 1, "{wrong}");
    }
}

#[test]
fn every_problem_of_a_file_is_told_at_once_and_in_its_order() {
    let text = r#"
[server]
listen = "localhost:8080"
threads = 0
unknown_parameters = "refuze"
[admin]
listen = 9090
[devices.cpu]
isa = "avx3"
memory = "170%"
[shards.a]
weights = "smollm2"
device = "cuda:0"
max_batch_tokens = 0
[models.m.variants]
v = { backends = ["b"], sampling = { temperature = 3 } }
"#;
    let found = problems(text);
    let keys: Vec<_> = found.iter().map(|problem| problem.split(':').nth(2).unwrap().trim().to_owned()).collect();
    assert_eq!(
        keys,
        [
            "server.listen",
            "server.threads",
            "server.unknown_parameters",
            "admin.listen",
            "devices.cpu.isa",
            "devices.cpu.memory",
            "shards.a",
            "shards.a.weights",
            "shards.a.device",
            "shards.a.max_batch_tokens",
            "models.m.variants.v.backends[0]",
            "models.m.variants.v.sampling.temperature",
        ],
        "{found:#?}"
    );
    assert!(found[2].contains("did you mean `refuse`?"), "{}", found[2]);
    assert!(found[4].contains("did you mean `avx2`?"), "{}", found[4]);
}

#[test]
fn a_value_of_the_wrong_type_names_what_is_expected() {
    assert_eq!(
        problems("[server]\nmax_body = true\n"),
        ["2:12: server.max_body: invalid type: boolean `true`, expected an amount of memory such as \"512MiB\" or a number of bytes"]
    );
    assert!(problems("server = 5\n")[0].starts_with("1:10: server: "));
    assert!(problems_beside_valid("[tenants.t]\nmodels = [\"m\", 5]\n")[0].starts_with("5:16: tenants.t.models[1]: "));
    assert!(problems_beside_valid("[[tenants.t.keys]]\nname = \"k\"\nhash = \"zz\"\n")[0].starts_with("6:8: tenants.t.keys[0].hash: "));
}

#[test]
fn a_file_that_is_no_toml_is_refused_with_the_place() {
    let found = problems("[server\nlisten = \n");
    assert!(found[0].starts_with("1:") && found[0].contains("this isn't TOML"), "{found:?}");
}

#[test]
fn a_reference_to_nothing_names_the_nearest_shard_or_model() {
    let text = "shards.smol-q4 = { weights = \"file:a\" }\nmodels.m.variants.v = { backends = [\"smol-q5\", \"smol-q4\"] }\n";
    assert_eq!(problems(text), ["2:37: models.m.variants.v.backends[0]: there is no shard `smol-q5`; did you mean `smol-q4`?"]);
    let tenant = problems_beside_valid("[tenants.t]\nmodels = [\"mm\"]\n");
    assert_eq!(tenant, ["5:11: tenants.t.models[0]: there is no model `mm`; did you mean `m`?"]);
}

#[test]
fn names_and_aliases_of_models_never_collide() {
    let text = "models.n = { aliases = [\"m\", \"x\", \"x\"], variants.v = { backends = [\"a\"] } }\n";
    let found = problems_beside_valid(text);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].contains("models.n.aliases[0]") && found[1].contains("models.n.aliases[2]"), "{found:?}");
}

#[test]
fn a_model_has_a_variant_and_a_variant_at_least_one_backend() {
    let shard = "shards.a = { weights = \"file:a\" }\n";
    let several = format!("{shard}models.m.variants = {{ v = {{ backends = [\"a\"] }}, w = {{ backends = [\"a\"] }} }}\n");
    assert!(problems(&several)[0].contains("a second variant needs rules"));
    assert!(problems(&format!("{shard}[models.m]\n")).iter().any(|problem| problem.contains("a model needs a variant")));
    assert!(
        problems(&format!("{shard}models.m.variants.v.backends = []\n")).iter().any(|problem| problem.contains("at least one backend"))
    );
    assert!(problems_beside_valid("models.n.variants.v.backends = [\"a\", \"a\"]\n")[0].contains("in this list already"));
}

#[test]
fn a_shard_that_no_model_uses_is_refused() {
    assert!(problems("shards.a = { weights = \"file:a\" }\n")[0].contains("nobody could reach it"));
}

#[test]
fn one_secret_is_one_key_of_one_tenant() {
    let hash = "ab".repeat(32);
    let text = format!(
        "[[tenants.a.keys]]\nname = \"one\"\nhash = \"{hash}\"\n[[tenants.b.keys]]\nname = \"two\"\nhash = \"{}\"\n",
        hash.to_uppercase()
    );
    assert_eq!(problems(&text), ["6:8: tenants.b.keys[0].hash: `tenants.a.keys[0]` is the same key"]);
    let names = format!("[tenants.a]\nkeys = [{{ name = \"x\", hash = \"{hash}\" }}, {{ name = \"x\" }}]\n");
    let found = problems(&names);
    assert!(found.iter().any(|problem| problem.contains("another key of this tenant")), "{found:?}");
    assert!(found.iter().any(|problem| problem.contains("tenants.a.keys[1].hash: this key is missing")), "{found:?}");
}

#[test]
fn an_admin_port_without_a_token_stays_on_the_loopback_address() {
    assert!(problems("[admin]\nlisten = \"0.0.0.0:9090\"\n")[0].contains("loopback"));
    assert!(parse("[admin]\nlisten = \"0.0.0.0:9090\"\ntoken = \"${TOKEN}\"\n").is_ok());
    assert!(parse("[admin]\nlisten = \"[::1]:9090\"\n").is_ok());
}

#[test]
fn the_two_ports_are_different_ones() {
    assert_eq!(
        problems("[server]\nlisten = \"127.0.0.1:9090\"\n"),
        ["2:10: admin.listen: `server.listen` takes this port already, at 127.0.0.1:9090"]
    );
    assert!(problems("[server]\nlisten = \"0.0.0.0:9090\"\n")[0].contains("takes this port already"));
    assert!(parse("[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n").is_ok());
}

#[test]
fn a_secret_comes_from_the_environment_or_a_file_and_is_never_repeated() {
    let config = parse("admin.token = \"${TOKEN}\"\n").unwrap();
    assert_eq!(config.admin.token.as_ref().map(crate::config::Secret::expose), Some("s3cret"));
    assert!(!format!("{config:?}{}", serde_json::to_string(&config).unwrap()).contains("s3cret"));
    assert!(problems("admin.token = \"${NOT_SET}\"\n")[0].contains("the environment has no variable `NOT_SET`"));

    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), "from a file\n").unwrap();
    let file = |text: &str| parse_with(text, &folder.path().join("r.toml"), &|_| None);
    let config = file("admin.token = { file = \"token\" }\n").unwrap();
    assert_eq!(config.admin.token.as_ref().map(crate::config::Secret::expose), Some("from a file"));
    assert!(file("admin.token = { file = \"missing\" }\n").is_err());

    for literal in ["\"hunter2\"", "12345678", "1.5", "{ fil = \"hunter2\" }"] {
        let found = problems(&format!("admin.token = {literal}\n")).join("");
        assert!(!found.contains("hunter2") && !found.contains("12345678"), "{found}");
    }
}

#[test]
fn the_kv_caches_of_a_device_fit_into_it() {
    let text = r#"
devices.cpu.memory = "1GiB"
shards.a = { weights = "file:a", kv_cache.memory = "600MiB" }
shards.b = { weights = "file:b", kv_cache.memory = "600MiB" }
models.m.variants.v.backends = ["a", "b"]
"#;
    assert!(problems(text)[0].starts_with("4:52: shards.b.kv_cache.memory: the KV caches up to this one take"), "{:?}", problems(text));
}

#[test]
fn what_the_file_says_is_what_is_configured() {
    let text = r#"
server = { listen = "[::1]:81", threads = 3, max_body = "1MiB", unknown_parameters = "ignore", show_backend = false }
devices.cpu = { threads = 2, isa = "portable", memory = "1GiB" }
shards.a = { weights = "file:w/a.gguf", quantize = "q8_0", kv_cache = { memory = "1MiB", dtype = "f32", block_tokens = 32 }, max_sequences = 2 }
models."org/m-1.5".aliases = ["m"]
models."org/m-1.5".variants.v = { backends = ["a"], sampling = { temperature = 0, top_p = 0.5 } }
tenants.t = { models = ["m"], limits = { requests_per_minute = 0 } }
tenants.none = { models = [] }
"#;
    let config = parse(text).unwrap();
    assert_eq!((config.version, config.server.threads, config.server.max_body, config.server.show_backend), (1, 3, 1 << 20, false));
    let shard = &config.shards["a"];
    assert_eq!(shard.weights, Weights::File(PathBuf::from("conf/w/a.gguf")));
    assert_eq!((shard.quantize, shard.kv_cache.dtype, shard.kv_cache.block_tokens.get()), (Quantize::Q8_0, KvDtype::F32, 32));
    assert_eq!((shard.max_batch_tokens, shard.max_sequences), (512, 2));
    let model = config.model("m").unwrap();
    assert_eq!(model.name.as_str(), "org/m-1.5");
    assert_eq!(model.variants["v"].sampling.temperature, 0.0);
    let tenant = &config.tenants["t"];
    assert!(tenant.may_use(&model.name) && tenant.limits.all.requests_per_minute == Some(0) && tenant.keys.is_empty());
    assert!(!config.tenants["none"].may_use(&model.name));
}

#[test]
fn a_name_that_no_header_could_carry_is_refused() {
    assert!(problems("tenants.\"a b\" = {}\n")[0].contains("a name has"));
    assert!(problems("tenants.\"\" = {}\n")[0].contains("a name has"));
}

const BILLED: &str = r#"
[store]
ledger = "sqlite:bills.db"
on_store_loss = "local"
[models.m]
aliases = ["nick"]
prices = { input = 0.05, output = 1 }
variants.v.backends = ["s"]
[shards.s]
weights = "file:w.gguf"
[tenants.t]
limits = { tokens_per_minute = 100, concurrent = 2, models.nick = { tokens_per_request = 7 } }
quota = [{ tokens = 1_000, per = "day" }, { cost = 12.5, per = "month", timezone = "Europe/Berlin", hard = false, model = "nick" }]
"#;

#[test]
fn limits_quotas_and_prices_are_exact_and_name_models_by_any_of_their_names() {
    let config = Config::parse(BILLED, Path::new("/etc/roundhouse.toml")).unwrap();
    assert_eq!(config.store.ledger, crate::config::Ledger::Sqlite("/etc/bills.db".into()));
    assert_eq!(config.store.on_store_loss, crate::config::OnStoreLoss::Local);
    let prices = config.models["m"].prices.unwrap();
    assert_eq!([prices.input, prices.cached_input, prices.output].map(|price| price.nanos()), [50, 50, 1000], "nano-units a token");
    let tenant = &config.tenants["t"];
    assert_eq!((tenant.limits.all.tokens_per_minute, tenant.limits.models["m"].tokens_per_request), (Some(100), Some(7)));
    let [tokens, cost] = tenant.quotas.as_slice() else { panic!("two quotas") };
    assert_eq!((tokens.amount, tokens.hard, tokens.zone.name()), (crate::config::Amount::Tokens(1000), true, "UTC"));
    assert_eq!(cost.amount, crate::config::Amount::Cost(crate::config::Money::from_nanos(12_500_000_000)));
    assert_eq!((cost.zone.name(), cost.hard, cost.model.as_ref().unwrap().as_str()), ("Europe/Berlin", false, "m"));
}

#[test]
fn limits_are_counted_in_each_process_or_in_redis_for_all() {
    let store = |text: &str| Config::parse(&format!("[store]\n{text}"), Path::new("x.toml")).unwrap().store;
    let shared = store("ledger = \"off\"\nlimits = \"redis://host:6379/1\"\nreplicas = 3\non_store_loss = \"local\"");
    assert_eq!(shared.limits, crate::config::LimitStore::Redis(crate::config::Secret::new("redis://host:6379/1".to_owned())));
    assert_eq!(shared.replicas.map(std::num::NonZeroU32::get), Some(3));
    assert_eq!(store("").limits, crate::config::LimitStore::Local);
}

#[test]
fn wrong_quotas_prices_and_stores_are_refused_where_they_are() {
    for (right, wrong, key) in [
        ("tokens = 1_000, ", "", "tenants.t.quota[0]"),
        ("per = \"day\"", "per = \"week\"", "tenants.t.quota[0].per"),
        ("Europe/Berlin", "Europe/Bern1", "tenants.t.quota[1].timezone"),
        ("cost = 12.5", "cost = -1", "tenants.t.quota[1].cost"),
        ("input = 0.05", "input = 0.0005", "models.m.prices.input"),
        ("input = 0.05, ", "", "models.m.prices.input"),
        ("models.nick", "models.nack", "tenants.t.limits.models"),
        ("sqlite:bills.db", "mysql://x", "store.ledger"),
        ("sqlite:bills.db", "postgres://me:secret@host/db", "store.ledger"),
        ("sqlite:bills.db", "postgres://host/db?password=secret@", "store.ledger"),
        ("sqlite:bills.db\"", "off\"\nlimits = \"memcached://host\"", "store.limits"),
        ("sqlite:bills.db\"", "off\"\nlimits = \"rediss://host\"", "store.limits"),
        ("sqlite:bills.db\"", "off\"\nlimits = \"redis://:secret@host\"", "store.limits"),
        ("sqlite:bills.db\"", "off\"\nlimits = \"redis+unix:///r.sock?pass=secret@\"", "store.limits"),
        ("sqlite:bills.db\"", "sqlite:bills.db\"\nlimits = \"redis://host\"", "store.limits"),
        ("sqlite:bills.db\"", "off\"\nlimits = \"redis://host\"", "store.replicas"),
        ("sqlite:bills.db\"", "off\"\nreplicas = 0", "store.replicas"),
    ] {
        let text = BILLED.replacen(right, wrong, 1);
        let Err(ConfigError::Invalid { problems }) = Config::parse(&text, Path::new("x.toml")) else { panic!("{wrong} is taken") };
        assert!(problems.iter().any(|problem| problem.key == key), "{wrong}: {problems:?}");
        assert!(!format!("{problems:?}").contains("secret@"));
    }
}

const SCOPED: &str = r#"
[tenants.t]
networks = ["10.0.0.0/8"]
certificates = ["CN=ci,O=T", "DNS:ci.t"]
[[tenants.t.keys]]
name = "k"
hash = "abababababababababababababababababababababababababababababababab"
models = ["m"]
endpoints = ["chat", "models"]
networks = ["192.168.1.7"]
expires = 2027-01-01T00:00:00Z
"#;

#[test]
fn a_key_is_confined_to_what_its_scope_names() {
    let config = parse(&format!("{VALID}{SCOPED}")).unwrap();
    let tenant = &config.tenants["t"];
    assert!(tenant.may_come_from([10, 0, 0, 1].into()) && !tenant.may_come_from([11, 0, 0, 1].into()));
    assert_eq!(tenant.certificates, ["CN=ci,O=T", "DNS:ci.t"]);
    let key = &tenant.keys[0];
    assert_eq!(key.expires.unwrap().to_string(), "2027-01-01T00:00:00Z");
    assert!(key.scope.has_endpoint(crate::config::Endpoint::Chat) && !key.scope.has_endpoint(crate::config::Endpoint::Completions));
    assert!(key.scope.has_address([192, 168, 1, 7].into()) && !key.scope.has_address([192, 168, 1, 8].into()));
    for (right, wrong, key) in [
        ("models = [\"m\"]", "models = [\"mm\"]", "tenants.t.keys[0].models[0]"),
        ("\"chat\"", "\"chats\"", "tenants.t.keys[0].endpoints[0]"),
        ("192.168.1.7", "192.168.1", "tenants.t.keys[0].networks[0]"),
        ("2027-01-01T00:00:00Z", "2027-01-01", "tenants.t.keys[0].expires"),
        ("2027-01-01T00:00:00Z", "\"tomorrow\"", "tenants.t.keys[0].expires"),
        ("\"DNS:ci.t\"", "\"CN=ci,O=T\"", "tenants.t.certificates[1]"),
        ("\"DNS:ci.t\"", "\"ci\"", "tenants.t.certificates[1]"),
    ] {
        let found = problems_beside_valid(&SCOPED.replacen(right, wrong, 1));
        assert!(found.len() == 1 && found[0].contains(key), "{wrong}: {found:?}");
    }
}

#[test]
fn an_issuer_of_tokens_has_its_keys_in_one_place() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("keys.json"), "{\"keys\": []}").unwrap();
    let parse = |text: &str| parse_with(&format!("[[auth.jwt]]\n{text}\n"), &folder.path().join("r.toml"), &|_| None);
    let keys = |text: &str| match parse(text) {
        Err(ConfigError::Invalid { problems }) => problems.into_iter().map(|problem| problem.key).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    let issuer = &parse("issuer = \"i\"\naudience = \"a\"\nfile = \"keys.json\"").unwrap().auth.jwt[0];
    assert_eq!((issuer.tenant_claim.as_str(), issuer.key_claim.as_str(), issuer.leeway.as_secs()), ("tenant", "sub", 30));
    assert!(parse("issuer = \"i\"\naudience = \"a\"\nurl = \"https://i/jwks\"\nleeway = \"1m\"\nalgorithms = [\"EdDSA\"]").is_ok());
    assert_eq!(keys("audience = \"a\"\nurl = \"https://i/jwks\""), ["auth.jwt[0].issuer"]);
    assert_eq!(keys("issuer = \"i\"\nurl = \"https://i/jwks\""), ["auth.jwt[0].audience"]);
    assert_eq!(keys("issuer = \"i\"\naudience = \"a\""), ["auth.jwt[0]"]);
    assert_eq!(keys("issuer = \"i\"\naudience = \"a\"\nfile = \"keys.json\"\nurl = \"https://i/jwks\""), ["auth.jwt[0]"]);
    assert_eq!(keys("issuer = \"i\"\naudience = \"a\"\nfile = \"none.json\""), ["auth.jwt[0].file"]);
    assert_eq!(keys("issuer = \"i\"\naudience = \"a\"\nurl = \"https://me:secret@i/jwks\""), ["auth.jwt[0].url"]);
    for algorithm in ["none", "HS256", "RS512"] {
        let found = keys(&format!("issuer = \"i\"\naudience = \"a\"\nurl = \"https://i/jwks\"\nalgorithms = [\"{algorithm}\"]"));
        assert_eq!(found, ["auth.jwt[0].algorithms[0]"]);
    }
}

#[test]
fn a_port_s_certificate_is_a_file_beside_the_configuration() {
    let text = r#"
server.tls = { cert = "a.pem", key = "/k/a.key", client_ca = "ca.pem", client_auth = "optional" }
admin.tls = { cert = "b.pem", key = "b.key" }
"#;
    let config = parse(text).unwrap();
    let tls = config.server.tls.unwrap();
    assert_eq!((tls.cert, tls.key), (PathBuf::from("conf/a.pem"), PathBuf::from("/k/a.key")));
    assert_eq!((tls.client_ca, tls.client_auth), (Some(PathBuf::from("conf/ca.pem")), crate::config::ClientAuth::Optional));
    let admin = config.admin.tls.unwrap();
    assert_eq!((admin.client_ca, admin.client_auth), (None, crate::config::ClientAuth::Required));
    for (wrong, message) in [
        ("server.tls = { cert = \"a\" }", "1:14: server.tls.key: this key is missing"),
        ("admin.tls = { cert = \"a\", key = \"b\", client_auth = \"optional\" }", "1:52: admin.tls.client_auth: without `client_ca`"),
        ("server.tls = { cert = \"a\", key = \"b\", client_cas = \"c\" }", "1:39: server.tls.client_cas: unknown key"),
    ] {
        assert!(problems(wrong)[0].starts_with(message), "{:?}", problems(wrong));
    }
}

#[test]
fn what_a_client_may_do_to_the_port_is_configured_and_never_nothing_at_all() {
    let text = r#"
[server]
max_connections = 7
max_head = "8KiB"
head_timeout = "1s"
body_timeout = "2m"
write_timeout = "250ms"
keep_alive = "1h"
http2 = { max_streams = 9, ping = "3s" }
"#;
    let server = parse(text).unwrap().server;
    assert_eq!((server.max_connections, server.max_head, server.http2.max_streams), (7, 8192, 9));
    let times = [server.head_timeout, server.body_timeout, server.write_timeout, server.keep_alive, server.http2.ping];
    assert_eq!(times.map(|time| time.as_millis()), [1000, 120_000, 250, 3_600_000, 3000]);
    for wrong in
        ["max_connections = 0", "max_head = 10", "max_head = \"2MiB\"", "head_timeout = \"0s\"", "keep_alive = 30", "http2.ping = \"0ms\""]
    {
        let key = wrong.split(' ').next().unwrap();
        let found = problems(&format!("[server]\n{wrong}\n"));
        assert!(found[0].contains(&format!("server.{key}: ")), "{wrong}: {found:?}");
    }
}

const REMOTE: &str = r#"
[upstreams.far]
url = "https://[::1]:8000/api/v1/"
[models.remote]
tokenizer = "a"
variants.v = { backends = ["a", "far"] }
"#;

#[test]
fn an_upstream_has_defaults_for_all_but_its_address() {
    let config = parse(&format!("{VALID}{REMOTE}")).unwrap();
    let far = &config.upstreams["far"];
    assert_eq!(far.url.to_string(), "https://[::1]:8000/api/v1");
    assert_eq!((far.url.is_secure(), far.url.host(), far.url.port()), (true, "::1", 8000));
    assert_eq!(far.url.path("/completions").unwrap(), "/api/v1/completions");
    assert_eq!(far.health.path, "/api/v1/models");
    assert_eq!((far.retries.attempts.get(), far.timeouts.idle.as_secs(), far.max_connections.get()), (2, 60, 1024));
    assert_eq!(config.models["remote"].tokenizer, Some(crate::config::Tokenizer::Shard("a".into())));

    let all = r#"
url = "http://h"
api_key = "${TOKEN}"
model = "m"
parameters = ["guided_json"]
context = 7
timeouts = { connect = "1s", first_token = "2s", idle = "3s" }
max_connections = 4
health = { path = "/health", interval = "5s" }
retries = { attempts = 1, time = "6s" }
tls.ca = "roots.pem"
"#;
    let text = format!("{VALID}{}", REMOTE.replace("url = \"https://[::1]:8000/api/v1/\"", all).replace("\"a\"\n", "\"file:t.gguf\"\n"));
    let config = parse(&text).unwrap();
    let far = &config.upstreams["far"];
    assert_eq!(far.url.port(), 80);
    assert!(far.takes("guided_json", false) && far.takes("tools", true) && !far.takes("guided_regex", false));
    assert_eq!(far.api_key.as_ref().map(crate::config::Secret::expose), Some("s3cret"));
    assert_eq!((far.health.path.as_str(), far.tls.ca.as_deref()), ("/health", Some(Path::new("conf/roots.pem"))));
    assert_eq!(config.models["remote"].tokenizer, Some(crate::config::Tokenizer::Weights(Weights::File("conf/t.gguf".into()))));
    assert!(!format!("{config:?}{}", serde_json::to_string(&config).unwrap()).contains("s3cret"));
}

#[test]
fn what_is_wrong_with_an_upstream_is_refused_where_it_is() {
    for (right, wrong, message) in [
        ("https://[::1]:8000/api/v1/", "10.0.0.5:8000", "upstreams.far.url: write an address"),
        ("https://[::1]:8000/api/v1/", "http://me:secret@h/v1", "upstreams.far.url: write an address"),
        ("https://[::1]:8000/api/v1/", "http://h/v1?key=secret", "upstreams.far.url: write an address"),
        ("url = \"https://[::1]:8000/api/v1/\"", "model = \"m\"", "upstreams.far.url: this key is missing"),
        ("[models", "timeouts.idle = \"0s\"\n[models", "upstreams.far.timeouts.idle: this has to be longer"),
        ("[models", "health.path = \"health\"\n[models", "upstreams.far.health.path: write a path"),
        ("[models", "max_connections = 0\n[models", "upstreams.far.max_connections: "),
        ("upstreams.far", "upstreams.a", "upstreams.a: a shard has this name already"),
        ("\"far\"", "\"fr\"", "there is no shard or upstream `fr`; did you mean `far`?"),
        (", \"far\"", "", "upstreams.far: no model has this upstream among its backends"),
        ("tokenizer = \"a\"", "tokenizer = \"b\"", "models.remote.tokenizer: `b` is neither a shard nor a source of weights"),
    ] {
        let found = problems_beside_valid(&REMOTE.replacen(right, wrong, 1));
        assert!(found.iter().any(|problem| problem.contains(message)), "{wrong}: {found:?}");
        assert!(!found.join("").contains("secret"), "{found:?}");
    }
}

#[test]
fn a_timeout_is_the_server_s_or_the_model_s_and_never_zero() {
    let config = parse(&format!("{VALID}models.m.request_timeout = \"90s\"\n[server]\nrequest_timeout = \"5m\"\n")).unwrap();
    assert_eq!((config.server.request_timeout.as_secs(), config.models["m"].request_timeout.map(|time| time.as_secs())), (300, Some(90)));
    assert_eq!(parse(VALID).unwrap().models["m"].request_timeout, None);
    let tables = "shards.a.weights = \"file:a.gguf\"\nmodels.m.variants.v = { backends = [\"a\"] }\n";
    for wrong in ["models.m.request_timeout = \"0s\"\n", "shards.a.stuck_after = \"0s\"\n", "shards.a.max_waiting = 0\n"] {
        assert_eq!(problems(&format!("{tables}{wrong}")).len(), 1, "{wrong}");
    }
}
