#!lua
-- T13. ARGV: token, id. Answers {its status before, its key, who holds that}; nothing changes where one is in the way.
local t = load_one(ARGV[2])
if not t then return { redis.call('HEXISTS', ns .. 'state', ARGV[2]) == 1 and -2 or -1, '', '' } end
local before = t.status
if before ~= FAILED and before ~= CANCELLED then return { before, '', '' } end
local holder = t.key ~= '' and redis.call('HGET', ns .. 'unique', t.key)
local living = holder and load_one(holder)
if living and living.status < SUCCESS then return { before, t.key, holder } end
t.attempts, t.losses, t.suspicions, t.expires, t.error, t.finished, t.prune_at = 0, 0, 0, NEVER, '', 0, 0
t.result_status, t.result_at, t.result = NONE, 0, ''
if t.key ~= '' then put_pair('HSET', 'unique', t.key, t.id) end
put('ZREM', 'ended', t.id)
wait_for(t, 0)
ring(ARGV[1])
return { before, '', '' }
