-- A sign of life. Returns {now, wait, silent}: microseconds to wait as in join.lua, -1 where this Redis
-- doesn't know the replica; and the replicas that may hold something and gave no sign of life for a while.

if not known() then return { now, -1, {} } end
alive()
local silent = {}
for _, other in ipairs(redis.call('SMEMBERS', KEYS_OF .. 'replicas')) do
  local beat = tonumber(redis.call('HGET', key('held', other), 'beat'))
  if not beat then
    -- Its lease has ended, and with it what it held.
    redis.call('SREM', KEYS_OF .. 'replicas', other)
  elseif other ~= replica and now - beat >= ask.silent then
    silent[#silent + 1] = other
  end
end
return { now, gathering(), silent }
