#!lua flags=no-writes,allow-oom
-- The due task that comes first in each queue and priority; one seek each, and a look at what has just come due.
-- Answers {queue, rank, due, id, body, ...}.
local JUST_DUE, RANKS, answer = 1000, 10, {}

local function number(where)
  local rank, high, low, seq = struct.unpack('>BI4I4I8', where)
  return { rank = rank, high = high, low = low, seq = seq, where = where }
end

local function before(a, b)
  if a.high ~= b.high then return a.high < b.high end
  if a.low ~= b.low then return a.low < b.low end
  return a.seq < b.seq
end

for _, queue in ipairs(redis.call('SMEMBERS', ns .. 'queues')) do
  local first, rank = {}, 0
  while rank < RANKS do
    local where = redis.call('ZRANGEBYLEX', ns .. 'ready:' .. queue, '[' .. string.char(rank), '+', 'LIMIT', 0, 1)[1]
    if not where then break end
    local head = number(where)
    first[head.rank], rank = head, head.rank + 1
  end
  local due = redis.call('ZRANGEBYSCORE', ns .. 'later:' .. queue, '-inf', score(now), 'LIMIT', 0, JUST_DUE)
  for _, where in ipairs(due) do
    local head = number(where)
    if not first[head.rank] or before(head, first[head.rank]) then first[head.rank] = head end
  end
  for _, head in pairs(first) do
    local id = string.sub(head.where, 18)
    local body = redis.call('HGET', ns .. 'body', id)
    if body then
      for _, part in ipairs({ queue, head.rank, string.sub(head.where, 2, 9), id, body }) do
        answer[#answer + 1] = part
      end
    end
  end
end
return answer
