#!lua flags=allow-oom
-- T16 for those whose time is over; workers silent for a day go too. ARGV: token, limit
local SILENT_US, MINUTES = 86400 * 1000000, 1000
local ids = redis.call('ZRANGEBYSCORE', ns .. 'ended', '-inf', score(now), 'LIMIT', 0, tonumber(ARGV[2]))
local tasks, gone = load(ids), {}
for _, id in ipairs(ids) do
  local t = tasks[id]
  if t and t.status >= SUCCESS then
    gone[#gone + 1] = t
  else
    put('ZREM', 'ended', id)
    if not t then put_aside(id, 'ended') end
  end
end
forget(gone)
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', ns .. 'seen', '-inf', '(' .. score(now - SILENT_US), 'LIMIT', 0, 1000)) do
  put('HDEL', 'workers', worker)
  put('ZREM', 'seen', worker)
end
-- Minutes are told apart for two hours; what is older is put together, as much as one call may take.
local oldest = string.format('(%.0f', math.floor(now / MINUTE_US) - 120)
for _, minute in ipairs(redis.call('ZRANGEBYSCORE', ns .. 'minutes', '(0', oldest, 'LIMIT', 0, MINUTES)) do
  local old = pairs_of(redis.call('HGETALL', ns .. 'tally:' .. minute))
  for field, by in pairs(old) do old[field] = tonumber(by) end
  redis.call('ZADD', ns .. 'minutes', 0, 0)
  add_up('tally:0', old)
  redis.call('DEL', ns .. 'tally:' .. minute)
  redis.call('ZREM', ns .. 'minutes', minute)
end
ring(ARGV[1])
return #gone
