#!lua
-- T1 for one task that is due at once, has no key and does not expire, and is new: what most enqueues are. A straight
-- line of commands: the functions of the others cost more to make than all of these to run.
-- ARGV: token, id, body, queue, the record up to its order number, the record from `started` on
-- Answers nothing where it is not that simple, and has changed nothing; then `enqueue` decides.
local ns, token, id, body, queue, head, tail = KEYS[1], unpack(ARGV)
local limit = redis.call('HGET', ns .. 'limits', queue)
if limit and tonumber(redis.call('HGET', ns .. 'count', '0:' .. queue) or 0) >= tonumber(limit) then return false end
if redis.call('EXISTS', ns .. 'gone:' .. id) == 1 then return false end
if redis.call('HEXISTS', ns .. 'body', id) == 1 then return false end
local seq, high = redis.call('INCR', ns .. 'seq'), math.floor(now / 4294967296)
local place = struct.pack('>I4I4I8', high + 2147483648, now - high * 4294967296, seq) -- due, then in order
redis.call('HSET', ns .. 'state', id, head .. struct.pack('>I6I7', seq, now) .. tail)
local stretch = string.format('%.0f', math.floor(seq / 128))
if redis.call('EXISTS', ns .. 'stretch:' .. stretch) == 0 then redis.call('ZADD', ns .. 'order', stretch, stretch) end
redis.call('RPUSH', ns .. 'stretch:' .. stretch, id)
redis.call('ZADD', ns .. 'ready:' .. queue, 0, string.sub(head, 3, 3) .. place .. id)
redis.call('SADD', ns .. 'queues', queue)
redis.call('HINCRBY', ns .. 'count', '0:' .. queue, 1)
local minute = string.format('%.0f', math.floor(now / 60000000))
local tally = ns .. 'tally:' .. minute
if redis.call('HINCRBY', tally, '5:' .. queue, 1) == 1 then redis.call('ZADD', ns .. 'minutes', minute, minute) end
if redis.call('HINCRBY', tally, '0:' .. queue, 1) == 0 then redis.call('HDEL', tally, '0:' .. queue) end
redis.call('HSET', ns .. 'body', id, body) -- last: whoever failed before may call again, and is not taken for known
redis.pcall('PUBLISH', ns .. 'due', token) -- whoever has no right to ring has enqueued all the same
return { 0 }
