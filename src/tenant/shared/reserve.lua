-- Reserves what a call could use at most, in all dimensions or in none. Checks in the order of the counters in a process.
--
-- Returns {verdict, index, value, now, max_tokens, requests, tokens, held, quotas}: the verdict on the call, which limit or
-- quota it is about, and where all limits (microseconds of requests, tokens used, tokens held) and quotas stand.

local function answer(verdict, index, value, max_tokens, requests, tokens, holds, quotas)
  return { verdict, index or 0, value or 0, now, max_tokens or 0, requests or {}, tokens or {}, holds or {}, quotas or {} }
end

if not known() then return answer('stranger') end
local windows = ask.windows
for index, window in ipairs(windows) do
  if unix < window.start or unix >= window.stop then return answer('time') end
  local used = redis.call('HMGET', key('used', window.key), 'seeded', 'tokens', 'cost')
  if not used[1] then return answer('unseeded', index) end
  window.used = { tokens = tonumber(used[2]) or 0, cost = tonumber(used[3]) or 0 }
  window.held = { tokens = held('tokens|' .. window.key), cost = held('cost|' .. window.key) }
end
alive()

local verdict, index, value
local function refuse(why, which, what)
  if not verdict then verdict, index, value = why, which, what end
end

local max_tokens = ask.max_tokens
for number, quota in ipairs(ask.quotas) do
  if quota.hard and not verdict then
    local window = windows[quota.window]
    local unsettled = math.max(quota.amount - window.used[quota.unit], 0)
    local left = math.max(unsettled - window.held[quota.unit], 0)
    if quota.prompt + quota.each > unsettled then
      refuse('spent', number)
    elseif quota.prompt + quota.each * max_tokens > left then
      if window.held[quota.unit] > 0 then
        refuse('reserved', number)
      else
        -- Alone with the rest of the quota: it gets all of it.
        max_tokens = math.floor((left - quota.prompt) / quota.each)
      end
    end
  end
end

local worth = { tokens = ask.prompt + ask.choices * max_tokens, cost = ask.prompt_cost + ask.choice_cost * max_tokens }
for number, limit in ipairs(ask.limits) do
  if limit.tokens_per_request and worth.tokens > limit.tokens_per_request then refuse('large', number) end
  if limit.tokens_per_minute then
    limit.bucket = { subject = limit.subject, limit = limit.tokens_per_minute }
    limit.used, limit.held = drained(limit.bucket), held('minute|' .. limit.subject)
    if worth.tokens > limit.tokens_per_minute then
      refuse('never', number)
    else
      -- What is held may come back at any time; until then nobody knows, and a second is a fair guess.
      local free = math.max(limit.tokens_per_minute - limit.held - worth.tokens, 0)
      local wait = math.max(limit.used - free, 0) * MINUTE / math.max(limit.tokens_per_minute, 1)
      if limit.held + worth.tokens > limit.tokens_per_minute then wait = math.max(wait, 1000000) end
      if wait > 0 then refuse('tokens', number, math.ceil(wait)) end
    end
  end
  if limit.concurrent and held('busy|' .. limit.subject) >= limit.concurrent then refuse('busy', number) end
end

local longest = 0
for number, limit in ipairs(ask.limits) do
  if limit.requests_per_minute then
    local one = MINUTE / math.max(limit.requests_per_minute, 1)
    limit.one, limit.arrival = one, math.max(tonumber(redis.call('GET', key('requests', limit.subject))) or 0, now)
    local wait = limit.arrival - now - one * (limit.requests_per_minute - 1)
    if limit.requests_per_minute == 0 then wait = MINUTE end
    longest = math.max(longest, wait)
    -- A thousandth is what doubles may be off.
    if wait > 0.001 then refuse('requests', number) end
  end
end
if verdict == 'requests' then value = math.ceil(longest) end

if not verdict then
  verdict = 'granted'
  for _, window in ipairs(windows) do
    for unit, amount in pairs(worth) do
      hold(unit .. '|' .. window.key, amount)
      window.held[unit] = window.held[unit] + amount
    end
  end
  for _, limit in ipairs(ask.limits) do
    if limit.bucket then
      hold('minute|' .. limit.subject, worth.tokens)
      limit.held = limit.held + worth.tokens
    end
    if limit.concurrent then hold('busy|' .. limit.subject, 1) end
    if limit.arrival then
      limit.arrival = limit.arrival + limit.one
      redis.call('SET', key('requests', limit.subject), string.format('%.17g', limit.arrival), 'EX', 120)
    end
  end
end

local requests, tokens, holds, quotas = {}, {}, {}, {}
for number, limit in ipairs(ask.limits) do
  requests[number] = limit.arrival and math.floor((limit.arrival - now) / limit.one * 1000 + 0.5) or 0
  tokens[number], holds[number] = math.ceil(limit.used or 0), limit.held or 0
end
for number, quota in ipairs(ask.quotas) do
  local window = windows[quota.window]
  quotas[number] = window.used[quota.unit] + window.held[quota.unit]
end
return answer(verdict, index, value, max_tokens, requests, tokens, holds, quotas)
