#!lua flags=allow-oom
-- Puts what does not run into a parcel, in one write. ARGV: token, id of the parcel, how many schedules, their names,
-- ids of tasks; what has begun to run or is gone since they were read is left out
-- Answers the parcel that is there, a flat list: id, how many tasks, each with id, state, body, history; how many
-- schedules, their records; how many paused queues, those; how many limits, each with its queue. Empty: nothing to take.
local parcel = redis.call('LRANGE', ns .. 'parcel', 0, -1)
if #parcel > 0 then return parcel end

local schedules, ids = {}, {}
for i = 1, tonumber(ARGV[3]) do schedules[i] = ARGV[3 + i] end
for i = 4 + #schedules, #ARGV do ids[#ids + 1] = ARGV[i] end

local function history(id)
  local lines = redis.call('LRANGE', ns .. 'runs:' .. id, 0, -1)
  for i, line in ipairs(lines) do lines[i] = struct.pack('>I4', #line) .. line end
  return table.concat(lines)
end

local taken, tasks, states, bodies = {}, load(ids), many('HMGET', ns .. 'state', ids), many('HMGET', ns .. 'body', ids)
parcel = { ARGV[2], 0 }
for i, id in ipairs(ids) do
  local t = tasks[id]
  if t and t.status ~= RUNNING and bodies[i] then
    taken[#taken + 1] = t
    for _, part in ipairs({ id, states[i], bodies[i], history(id) }) do parcel[#parcel + 1] = part end
  end
end
parcel[2] = #taken
local records = {}
for i, kept in ipairs(many('HMGET', ns .. 'schedules', schedules)) do
  if kept then records[#records + 1] = string.sub(kept, 9) end
end
local paused, limits = redis.call('SMEMBERS', ns .. 'paused'), redis.call('HGETALL', ns .. 'limits')
for _, part in ipairs({ records, paused, limits }) do
  parcel[#parcel + 1] = part == limits and #limits / 2 or #part
  for _, value in ipairs(part) do parcel[#parcel + 1] = value end
end
if #taken + #records + #paused + #limits == 0 then return {} end

for _, part in ipairs(parcel) do put('RPUSH', 'parcel', part) end
for _, t in ipairs(taken) do
  if t.status == PENDING then stop_waiting(t) end
  if t.status == PENDING and t.key ~= '' then put('HDEL', 'unique', t.key) end
end
forget(taken, true)
for _, name in ipairs(schedules) do
  put('HDEL', 'schedules', name)
  put('ZREM', 'ticks', name)
end
flush()
redis.call('DEL', ns .. 'paused', ns .. 'limits')
rang_result = true
ring(ARGV[1])
return redis.call('LRANGE', ns .. 'parcel', 0, -1)
