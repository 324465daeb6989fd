#!lua
-- T1 for one task that is due at once, has no key and does not expire, and is new: what most enqueues are. A straight
-- line of commands: the functions of the others cost more to make than all of these to run.
-- ARGV: token, id, body, queue, the record up to its order number, the record from `started` on
-- Answers nothing where it is not that simple, and has changed nothing; then `enqueue` decides.
local ns, token, id, body, queue, head, tail = KEYS[1], unpack(ARGV)
local ready, limit = ns .. 'ready:' .. queue, redis.call('HGET', ns .. 'limits', queue)
if limit and redis.call('ZCARD', ready) + redis.call('ZCARD', ns .. 'later:' .. queue) >= tonumber(limit) then return false end
if redis.call('EXISTS', ns .. 'gone:' .. id) == 1 then return false end
if redis.call('HEXISTS', ns .. 'body', id) == 1 then return false end
local seq, low = redis.call('INCR', ns .. 'seq'), now % 4294967296
-- Numbers that a command is given are texts: those that Lua counts with are printed as doubles first, which takes longer.
redis.call('HSET', ns .. 'state', id, head .. struct.pack('>I6I7', seq, now) .. tail)
local stretch = string.format('%d', seq / 128)
if redis.call('RPUSHX', ns .. 'stretch:' .. stretch, id) == 0 then
  redis.call('ZADD', ns .. 'order', stretch, stretch)
  redis.call('RPUSH', ns .. 'stretch:' .. stretch, id)
end
-- Its priority, when it is due, then in order.
redis.call('ZADD', ready, '0',
  struct.pack('>c1I4I4I8c0', string.sub(head, 3, 3), (now - low) / 4294967296 + 2147483648, low, seq, id))
redis.call('SADD', ns .. 'queues', queue)
local minute = string.format('%d', now / 60000000)
if redis.call('HINCRBY', ns .. 'tally:' .. minute, '5:' .. queue, '1') == 1 then
  redis.call('ZADD', ns .. 'minutes', minute, minute)
end
redis.call('HSET', ns .. 'body', id, body) -- last: whoever failed before may call again, and is not taken for known
redis.pcall('PUBLISH', ns .. 'due', token) -- whoever has no right to ring has enqueued all the same
return { 0 }
