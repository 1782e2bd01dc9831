use super::*;
use crate::call::{Asked, Message};
use crate::config::{Config, Endpoint, Rule, Share};
use crate::text::{Text, Vocabulary};
use futures_util::stream::empty;
use std::path::Path;
use std::sync::Mutex;
use tower::{Layer, service_fn};

const TEMPLATE: &str = "{% for message in messages %}{{ message.role }}:{{ message.content }};{% endfor %}";

/// A token a byte; `first` makes another tokenizer of it.
fn text(first: char) -> Arc<Text> {
    let tokens: Vec<String> = std::iter::once(first).chain(' '..='~').map(|c| if c == ' ' { 'Ġ' } else { c }.to_string()).collect();
    let types = vec![1; tokens.len()];
    let (model, pre) = ("gpt2".to_owned(), "smollm".to_owned());
    let none = (None, None, None, None, None);
    let (bos, eos, eot, eom, unk) = none;
    let vocabulary = Vocabulary {
        model,
        pre,
        tokens,
        types,
        scores: Vec::new(),
        merges: Vec::new(),
        bos,
        eos,
        eot,
        eom,
        unk,
        add_bos: false,
        add_space_prefix: false,
    };
    Arc::new(Text::new(vocabulary, Some(TEMPLATE)).unwrap())
}

/// A model whose variants are as `variants` says, and a rule that leads to the first, with the others as its fallbacks.
fn model(variants: &str) -> Arc<Model> {
    let text = format!(
        "shards.a = {{ weights = \"file:a.gguf\", kv_cache = {{ memory = \"1MiB\" }} }}\n[models.m]\ndefault_max_tokens = 50\n[models.m.variants]\n{variants}\n\
         [[models.m.rules]]\nname = \"all\"\nto = {{ x = 1, y = 0, z = 0 }}\nfallback = [\"y\", \"z\"]\n"
    );
    Config::parse(&text, Path::new("r.toml")).unwrap().models["m"].clone()
}

const PLAIN: &str = "x = { backends = [\"a\"] }\ny = { backends = [\"a\"], system = \"Be brief.\", sampling = { temperature = 0.5, top_k = 7 } }\nz = { backends = [\"a\"] }";

/// As `gateway` prepares it.
fn asked(model: &Arc<Model>, content: &str, reference: &Text) -> Call {
    let message = Message::new("user", content);
    let messages: Arc<[Message]> = [message].into();
    let prompts: Arc<[Prompt]> = [Prompt::new(reference.encode_chat(&messages).unwrap(), reference.digest())].into();
    let asked = Asked { messages: messages.clone(), prompts: prompts.clone(), bytes: content.len(), ..Asked::default() };
    Call { model: model.clone(), asked: Arc::new(asked), messages, prompts, ..call() }
}

fn renderings(x: Rendering, y: Rendering, z: Rendering) -> Renderings {
    let variants = BTreeMap::from([("x".into(), x), ("y".into(), y), ("z".into(), z)]);
    Renderings::new(BTreeMap::from([("m".into(), variants)]))
}

fn rendering(context: u32) -> Rendering {
    Rendering { text: Some(text('!')), context, pool_tokens: u32::MAX, local: true }
}

fn layered<S>(renderings: Renderings) -> impl Layer<S, Service = Choose<S>> {
    let clock = Clock::system();
    Choose::layer(renderings, Arc::new(Experiments::new(Metrics::new(), clock.clone())), clock)
}

async fn chosen(call: Call, renderings: Renderings) -> Result<Call, Error> {
    let seen = Arc::new(Mutex::new(None));
    let keep = seen.clone();
    let inner = service_fn(move |call: Call| {
        *keep.lock().unwrap() = Some(call);
        std::future::ready(Ok::<_, Error>(Reply::new(empty())))
    });
    layered(renderings).layer(inner).call(call).await?;
    let call = seen.lock().unwrap().take();
    Ok(call.unwrap())
}

fn said(call: &Call) -> Vec<String> {
    call.messages.iter().map(|message| format!("{}: {}", message.role, message.content)).collect()
}

#[tokio::test]
async fn a_call_gets_its_rule_s_variant_with_what_is_left_of_the_context() {
    let model = model(PLAIN);
    let call = chosen(asked(&model, "hello", &text('!')), renderings(rendering(40), rendering(9), rendering(9))).await.unwrap();
    let route = call.route.clone().unwrap();
    assert_eq!((route.variant.as_str(), route.backends.len(), route.fallback.len()), ("x", 1, 2));
    assert_eq!((call.sampling.temperature, call.sampling.top_k), (1.0, 0));
    assert_eq!(call.prompts[0].tokens + call.sampling.max_tokens, 40, "less than the default's 50");
    let notes = call.record.lock();
    assert_eq!((notes.rule.as_ref().unwrap().as_str(), notes.variant.as_ref().unwrap().as_str()), ("all", "x"));
    assert_eq!(notes.fallback_from, None);
}

#[tokio::test]
async fn a_variant_adds_its_system_message_and_its_sampling_only_where_the_client_has_none() {
    let model = model(&PLAIN.replace("x =", "w =").replace("y =", "x =").replace("w =", "y ="));
    let all = || renderings(rendering(400), rendering(400), rendering(400));
    let plain = asked(&model, "hello", &text('!'));
    let call = chosen(plain.clone(), all()).await.unwrap();
    assert_eq!(said(&call), ["system: Be brief.", "user: hello"]);
    assert_eq!(call.prompts[0].tokens, plain.prompts[0].tokens + "system:Be brief.;".len() as u32);
    assert_eq!((call.sampling.temperature, call.sampling.top_k), (0.5, 7));

    let mut own = asked(&model, "hello", &text('!'));
    let message = |role: &str| Message::new(role, "own");
    let messages: Arc<[Message]> = [message("system"), message("user")].into();
    own.asked = Arc::new(Asked { messages, top_k: Some(0), ..Asked::clone(&own.asked) });
    let call = chosen(own, all()).await.unwrap();
    assert_eq!(said(&call), ["system: own", "user: own"]);
    assert_eq!((call.sampling.temperature, call.sampling.top_k), (0.5, 0));

    let text = text('!');
    let mut completion = asked(&model, "hello", &text);
    let prompts: Arc<[Prompt]> = [render::completion(&"hello".into(), "prompt", &text, 400).unwrap()].into();
    completion.asked = Arc::new(Asked { endpoint: Endpoint::Completions, messages: Arc::default(), prompts, ..Asked::default() });
    let call = chosen(completion, all()).await.unwrap();
    assert_eq!((said(&call).len(), call.prompts[0].tokens), (0, 5), "a text to be continued has no system message");
}

#[tokio::test]
async fn a_variant_with_another_tokenizer_reads_the_text_anew_also_when_there_is_much_of_it() {
    let model = model(PLAIN);
    let other = Rendering { text: Some(text('~')), ..rendering(100_000) };
    for content in ["hello".to_owned(), "hello ".repeat(5000)] {
        let call = chosen(asked(&model, &content, &text('!')), renderings(other.clone(), rendering(9), rendering(9))).await.unwrap();
        assert_eq!(call.prompts[0].tokenizer, Some(text('~').digest()));
        assert_eq!(*call.prompts[0].ids, *text('~').encode_chat(&call.messages).unwrap());
    }
    let mut biased = asked(&model, "hello", &text('!'));
    Arc::make_mut(&mut biased.sampling).logit_bias = vec![(1, 1.0)];
    let small = Rendering { text: Some(text('~')), ..rendering(100_000) };
    let refused = chosen(biased, renderings(small.clone(), small.clone(), small)).await;
    assert!(matches!(&refused, Err(Error::Unsupported { param, .. }) if param == "logit_bias"), "ids mean something else there");
}

#[tokio::test]
async fn what_the_chosen_variant_has_no_room_for_goes_to_the_first_fallback_that_has() {
    let model = model(PLAIN);
    let call = chosen(asked(&model, "a long question", &text('!')), renderings(rendering(10), rendering(20), rendering(40))).await.unwrap();
    let route = call.route.clone().unwrap();
    assert_eq!((route.variant.as_str(), route.fallback.len()), ("z", 0));
    let notes = call.record.lock().clone();
    assert_eq!((notes.variant, notes.fallback_from), (Some("z".into()), Some("x".into())));
    let refused = chosen(asked(&model, "a long question", &text('!')), renderings(rendering(10), rendering(12), rendering(14))).await;
    assert!(matches!(refused, Err(Error::ContextLength { limit: 10, .. })), "the chosen one's own limit is told");
}

/// Backends of the variants x, y and z under these names; which variant and backend answered.
async fn fallen_back(x: Mock, y: Mock, z: Mock) -> Result<(Name, Name, u32), Error> {
    let mut model = Model::clone(&model(PLAIN));
    for (name, variant) in &mut model.variants {
        variant.backends = [Name::from(format!("on-{name}"))].into();
    }
    let share = |name: &str, weight| Share { variant: name.into(), weight };
    let rule = Rule { to: vec![share("x", 1.0)], ..model.rules[0].clone() };
    model.rules = vec![rule];
    let backends = [("on-x", x), ("on-y", y), ("on-z", z)].map(|(name, mock)| (Name::from(name), Arc::new(mock) as Arc<dyn Backend>));
    let all = renderings(rendering(400), rendering(400), rendering(400));
    let router = super::router(BTreeMap::from(backends), all.clone());
    let call = asked(&Arc::new(model), "hello", &text('!'));
    layered(all).layer(router).call(call.clone()).await?;
    let notes = call.record.lock().clone();
    assert_eq!(notes.fallback_from, (notes.variant != Some("x".into())).then(|| "x".into()));
    Ok((notes.variant.unwrap(), notes.backend.unwrap(), notes.attempts))
}

#[tokio::test]
async fn where_a_variant_fails_or_can_not_the_next_one_answers_and_the_record_says_so() {
    let failing = |answer| Mock { answer: Err(answer), ..GOOD };
    let lost = || Error::ShardLost { backend: "on-x".into() };
    let unable = || Mock { supports: Err(Error::Unsupported { param: "echo".into(), message: "no".into() }), ..GOOD };
    let gone = || Mock { state: State::Lost, ..GOOD };
    let y = |attempts| Ok((Name::from("y"), Name::from("on-y"), attempts));
    assert_eq!(fallen_back(GOOD, GOOD, GOOD).await, Ok(("x".into(), "on-x".into(), 1)));
    assert_eq!(fallen_back(failing(lost()), GOOD, GOOD).await, y(2));
    assert_eq!(fallen_back(unable(), GOOD, GOOD).await, y(1));
    assert_eq!(fallen_back(gone(), GOOD, GOOD).await, y(1));
    assert_eq!(fallen_back(gone(), failing(lost()), GOOD).await, Ok(("z".into(), "on-z".into(), 2)));
    assert_eq!(fallen_back(failing(Error::Internal), GOOD, GOOD).await, Err(Error::Internal), "not every error is another's business");
    let full = || Error::Overloaded { model: "m".into(), retry_after: Duration::from_secs(1) };
    assert_eq!(fallen_back(unable(), failing(full()), unable()).await, Err(full()), "what is worth another try is told");
    assert_eq!(fallen_back(failing(full()), failing(lost()), gone()).await, Err(full()), "of several the first");
}
