#![expect(clippy::unwrap_used, reason = "a test may stop at a surprise")]

use super::*;
use http_body_util::BodyExt;

fn wait() -> Duration {
    Duration::from_millis(1)
}

#[tokio::test]
async fn every_error_has_its_row() {
    let text = || "x".to_owned();
    let context = |max_tokens| Error::ContextLength { param: "prompt", limit: 8, prompt_tokens: 9, max_tokens };
    let limited = |limit| Error::RateLimited { limited: Limited::Requests, subject: text(), limit, retry_after: wait() };
    let rows = [
        (Error::Unauthenticated { shown: None }, 401, "invalid_api_key"),
        (Error::ModelNotFound { model: text() }, 404, "model_not_found"),
        (Error::Invalid { param: None, message: text() }, 400, "invalid_value"),
        (Error::Unsupported { param: text(), message: text() }, 400, "unsupported_parameter"),
        (context(None), 400, "context_length_exceeded"),
        (context(Some(3)), 400, "context_length_exceeded"),
        (Error::ExperimentNotFound { experiment: text() }, 404, "experiment_not_found"),
        (Error::ShardNotFound { shard: text(), known: text() }, 404, "shard_not_found"),
        (Error::UnknownUrl { method: text(), path: text() }, 404, "unknown_url"),
        (Error::MethodNotAllowed { method: text(), path: text(), allow: "GET" }, 405, "method_not_allowed"),
        (Error::HeadersTooLarge { limit: 1 }, 431, "headers_too_large"),
        (Error::BodyTooLarge { limit: 1 }, 413, "request_too_large"),
        (Error::NotJson { found: None }, 415, "unsupported_media_type"),
        (limited(1), 429, "rate_limit_exceeded"),
        (Error::Overloaded { model: text(), retry_after: wait() }, 429, "overloaded"),
        (Error::NoCapacity { model: text(), retry_after: wait() }, 503, "no_capacity"),
        (Error::ShardLost { backend: text() }, 503, "backend_unavailable"),
        (Error::UpstreamFailed { backend: text(), failure: text() }, 502, "backend_unavailable"),
        (Error::DeadlinePassed { after: wait() }, 504, "timeout"),
        (Error::Internal, 500, "internal_error"),
    ];
    for (case, status, code) in rows {
        let answer = error(&case);
        assert_eq!(answer.status(), status, "{case:?}");
        let retry = answer.headers().get(header::RETRY_AFTER);
        assert_eq!(retry.is_some(), matches!(status, 429 | 503), "{case:?}");
        assert!(retry.is_none_or(|seconds| seconds == "1"), "{case:?}");
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["error"]["code"], code);
        assert_eq!(body["error"]["message"], case.to_string());
    }
    assert_eq!(error(&limited(0)).headers()[SHOULD_RETRY], "false");
}

#[test]
fn durations_are_spelled_as_openai_spells_them() {
    for (duration, expected) in [
        (Duration::ZERO, "0s"),
        (Duration::from_micros(1), "1ms"),
        (Duration::from_millis(120), "120ms"),
        (Duration::from_secs(1), "1s"),
        (Duration::from_millis(8640), "8.64s"),
        (Duration::from_micros(59_999_500), "1m0s"),
        (Duration::from_secs(360), "6m0s"),
        (Duration::from_millis(61_005), "1m1.005s"),
    ] {
        assert_eq!(spelled(duration), expected);
    }
}
