#!lua flags=no-writes,allow-oom
-- How many due tasks of its queue come before a waiting one. ARGV: id, how many at most. -1: there is no such task.
local t, most = load_one(ARGV[1]), tonumber(ARGV[2])
if not t then return redis.call('HEXISTS', ns .. 'state', ARGV[1]) == 1 and -2 or -1 end
if t.status ~= PENDING then return 0 end
local mine = place(t)
local found = redis.call('ZLEXCOUNT', ns .. 'ready:' .. t.queue, '-', '(' .. mine)
-- Bytes are compared as numbers: Lua compares text by the server's locale.
local function before(a, b)
  local one, other = { struct.unpack('>BI4I4I8', a) }, { struct.unpack('>BI4I4I8', b) }
  for i = 1, 4 do
    if one[i] ~= other[i] then return one[i] < other[i] end
  end
  return false
end
for _, where in ipairs(redis.call('ZRANGEBYSCORE', ns .. 'later:' .. t.queue, '-inf', score(now), 'LIMIT', 0, most)) do
  if before(where, mine) then found = found + 1 end
end
return math.min(found, most)
