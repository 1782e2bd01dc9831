"""What users of OpenAI's Python client do. Arguments: base URL, a key, a key that may send no request, a model's name."""

import asyncio
import sys

import openai
from openai import AsyncOpenAI, OpenAI

base_url, key, spent_key, model = sys.argv[1:]
client = OpenAI(base_url=base_url, api_key=key, max_retries=0)
messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say something."}]
drawn = {"max_tokens": 8, "temperature": 0}


def refused(expected, call, **fields):
    """The call raises `expected` and nothing else, with these fields."""
    try:
        call()
    except expected as error:
        assert type(error) is expected, type(error)
        for name, value in fields.items():
            assert getattr(error, name) == value, (name, getattr(error, name), error)
        return error
    raise AssertionError(f"{expected.__name__} was not raised")


# Models
listed = [one.id for one in client.models.list()]
assert model in listed, listed
assert client.models.retrieve(model).id == model

# Chat, whole and streamed
whole = client.chat.completions.create(model=model, messages=messages, seed=1, user="someone", **drawn)
choice = whole.choices[0]
assert choice.message.role == "assistant" and choice.finish_reason in ("stop", "length"), choice
assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
assert whole._request_id, "the client reads x-request-id"
options = {"stream": True, "stream_options": {"include_usage": True}}
chunks = list(client.chat.completions.create(model=model, messages=messages, seed=1, **options, **drawn))
text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
assert text == choice.message.content, (text, choice.message.content)
assert chunks[-1].choices == [] and chunks[-1].usage.total_tokens == whole.usage.total_tokens
assert len({chunk.id for chunk in chunks}) == 1

# The client's own helper makes events of chunks
with client.chat.completions.stream(model=model, messages=messages, seed=1, **drawn) as stream:
    deltas = [event.delta for event in stream if event.type == "content.delta"]
    assert "".join(deltas) == choice.message.content

# Chat with log-probabilities
probed = client.chat.completions.create(model=model, messages=messages, logprobs=True, top_logprobs=3, **drawn)
for entry in probed.choices[0].logprobs.content:
    assert entry.logprob <= 0 and len(entry.top_logprobs) == 3 and isinstance(entry.bytes, list)
    assert abs(entry.top_logprobs[0].logprob - entry.logprob) < 1e-6, "a greedy token is the likeliest"
assert b"".join(bytes(entry.bytes) for entry in probed.choices[0].logprobs.content).decode() == probed.choices[0].message.content

# Completions: several prompts and choices, log-probabilities and echo, streamed
many = client.completions.create(model=model, prompt=["One", "Two"], n=2, **drawn)
assert [one.index for one in many.choices] == [0, 1, 2, 3]
echoed = client.completions.create(model=model, prompt="One", echo=True, logprobs=2, **drawn)
assert echoed.choices[0].text.startswith("One"), echoed
logprobs = echoed.choices[0].logprobs
assert logprobs.token_logprobs[0] is None and all(value <= 0 for value in logprobs.token_logprobs[1:]), logprobs
assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == len(logprobs.text_offset)
assert len(logprobs.tokens) == echoed.usage.total_tokens
scored = client.completions.create(model=model, prompt="One", echo=True, logprobs=0, max_tokens=0)
assert scored.choices[0].text == "One" and scored.usage.completion_tokens == 0, scored
pieces = [chunk.choices[0].text for chunk in client.completions.create(model=model, prompt="One", stream=True, **drawn)]
assert "One" + "".join(pieces) == echoed.choices[0].text

# What goes wrong has the client's own types
asked = dict(model=model, messages=messages, **drawn)
refused(openai.AuthenticationError, lambda: client.with_options(api_key="wrong").chat.completions.create(**asked), status_code=401, code="invalid_api_key")
refused(openai.NotFoundError, lambda: client.chat.completions.create(**{**asked, "model": "none"}), code="model_not_found", param="model")
refused(openai.BadRequestError, lambda: client.chat.completions.create(**{**asked, "temperature": 9}), code="invalid_value", param="temperature")
refused(openai.BadRequestError, lambda: client.chat.completions.create(**asked, extra_body={"frobnicate": 1}), code="unsupported_parameter", param="frobnicate")
long = refused(openai.BadRequestError, lambda: client.completions.create(model=model, prompt="word " * 20000), code="context_length_exceeded")
assert "maximum context length is" in str(long)
limited = refused(openai.RateLimitError, lambda: client.with_options(api_key=spent_key).chat.completions.create(**asked), status_code=429, type="requests")
assert limited.response.headers["x-should-retry"] == "false"
refused(openai.NotFoundError, lambda: client.embeddings.create(model=model, input="x", encoding_format="float"), code="unknown_url")


async def at_once():
    """Sixteen requests share the client's pool of connections; one that is left early harms none of the others."""
    async with AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0) as client:

        async def one(index):
            stream = await client.chat.completions.create(model=model, messages=messages, seed=1, stream=True, **drawn)
            text = ""
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
                if index % 4 == 0:
                    await stream.close()
                    return None
            return text

        texts = await asyncio.gather(*map(one, range(16)))
        assert {text for text in texts if text is not None} == {choice.message.content}, texts


asyncio.run(at_once())
print("all held")
