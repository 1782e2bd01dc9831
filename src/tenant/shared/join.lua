-- A replica comes, or comes again after something was lost between it and Redis: from now on Redis knows exactly what it
-- holds and has used.
--
-- Returns {now, wait}: microseconds to wait until all replicas that share this Redis have come again after it began anew.

local epoch, run = KEYS_OF .. 'epoch', string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
if redis.call('HGET', epoch, 'run') ~= run then
  redis.call('HSET', epoch, 'run', run, 'since', now)
  redis.call('DEL', KEYS_OF .. 'joined')
end
redis.call('SADD', KEYS_OF .. 'joined', replica)
redis.call('DEL', mine)
redis.call('SADD', KEYS_OF .. 'replicas', replica)
redis.call('HSET', mine, 'generation', generation)
alive()
for _, window in ipairs(ask.held) do
  hold('tokens|' .. window.key, window.tokens)
  hold('cost|' .. window.key, window.cost)
end
for _, window in ipairs(ask.used) do tell(window, replica) end
for _, bucket in ipairs(ask.buckets) do
  hold('minute|' .. bucket.subject, bucket.held)
  local name = key('tokens', bucket.subject)
  local told = tonumber(redis.call('HGET', name, 'told:' .. replica))
  if told and bucket.total > told then spend(bucket, bucket.total - told, bucket.total) end
  if not told and redis.call('EXISTS', name) == 1 then redis.call('HSET', name, 'told:' .. replica, bucket.total) end
end
for _, subject in ipairs(ask.busy) do hold('busy|' .. subject.subject, subject.count) end
return { now, gathering() }
