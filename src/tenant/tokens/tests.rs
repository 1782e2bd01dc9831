#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::clock::Hand;
use crate::config::Algorithm;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm as Alg, EncodingKey, Header, encode};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::pki_types::PrivatePkcs1KeyDer;
use rustls::pki_types::pem::PemObject;
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;

const NOW: u64 = 1_800_000_000;
const ISSUER: &str = "https://login.test/";

/// Someone who signs tokens.
struct Signer {
    id: &'static str,
    algorithm: Alg,
    key: EncodingKey,
}

// === impl Signer ===

impl Signer {
    fn rsa(id: &'static str) -> Self {
        let der = PrivatePkcs1KeyDer::from_pem_slice(include_bytes!("../../../tests/fixtures/token-issuer-rsa.pem")).unwrap();
        Self { id, algorithm: Alg::RS256, key: EncodingKey::from_rsa_der(der.secret_pkcs1_der()) }
    }

    fn ec(id: &'static str) -> Self {
        let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        Self { id, algorithm: Alg::ES256, key: EncodingKey::from_ec_der(&pair.serialize_der()) }
    }

    fn ed(id: &'static str) -> Self {
        // PKCS #8 of an Ed25519 key (RFC 8410, 7): a fixed beginning and the seed.
        let mut der = vec![0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
        der.extend(getrandom::u64().unwrap().to_le_bytes().repeat(4));
        Self { id, algorithm: Alg::EdDSA, key: EncodingKey::from_ed_der(&der) }
    }

    fn public(&self) -> Value {
        let mut jwk = Jwk::from_encoding_key(&self.key, self.algorithm).unwrap();
        jwk.common.key_id = Some(self.id.to_owned());
        serde_json::to_value(jwk).unwrap()
    }

    fn sign(&self, claims: &Value) -> String {
        let header = Header { kid: Some(self.id.to_owned()), ..Header::new(self.algorithm) };
        encode(&header, claims, &self.key).unwrap()
    }
}

fn set(signers: &[&Signer]) -> String {
    json!({ "keys": signers.iter().map(|signer| signer.public()).collect::<Vec<_>>() }).to_string()
}

fn issuer(keys: KeySource) -> Issuer {
    Issuer {
        issuer: ISSUER.to_owned(),
        audience: "roundhouse".to_owned(),
        algorithms: vec![Algorithm::RS256, Algorithm::ES256, Algorithm::EdDsa],
        keys,
        tenant_claim: "tenant".to_owned(),
        key_claim: "sub".to_owned(),
        leeway: Duration::from_secs(30),
    }
}

fn file(signers: &[&Signer]) -> KeySource {
    KeySource::File { path: "keys.json".into(), text: set(signers) }
}

fn tokens(issuers: Vec<Issuer>) -> (Tokens, Hand) {
    let (clock, hand) = Clock::manual(Duration::from_secs(NOW));
    (Tokens::new(&Auth { jwt: issuers }, &KeySets::default(), clock), hand)
}

fn claims() -> Value {
    json!({ "iss": ISSUER, "aud": "roundhouse", "exp": NOW + 60, "tenant": "acme", "sub": "alice" })
}

fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    claims
}

fn without(name: &str) -> Value {
    let mut claims = claims();
    claims.as_object_mut().unwrap().remove(name);
    claims
}

fn found(tokens: &Tokens, token: &str) -> Option<String> {
    let bearer = tokens.identify(token, blake3::hash(token.as_bytes()).as_bytes())?;
    Some(format!("{}/{}", bearer.tenant, bearer.key.name))
}

#[test]
fn a_token_is_taken_in_each_of_the_three_ways_to_sign_one() {
    let signers = [Signer::rsa("a"), Signer::ec("b"), Signer::ed("c")];
    let (tokens, _) = tokens(vec![issuer(file(&signers.each_ref()))]);
    for signer in &signers {
        for _ in 0..2 {
            assert_eq!(found(&tokens, &signer.sign(&claims())).as_deref(), Some("acme/jwt:alice"), "{}", signer.id);
        }
        assert_eq!(found(&tokens, &signer.sign(&without("sub"))).as_deref(), Some("acme/jwt"));
        assert_eq!(found(&tokens, &signer.sign(&with("aud", json!(["x", "roundhouse"])))).as_deref(), Some("acme/jwt:alice"));
    }
}

#[test]
fn a_token_that_is_wrong_in_any_way_is_nobodys() {
    let (signer, stranger) = (Signer::ed("a"), Signer::ed("a"));
    let (tokens, _) = tokens(vec![issuer(file(&[&signer]))]);
    assert!(found(&tokens, &signer.sign(&claims())).is_some());
    for wrong in [
        with("iss", json!("https://other.test/")),
        with("aud", json!("other")),
        with("exp", json!(NOW - 31)),
        with("exp", json!("never")),
        with("nbf", json!(NOW + 31)),
        with("tenant", json!(7)),
        with("tenant", json!("a b")),
        with("sub", json!("")),
        with("sub", json!("a\nb")),
        without("iss"),
        without("aud"),
        without("exp"),
        without("tenant"),
    ] {
        assert_eq!(found(&tokens, &signer.sign(&wrong)), None, "{wrong}");
    }
    for right in [with("exp", json!(NOW - 29)), with("nbf", json!(NOW + 29)), with("exp", json!(NOW as f64 + 0.5))] {
        assert!(found(&tokens, &signer.sign(&right)).is_some(), "within the leeway: {right}");
    }
    assert_eq!(found(&tokens, &stranger.sign(&claims())), None, "another's signature");
    assert_eq!(found(&tokens, &Signer { id: "b", ..signer }.sign(&claims())), None, "a key id nobody knows");
}

#[test]
fn a_token_never_chooses_how_it_is_checked() {
    let rsa = Signer::rsa("a");
    let (open, _) = tokens(vec![issuer(file(&[&rsa]))]);
    let good = rsa.sign(&claims());
    let [_, payload, signature] = good.split('.').collect::<Vec<_>>()[..] else { panic!("three parts") };
    // {"alg":"none"}, with the signature and without.
    for none in [format!("eyJhbGciOiJub25lIn0.{payload}."), format!("eyJhbGciOiJub25lIn0.{payload}.{signature}")] {
        assert_eq!(found(&open, &none), None);
    }
    // Signed with the public key as if it were a shared secret.
    let public = rsa.public();
    for secret in [public["n"].as_str().unwrap(), &public.to_string()] {
        let key = EncodingKey::from_secret(secret.as_bytes()).unwrap();
        assert_eq!(found(&open, &Signer { id: "a", algorithm: Alg::HS256, key }.sign(&claims())), None);
    }
    let longer = Signer { algorithm: Alg::RS512, ..Signer::rsa("a") };
    assert_eq!(found(&open, &longer.sign(&claims())), None, "an algorithm that isn't on the list");
    let (only_ed, _) = tokens(vec![Issuer { algorithms: vec![Algorithm::EdDsa], ..issuer(file(&[&rsa])) }]);
    assert_eq!(found(&only_ed, &good), None, "one that this issuer doesn't use");
    for text in ["", "eyJ", "eyJ.eyJ.x", "rh_key", "a.b.c", &good[..good.len() - 1], &format!("{good}.x")] {
        assert_eq!(found(&open, text), None, "{text}");
    }
}

#[test]
fn a_remembered_token_ends_with_its_time() {
    let signer = Signer::ec("a");
    let (tokens, _) = tokens(vec![issuer(file(&[&signer]))]);
    let token = signer.sign(&claims());
    let hash = blake3::hash(token.as_bytes());
    let first = tokens.identify(&token, hash.as_bytes()).unwrap();
    let again = tokens.identify(&token, hash.as_bytes()).unwrap();
    assert!(Arc::ptr_eq(&first.key, &again.key), "the second time nothing is checked");
    assert_eq!(first.key.expires.map(|ends| ends.unix().as_secs()), Some(NOW + 90), "whoever asks refuses it from then on");
}

#[test]
fn weak_keys_and_keys_for_other_purposes_check_nothing() {
    let signer = Signer::rsa("a");
    let mut encrypting = signer.public();
    encrypting["use"] = json!("enc");
    let mut other = signer.public();
    other["alg"] = json!("PS256");
    let weak = json!({ "kty": "RSA", "kid": "a", "n": "AQAB".repeat(40), "e": "AQAB" });
    let shared = json!({ "kty": "oct", "kid": "a", "k": "c2VjcmV0" });
    for key in [encrypting, other, weak, shared, json!("no key")] {
        assert!(KeySet::parse(&json!({ "keys": [key] }).to_string()).unwrap().is_empty(), "{key}");
        let beside = KeySet::parse(&json!({ "keys": [key, signer.public()] }).to_string()).unwrap();
        assert!(beside.fitting(Algorithm::RS256, Some("a")).count() == 1, "it doesn't spoil the others");
    }
    assert!(KeySet::parse("{}").is_err() && KeySet::parse("<html>").is_err());
}

/// A server of key sets that answers each request as it is told, in order; what it was last told it says again.
fn serve(answers: Vec<String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/jwks?token=secret", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut answers = answers.into_iter().peekable();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            let answer = answers.next().unwrap_or_default();
            let status = if answer.is_empty() { "500 Sorry" } else { "200 OK" };
            let length = answer.len();
            drop(write!(stream, "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{answer}"));
        }
    });
    url
}

#[test]
fn keys_at_a_url_are_fetched_before_the_first_token_and_again_for_an_unknown_one_and_kept_when_that_fails() {
    let (old, new, newest) = (Signer::ed("old"), Signer::ed("new"), Signer::ed("newest"));
    let url = serve(vec![set(&[&old]), set(&[&new]), String::new()]);
    let sets = KeySets::default();
    let auth = Auth { jwt: vec![issuer(KeySource::Url(url))] };
    let (clock, _hand) = Clock::manual(Duration::from_secs(NOW));
    let tokens = Tokens::new(&auth, &sets, clock.clone());
    let (old, new) = (old.sign(&claims()), new.sign(&claims()));
    assert!(found(&tokens, &old).is_some());
    assert!(found(&tokens, &new).is_none(), "not yet, but it makes the set be fetched");
    while found(&tokens, &new).is_none() {
        std::thread::yield_now();
    }
    assert!(found(&tokens, &old).is_none(), "a key that its issuer took back checks nothing, also not what was remembered");
    assert!(found(&tokens, &newest.sign(&claims())).is_none(), "the next fetch fails");
    let reloaded = Tokens::new(&auth, &sets, clock);
    assert!(found(&tokens, &new).is_some() && found(&reloaded, &new).is_some(), "the last keys stay, beyond a reload");
}
