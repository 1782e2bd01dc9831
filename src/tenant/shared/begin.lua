-- What every script begins with. ARGV: what is asked as JSON, the replica that asks, its generation, and for how many
-- seconds without a sign of life Redis remembers what it holds.
--
-- roundhouse:epoch                since when this run of Redis counts
-- roundhouse:joined               the replicas that joined in this run
-- roundhouse:replicas             the replicas that may hold something
-- roundhouse:held:REPLICA         what it holds, a field for each counter; its generation and its last sign of life
-- roundhouse:used:WINDOW          what was used of a quota: tokens, cost; of it by each replica, tokens:REPLICA, cost:REPLICA
-- roundhouse:requests:SUBJECT     when all requests taken will have come back by time alone (GCRA)
-- roundhouse:tokens:SUBJECT       tokens used of a limit per minute, at a moment; what each replica has told, told:REPLICA
--
-- What a replica holds is its own hash, so that it goes with its replica. What it has used of a quota is its own absolute
-- sum, so that saying it again changes nothing. The time is Redis's, in microseconds that doubles hold exactly.

local KEYS_OF = 'roundhouse:'
local ask, replica, generation = cjson.decode(ARGV[1]), ARGV[2], ARGV[3]
local time = redis.call('TIME')
local unix = tonumber(time[1])
local now = (unix - 1700000000) * 1000000 + tonumber(time[2])
local MINUTE = 60000000

local function key(kind, name)
  return KEYS_OF .. kind .. ':' .. name
end

local mine = key('held', replica)

-- Whether this Redis knows the replica as it is now: not after it lost its data, the replica's lease, or its answers.
local function known()
  return redis.call('HGET', mine, 'generation') == generation
end

local function alive()
  redis.call('HSET', mine, 'beat', now)
  redis.call('EXPIRE', mine, ARGV[4])
end

local replicas

-- What all replicas hold of a counter.
local function held(field)
  local sum = 0
  replicas = replicas or redis.call('SMEMBERS', KEYS_OF .. 'replicas')
  for _, other in ipairs(replicas) do
    sum = sum + (tonumber(redis.call('HGET', key('held', other), field)) or 0)
  end
  return sum
end

local function hold(field, amount)
  if amount ~= 0 and redis.call('HINCRBY', mine, field, amount) <= 0 then
    redis.call('HDEL', mine, field)
  end
end

-- Tells what a replica has used of a window in all. It only ever grows; `exactly` is what somebody else knows of one that
-- is gone.
local function tell(window, of, exactly)
  local used = key('used', window.key)
  for _, unit in ipairs({ 'tokens', 'cost' }) do
    local field = unit .. ':' .. of
    local before = tonumber(redis.call('HGET', used, field)) or 0
    local more = window[unit] - before
    if more > 0 or (exactly and more ~= 0) then
      redis.call('HSET', used, field, window[unit])
      redis.call('HINCRBY', used, unit, more)
    end
  end
  -- A day after its end nobody asks any more.
  redis.call('EXPIREAT', used, window.stop + 86400)
end

-- Tokens used of a limit per minute, drained up to now.
local function drained(bucket)
  local stored = redis.call('HMGET', key('tokens', bucket.subject), 'used', 'at')
  local passed = math.max(now - (tonumber(stored[2]) or now), 0)
  return math.max((tonumber(stored[1]) or 0) - bucket.limit * passed / MINUTE, 0)
end

local function spend(bucket, tokens, total)
  local name = key('tokens', bucket.subject)
  local used = drained(bucket) + tokens
  redis.call('HSET', name, 'used', used, 'at', now, 'told:' .. replica, total)
  redis.call('EXPIRE', name, 120 + math.ceil(60 * used / math.max(bucket.limit, 1)))
end

-- Microseconds until requests may be granted: a Redis that began anew may have lost data, and first hears of all replicas what they hold and have used.
local function gathering()
  local passed = now - (tonumber(redis.call('HGET', KEYS_OF .. 'epoch', 'since')) or now)
  if passed >= ask.gather then return 0 end
  if ask.replicas and redis.call('SCARD', KEYS_OF .. 'joined') >= ask.replicas then return 0 end
  return ask.gather - passed
end
