#!lua flags=no-writes,allow-oom
-- What a parcel may hold: waiting tasks by queue in the order of claims, then ended ones. ARGV: how many, how many bytes
-- Answers {id, state, body, ...}.
local left, bytes, found = tonumber(ARGV[1]), tonumber(ARGV[2]), {}

local function add(ids)
  local states, bodies = many('HMGET', ns .. 'state', ids), many('HMGET', ns .. 'body', ids)
  for i, id in ipairs(ids) do
    local state, body = states[i] or '', bodies[i] or ''
    bytes = bytes - #state - #body
    if left == 0 or bytes < 0 and #found > 0 then
      left = 0
      return
    end
    left = left - 1
    found[#found + 1], found[#found + 2], found[#found + 3] = id, state, body
  end
end

local function add_places(key)
  local ids = {}
  for i, where in ipairs(redis.call('ZRANGE', ns .. key, 0, left - 1)) do ids[i] = string.sub(where, 18) end
  add(ids)
end

local queues = redis.call('SMEMBERS', ns .. 'queues')
table.sort(queues)
for _, queue in ipairs(queues) do
  if left > 0 then add_places('ready:' .. queue) end
  if left > 0 then add_places('later:' .. queue) end
end
if left > 0 then add(redis.call('ZRANGE', ns .. 'ended', 0, left - 1)) end
return found
