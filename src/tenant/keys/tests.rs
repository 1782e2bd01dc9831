#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::clock::Hand;
use crate::config::{Ledger, Network, Scope};
use std::path::Path;
use std::time::Duration;

const DAY: Duration = Duration::from_secs(86_400);

fn key(name: &str, secret: &str) -> Key {
    Key::new(name.into(), blake3::hash(secret.as_bytes()).into())
}

fn acme(keys: Vec<Key>) -> Arc<Config> {
    let acme = Tenant { keys, certificates: vec!["CN=ci,O=Acme".to_owned(), "DNS:ci.acme".to_owned()], ..Tenant::new("acme".into()) };
    Arc::new(Config { tenants: [(acme.name.clone(), Arc::new(acme))].into(), ..Config::default() })
}

fn open(ledger: Ledger) -> (Credentials, Hand) {
    let (clock, hand) = Clock::manual(DAY);
    (Credentials::open(&Store { ledger, ..Store::default() }, clock).unwrap(), hand)
}

fn in_file(folder: &Path) -> Ledger {
    Ledger::Sqlite(folder.join("ledger.db"))
}

fn peer(address: [u8; 4]) -> Peer {
    Peer::from(std::net::SocketAddr::from((address, 1)))
}

fn found(keys: &Keys, secret: &str) -> Option<String> {
    let found = keys.identify(Some(secret), &peer([127, 0, 0, 1])).ok();
    found.map(|holder| format!("{}/{}", holder.tenant.name, holder.key.name))
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

#[test]
fn a_key_is_found_by_its_secret_and_by_nothing_else() {
    let (credentials, _) = open(Ledger::Off);
    let keys = Keys::new(acme(vec![key("one", "first"), key("two", "second")]), &credentials);
    assert_eq!(found(&keys, "first").as_deref(), Some("acme/one"));
    assert_eq!(found(&keys, "second").as_deref(), Some("acme/two"));
    for wrong in ["", "Firs", "first ", "first\0", "third"] {
        assert_eq!(found(&keys, wrong), None, "{wrong:?}");
    }
    assert!(matches!(keys.identify(None, &peer([1, 1, 1, 1])), Err(Error::Unauthenticated { shown: None })));
    assert!(matches!(block_on(keys.revoke(&"acme".into(), &"one".into())), Err(KeyError::NoStore)));
}

#[test]
fn an_expired_key_is_refused_from_that_moment_on() {
    let (credentials, hand) = open(Ledger::Off);
    let expires = Some(Moment::from_unix(DAY + Duration::from_secs(1)));
    let keys = Keys::new(acme(vec![Key { expires, ..key("one", "first") }]), &credentials);
    assert!(found(&keys, "first").is_some());
    hand.advance(Duration::from_secs(1));
    assert_eq!(found(&keys, "first"), None);
}

#[test]
fn a_key_or_tenant_confined_to_networks_is_known_elsewhere_and_refused_there() {
    let (credentials, _) = open(Ledger::Off);
    let networks: Option<Vec<Network>> = Some(vec!["10.0.0.0/8".parse().unwrap()]);
    let confined = Key { scope: Scope { networks: networks.clone(), ..Scope::default() }, ..key("one", "first") };
    let mut config = acme(vec![confined, key("two", "second")]);
    let keys = Keys::new(config.clone(), &credentials);
    assert!(keys.identify(Some("first"), &peer([10, 1, 2, 3])).is_ok());
    let mapped = std::net::SocketAddr::from((std::net::Ipv4Addr::new(10, 1, 2, 3).to_ipv6_mapped(), 1));
    assert!(keys.identify(Some("first"), &mapped.into()).is_ok());
    let Err(Error::OutOfScope { deed }) = keys.identify(Some("first"), &peer([11, 1, 2, 3])) else { panic!("it passed") };
    assert_eq!(deed, "be used from 11.1.2.3");
    assert!(keys.identify(Some("second"), &peer([11, 1, 2, 3])).is_ok());

    let tenant = Tenant { networks, ..Tenant::clone(&config.tenants["acme"]) };
    Arc::make_mut(&mut config).tenants.insert("acme".into(), Arc::new(tenant));
    let keys = Keys::new(config, &credentials);
    assert!(matches!(keys.identify(Some("second"), &peer([11, 1, 2, 3])), Err(Error::OutOfScope { .. })));
    assert!(keys.identify(Some("second"), &peer([10, 1, 2, 3])).is_ok());
}

#[test]
fn a_certificate_stands_for_its_tenant_and_a_secret_goes_before_it() {
    let (credentials, _) = open(Ledger::Off);
    let keys = Keys::new(acme(vec![key("one", "first")]), &credentials);
    let with = |subject: &str, names: &[&str]| {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let certificate = Certificate { subject: subject.to_owned(), names, fingerprint: [7; 32] };
        Peer { certificate: Some(Arc::new(certificate)), ..peer([1, 1, 1, 1]) }
    };
    for peer in [with("CN=ci,O=Acme", &[]), with("CN=other", &["DNS:x", "DNS:ci.acme"])] {
        let holder = keys.identify(None, &peer).unwrap();
        assert_eq!((holder.tenant.name.as_str(), holder.key.name.as_str(), holder.key.hash), ("acme", "certificate", [7; 32]));
        assert_eq!(keys.identify(Some("first"), &peer).unwrap().key.name.as_str(), "one");
        assert!(keys.identify(Some("wrong"), &peer).is_err());
    }
    for peer in [with("CN=ci", &["ci.acme"]), with("", &[])] {
        assert!(keys.identify(None, &peer).is_err());
    }
}

#[test]
fn a_key_of_the_store_is_made_rotated_and_revoked_and_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (tenant, name) = (Name::from("acme"), Name::from("ci"));
    let (credentials, hand) = open(in_file(folder.path()));
    let config = acme(vec![key("one", "first")]);
    let keys = Keys::new(config.clone(), &credentials);
    let grant = Grant { endpoints: Some(vec![Endpoint::Chat]), ..Grant::default() };
    let made = block_on(keys.make(&tenant, &name, grant.clone())).unwrap();
    assert_eq!(found(&keys, made.secret.expose()).as_deref(), Some("acme/ci"));
    assert!(matches!(block_on(keys.make(&tenant, &name, Grant::default())), Err(KeyError::Exists { .. })));
    assert!(matches!(block_on(keys.make(&tenant, &"one".into(), Grant::default())), Err(KeyError::Exists { .. })));
    assert!(matches!(block_on(keys.make(&"nobody".into(), &name, Grant::default())), Err(KeyError::NoTenant(_))));

    hand.advance(Duration::from_secs(1));
    let rotated = block_on(keys.rotate(&tenant, &name, Duration::from_secs(60))).unwrap();
    drop((keys, credentials));
    let (credentials, hand) = open(in_file(folder.path()));
    hand.advance(Duration::from_secs(60));
    let keys = Keys::new(config, &credentials);
    assert!(found(&keys, made.secret.expose()).is_some(), "the old secret overlaps");
    hand.advance(Duration::from_secs(1));
    assert!(found(&keys, made.secret.expose()).is_none(), "and then ends");
    let holder = keys.identify(Some(rotated.secret.expose()), &peer([1, 1, 1, 1])).unwrap();
    assert_eq!(holder.key.scope.endpoints, grant.endpoints, "the scope goes with it");

    block_on(keys.revoke(&tenant, &name)).unwrap();
    assert!(found(&keys, rotated.secret.expose()).is_none());
    assert!(matches!(block_on(keys.rotate(&tenant, &name, Duration::ZERO)), Err(KeyError::Revoked)));
    block_on(keys.revoke(&tenant, &name)).unwrap();
    assert!(matches!(block_on(keys.revoke(&tenant, &"nobody".into())), Err(KeyError::Unknown { .. })));
    let states: Vec<_> = keys.list(None).into_iter().map(|key| (key.name.to_string(), key.state.as_str())).collect();
    assert_eq!(states, [("one".to_owned(), "active"), ("ci".to_owned(), "revoked"), ("ci".to_owned(), "revoked")]);
    assert!(block_on(keys.make(&tenant, &name, Grant::default())).is_ok(), "a revoked key's name is free");
}

#[test]
fn a_revoked_key_of_the_file_stays_revoked_until_the_file_has_another_secret() {
    let folder = tempfile::tempdir().unwrap();
    let (tenant, name) = (Name::from("acme"), Name::from("one"));
    let (credentials, _) = open(in_file(folder.path()));
    let keys = Keys::new(acme(vec![key("one", "first")]), &credentials);
    block_on(keys.revoke(&tenant, &name)).unwrap();
    assert_eq!(found(&keys, "first"), None);
    drop(keys);
    assert_eq!(found(&Keys::new(acme(vec![key("one", "first")]), &credentials), "first"), None, "after a reload");
    assert_eq!(found(&Keys::new(acme(vec![key("renamed", "first")]), &credentials), "first"), None, "under another name");
    drop(credentials);
    let (credentials, _) = open(in_file(folder.path()));
    let keys = Keys::new(acme(vec![key("one", "first")]), &credentials);
    assert_eq!(found(&keys, "first"), None, "after a restart");
    assert!(matches!(block_on(keys.rotate(&tenant, &name, Duration::ZERO)), Err(KeyError::Revoked)));
    assert!(found(&Keys::new(acme(vec![key("one", "second")]), &credentials), "second").is_some());
}

#[test]
fn a_rotated_key_of_the_file_keeps_the_files_terms() {
    let folder = tempfile::tempdir().unwrap();
    let (tenant, name) = (Name::from("acme"), Name::from("one"));
    let (credentials, hand) = open(in_file(folder.path()));
    let keys = Keys::new(acme(vec![key("one", "first")]), &credentials);
    let rotated = block_on(keys.rotate(&tenant, &name, Duration::from_secs(5))).unwrap();
    assert!(found(&keys, "first").is_some());
    hand.advance(Duration::from_secs(5));
    assert!(found(&keys, "first").is_none());
    let scope = Scope { endpoints: Some(Vec::new()), ..Scope::default() };
    let changed = Keys::new(acme(vec![Key { scope: scope.clone(), ..key("one", "first") }]), &credentials);
    let holder = changed.identify(Some(rotated.secret.expose()), &peer([1, 1, 1, 1])).unwrap();
    assert_eq!(holder.key.scope, scope);
    let gone = Keys::new(acme(Vec::new()), &credentials);
    assert_eq!(found(&gone, rotated.secret.expose()), None, "the file has no such key any more");
    assert!(gone.list(None).iter().any(|key| key.state == KeyState::Orphaned));
}

#[test]
fn a_change_by_another_process_arrives_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let config = acme(vec![key("one", "first")]);
    let (here, there) = (open(in_file(folder.path())).0, open(in_file(folder.path())).0);
    let (here, there) = (Keys::new(config.clone(), &here), Keys::new(config, &there));
    let made = block_on(there.make(&"acme".into(), &"ci".into(), Grant::default())).unwrap();
    while found(&here, made.secret.expose()).is_none() {
        std::thread::yield_now();
    }
    block_on(there.revoke(&"acme".into(), &"one".into())).unwrap();
    while found(&here, "first").is_some() {
        std::thread::yield_now();
    }
}
