#!lua flags=no-writes,allow-oom
-- What runs, without a look at anything else. ARGV: how many to look at, how many to give, and which come first: those
-- that began first (''), or the newest below an order number ('+inf': from the start).
-- Answers {whether all were looked at, id, state, body, ...}.
local most, left, below = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local ids = redis.call('ZRANGE', ns .. 'running', 0, most - 1)
local raws, found = many('HMGET', ns .. 'state', ids), {}
local last = below == '+inf' and math.huge or tonumber(below)
for i, id in ipairs(ids) do
  local t = decode(id, raws[i])
  if t and t.status == RUNNING and (not last or t.seq < last) then
    found[#found + 1] = { id = id, raw = raws[i], seq = t.seq, started = t.started }
  end
end
table.sort(found, function(a, b)
  if last then return a.seq > b.seq end
  if a.started ~= b.started then return a.started < b.started end
  return a.seq < b.seq
end)
local answer = { #ids < most and 1 or 0 }
for i = 1, math.min(left, #found) do
  for _, part in ipairs({ found[i].id, found[i].raw, redis.call('HGET', ns .. 'body', found[i].id) or '' }) do
    answer[#answer + 1] = part
  end
end
return answer
