-- Gives back what calls held and tells what they used.

if not known() then return 'stranger' end
alive()
for _, window in ipairs(ask.held) do
  hold('tokens|' .. window.key, -window.tokens)
  hold('cost|' .. window.key, -window.cost)
end
for _, window in ipairs(ask.used) do tell(window, replica) end
for _, bucket in ipairs(ask.buckets) do
  hold('minute|' .. bucket.subject, -bucket.held)
  spend(bucket, bucket.used, bucket.total)
end
for _, subject in ipairs(ask.busy) do hold('busy|' .. subject, -1) end
for _, limit in ipairs(ask.refused) do
  -- It comes back as if it had never been taken.
  local name = key('requests', limit.subject)
  local arrival = tonumber(redis.call('GET', name))
  if arrival then redis.call('SET', name, string.format('%.17g', arrival - MINUTE / math.max(limit.limit, 1)), 'EX', 120) end
end
return 'settled'
