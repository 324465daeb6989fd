#!lua flags=allow-oom
-- What is over (T8, T9, T12), then what waited too long (T14). ARGV: token, failure_ttl, limit
-- Answers {how many, ids that could not be read}.
local failure_ttl, limit, ended, broken = tonumber(ARGV[2]), tonumber(ARGV[3]), 0, {}

local function over(index, most)
  return most > 0 and redis.call('ZRANGEBYSCORE', ns .. index, '-inf', score(now), 'LIMIT', 0, most) or {}
end

local function pass_over(index, id, t)
  put('ZREM', index, id)
  if not t then put_aside(id, index) end
  broken[#broken + 1] = id
end

local ids = over('running', limit)
local tasks = load(ids)
for _, id in ipairs(ids) do
  local t = tasks[id]
  if t and t.status == RUNNING then
    lapse_one(t, failure_ttl)
    ended = ended + 1
  else
    pass_over('running', id, t)
  end
end
ids = over('expiring', limit - ended)
tasks = load(ids)
for _, id in ipairs(ids) do
  local t = tasks[id]
  if t and t.status == PENDING then
    expire(t, failure_ttl)
    ended = ended + 1
  else
    pass_over('expiring', id, t)
  end
end
ring(ARGV[1])
return { ended, broken }
