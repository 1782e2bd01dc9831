-- A replica is gone and the ledger has settled its requests: it holds nothing any more, and has used what the ledger says.

if redis.call('HGET', key('held', ask.gone), 'generation') ~= ask.generation then return 'alive' end
for _, window in ipairs(ask.used) do tell(window, ask.gone, true) end
redis.call('DEL', key('held', ask.gone))
redis.call('SREM', KEYS_OF .. 'replicas', ask.gone)
return 'buried'
