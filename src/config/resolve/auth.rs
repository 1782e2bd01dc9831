//! `[auth]`

use super::{Resolver, or};
use crate::config::problem::join;
use crate::config::units::Time;
use crate::config::{Algorithm, Auth, Issuer, KeySource, raw};
use std::ops::Range;
use std::time::Duration;
use toml::Spanned;

/// Clocks that are kept by NTP differ by far less.
const LEEWAY: Duration = Duration::from_secs(30);

impl Resolver<'_> {
    pub(super) fn auth(&mut self, raw: raw::Auth) -> Auth {
        let indexed = raw.jwt.into_iter().enumerate();
        Auth { jwt: indexed.filter_map(|(index, raw)| self.issuer(raw, &format!("auth.jwt[{index}]"))).collect() }
    }

    fn issuer(&mut self, raw: Spanned<raw::Jwt>, path: &str) -> Option<Issuer> {
        let (table, raw) = (raw.span(), raw.into_inner());
        let issuer = self.required(raw.issuer, &table, path, "issuer");
        let audience = self.required(raw.audience, &table, path, "audience");
        let algorithms = or(raw.algorithms, vec![Algorithm::RS256, Algorithm::ES256, Algorithm::EdDsa]);
        let keys = match (raw.url, raw.file) {
            (Some(url), None) => self.key_url(url, &join(path, "url")),
            (None, Some(file)) => {
                let path = join(path, "file");
                self.key_file(file.span(), self.folder.join(file.into_inner()), &path)
            }
            _ => {
                self.refuse(table, path, "an issuer's keys come either from a `url` or from a `file`");
                None
            }
        };
        Some(Issuer {
            issuer: issuer?,
            audience: audience?,
            algorithms,
            keys: keys?,
            tenant_claim: or(raw.tenant_claim, "tenant".to_owned()),
            key_claim: or(raw.key_claim, "sub".to_owned()),
            leeway: or(raw.leeway, Time(LEEWAY)).0,
        })
    }

    fn key_url(&mut self, url: Spanned<String>, path: &str) -> Option<KeySource> {
        let parsed = url.get_ref().parse::<http::Uri>().ok();
        let fits = parsed.is_some_and(|uri| {
            uri.authority().is_some_and(|authority| !authority.as_str().contains('@')) && matches!(uri.scheme_str(), Some("https" | "http"))
        });
        if fits {
            return Some(KeySource::Url(url.into_inner()));
        }
        self.refuse(url.span(), path, "write an address such as \"https://login.example/.well-known/jwks.json\", without a password");
        None
    }

    fn key_file(&mut self, span: Range<usize>, file: std::path::PathBuf, path: &str) -> Option<KeySource> {
        let message = match std::fs::read_to_string(&file) {
            Ok(text) if has_keys(&text) => return Some(KeySource::File { path: file, text }),
            Ok(_) => format!("{}: this isn't a JSON Web Key Set, which has `keys`", file.display()),
            Err(error) => format!("{}: {error}", file.display()),
        };
        self.refuse(span, path, message);
        None
    }
}

fn has_keys(text: &str) -> bool {
    let json: Option<serde_json::Value> = serde_json::from_str(text).ok();
    json.is_some_and(|json| json["keys"].is_array())
}
