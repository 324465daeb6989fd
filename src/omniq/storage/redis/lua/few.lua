#!lua flags=no-writes,allow-oom
-- Tasks of one status that are few, found by an index and not by a look at all tasks. ARGV: the status, running or
-- ended, how many to look at, how many to give, and which come first: those that began first (''), or the newest below
-- an order number ('+inf': from the start). Answers {whether all of the status were found, id, state, body, ...}.
local status, most, left, below = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local last = below == '+inf' and math.huge or tonumber(below)
local found, answer, looked, seen, wanted = {}, { 0 }, 0, 0, 0

for _, minute in ipairs(redis.call('ZRANGE', ns .. 'minutes', 0, -1)) do
  for field, by in pairs(pairs_of(redis.call('HGETALL', ns .. 'tally:' .. minute))) do
    if tonumber(string.match(field, '^%d+')) == status then wanted = wanted + tonumber(by) end
  end
end
if wanted > most and last then return answer end

-- What failed is kept longest, so it stands at the end of what has ended.
local command, index = 'ZRANGE', 'running'
if status ~= RUNNING then command, index = 'ZREVRANGE', 'ended' end
while seen < wanted and looked < most do
  local ids = redis.call(command, ns .. index, looked, math.min(looked + CHUNK, most) - 1)
  if #ids == 0 then break end
  local raws = many('HMGET', ns .. 'state', ids)
  for i, id in ipairs(ids) do
    local t = decode(id, raws[i])
    if t and t.status == status then
      seen = seen + 1
      if not last or t.seq < last then
        found[#found + 1] = { id = id, raw = raws[i], seq = t.seq, started = t.started }
      end
    end
  end
  looked = looked + #ids
end
table.sort(found, function(a, b)
  if last then return a.seq > b.seq end
  if a.started ~= b.started then return a.started < b.started end
  return a.seq < b.seq
end)
answer[1] = seen >= wanted and 1 or 0
for i = 1, math.min(left, #found) do
  for _, part in ipairs({ found[i].id, found[i].raw, redis.call('HGET', ns .. 'body', found[i].id) or '' }) do
    answer[#answer + 1] = part
  end
end
return answer
