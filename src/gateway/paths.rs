//! Which paths are served, and by which methods.

use crate::api::openai::Kind;
use crate::call::Error;
use crate::config;
use http::Method;

/// What a method and path ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// Does the process live?
    Live,
    /// Can it serve?
    Ready,
    /// `POST /v1/chat/completions`, `POST /v1/completions`
    Generate(Kind),
    /// `GET /v1/models`
    Models,
    /// `GET /v1/models/ID`
    Model(String),
    /// `GET /v1/usage`
    Usage,
    /// Which methods a path knows.
    Options(&'static str),
}

const GET: &str = "GET, HEAD, OPTIONS";
const POST: &str = "POST, OPTIONS";
const MODEL: &str = "/v1/models/";

// === impl Endpoint ===

impl Endpoint {
    /// What a key's scope calls it.
    pub(super) fn scoped(&self) -> Option<config::Endpoint> {
        match self {
            Endpoint::Generate(Kind::Chat) => Some(config::Endpoint::Chat),
            Endpoint::Generate(Kind::Completion) => Some(config::Endpoint::Completions),
            Endpoint::Models | Endpoint::Model(_) => Some(config::Endpoint::Models),
            Endpoint::Usage | Endpoint::Live | Endpoint::Ready | Endpoint::Options(_) => None,
        }
    }

    /// What is asked for.
    ///
    /// # Errors
    /// `UnknownUrl` and `MethodNotAllowed`.
    pub(super) fn find(method: &Method, path: &str) -> Result<Self, Error> {
        let (endpoint, allow) = match path {
            "/v1/chat/completions" => (Endpoint::Generate(Kind::Chat), POST),
            "/v1/completions" => (Endpoint::Generate(Kind::Completion), POST),
            "/v1/models" => (Endpoint::Models, GET),
            "/v1/usage" => (Endpoint::Usage, GET),
            "/health" | "/livez" => (Endpoint::Live, GET),
            "/ready" | "/readyz" => (Endpoint::Ready, GET),
            _ => match path.strip_prefix(MODEL).filter(|id| !id.is_empty()) {
                Some(id) => (Endpoint::Model(decoded(id)), GET),
                None => return Err(Error::UnknownUrl { method: method.to_string(), path: path.to_owned() }),
            },
        };
        let right = if allow == POST { method == Method::POST } else { method == Method::GET || method == Method::HEAD };
        match method {
            _ if right => Ok(endpoint),
            &Method::OPTIONS => Ok(Endpoint::Options(allow)),
            _ => Err(Error::MethodNotAllowed { method: method.to_string(), path: path.to_owned(), allow }),
        }
    }
}

/// A path segment with its `%XX` resolved: names of models may hold what paths may not. One that isn't well-formed
/// stays as it is, and names no model.
pub fn decoded(segment: &str) -> String {
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let escaped = after.get(..2).filter(|_| first == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        match escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| segment.to_owned())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test may stop at a surprise")]

    use super::*;

    #[test]
    fn paths_are_found_by_their_methods() {
        let find = |method: Method, path| Endpoint::find(&method, path);
        assert_eq!(find(Method::POST, "/v1/chat/completions").unwrap(), Endpoint::Generate(Kind::Chat));
        assert_eq!(find(Method::HEAD, "/v1/models").unwrap(), Endpoint::Models);
        assert_eq!(find(Method::GET, "/v1/models/org%2Fa b%").unwrap(), Endpoint::Model("org/a b%".into()));
        assert_eq!(find(Method::GET, "/v1/models/org/a").unwrap(), Endpoint::Model("org/a".into()));
        assert_eq!(find(Method::OPTIONS, "/readyz").unwrap(), Endpoint::Options(GET));
        assert_eq!(find(Method::GET, "/livez").unwrap(), Endpoint::Live);
    }

    #[test]
    fn a_wrong_method_is_told_the_right_one_and_a_wrong_path_is_unknown() {
        let refused = Endpoint::find(&Method::GET, "/v1/completions").unwrap_err();
        assert!(matches!(refused, Error::MethodNotAllowed { allow: POST, .. }), "{refused:?}");
        assert!(matches!(Endpoint::find(&Method::DELETE, "/v1/models/a"), Err(Error::MethodNotAllowed { allow: GET, .. })));
        for path in ["/", "/v1", "/v1/models/", "/v1/embeddings", "/metrics", "/admin/v1/reload", "/V1/models"] {
            assert!(matches!(Endpoint::find(&Method::OPTIONS, path), Err(Error::UnknownUrl { .. })), "{path}");
        }
    }
}
