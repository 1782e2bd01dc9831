-- Makes a window's counter known: what the ledger says each replica has used.

for _, share in ipairs(ask.shares) do
  tell({ key = ask.key, stop = ask.stop, tokens = share.tokens, cost = share.cost }, share.replica)
end
redis.call('HSET', key('used', ask.key), 'seeded', 1)
redis.call('EXPIREAT', key('used', ask.key), ask.stop + 86400)
return 'seeded'
