#!lua
-- Keeps what is in a parcel of another store: all or nothing, and once. ARGV: token, failure_ttl, id of the parcel, how
-- many tasks, each with id, state, body, history; how many schedules, each with name, revision, next tick or '', record;
-- how many paused queues, those; how many limits, each with its queue
-- Answers {0, id} the id belongs to another call; {1, tasks, known, blocked, schedules, returned}.
local failure_ttl, at = tonumber(ARGV[2]), 3
local function next_one()
  at = at + 1
  return ARGV[at - 1]
end

local id = next_one()
local receipt, RECEIPT_S = ns .. 'receipt:' .. id, 30 * 86400
local known_until = redis.call('GET', receipt)
if known_until and tonumber(known_until) > now then return { 1, 0, 0, 0, 0, 0 } end
local returned = redis.call('LINDEX', ns .. 'parcel', 0) == id
local new, known = {}, 0
for _ = 1, tonumber(next_one()) do
  local one = { id = next_one(), state = next_one(), body = next_one(), history = next_one() }
  local there = redis.call('HGET', ns .. 'body', one.id)
  if there and string.sub(there, 1, 16) ~= string.sub(one.body, 1, 16) then return { 0, one.id } end
  if there then known = known + 1 else new[#new + 1] = one end
end

-- A waiting task whose unique key is held here is kept as cancelled, for people to decide.
local function hold_back(t, holder)
  local why = 'moved here while task ' .. holder .. ' held its unique key; retry it when that has ended'
  t.status, t.finished, t.prune_at, t.cancel = CANCELLED, now, now + failure_ttl, 0
  t.result_status, t.result_at, t.result = CANCELLED, now, ''
  t.error = '{"type":"Cancelled","message":' .. cjson.encode(why) .. ',"traceback":"","kind":"cancelled"}'
end

local function keep_history(t, lines)
  local from = 1
  while from <= #lines do
    local length = struct.unpack('>I4', lines, from)
    redis.call('RPUSH', ns .. 'runs:' .. t.id, string.sub(lines, from + 4, from + 3 + length))
    from = from + 4 + length
  end
end

local blocked, keys = 0, {}
local seq = #new > 0 and redis.call('INCRBY', ns .. 'seq', #new) - #new or 0
for i, one in ipairs(new) do
  local t = decode(one.id, one.state)
  t.seq, t.as_found = seq + i, nil
  local holder = t.status == PENDING and t.key ~= '' and (keys[t.key] or redis.call('HGET', ns .. 'unique', t.key))
  if holder then
    hold_back(t, holder)
    blocked = blocked + 1
  end
  put_pair('HSET', 'body', t.id, one.body)
  line_up(t)
  keep_history(t, one.history)
  if t.status == PENDING then
    if t.key ~= '' then
      keys[t.key] = t.id
      put_pair('HSET', 'unique', t.key, t.id)
    end
    wait_at(t, t.due, t.has_eta)
  else
    put_pair('ZADD', 'ended', score(t.prune_at), t.id)
    save(t)
  end
end
local schedules = 0
for _ = 1, tonumber(next_one()) do
  local name, revision, next_at, record = next_one(), tonumber(next_one()), next_one(), next_one()
  if redis.call('HSETNX', ns .. 'schedules', name, struct.pack('>I8', revision) .. record) == 1 then
    schedules = schedules + 1
    if next_at ~= '' then put_pair('ZADD', 'ticks', next_at, name) end
  end
end
for _ = 1, tonumber(next_one()) do put('SADD', 'paused', next_one()) end
for _ = 1, tonumber(next_one()) do redis.call('HSETNX', ns .. 'limits', next_one(), next_one()) end
if returned then redis.call('DEL', ns .. 'parcel')
else redis.call('SET', receipt, string.format('%.0f', now + RECEIPT_S * 1000000), 'EX', RECEIPT_S) end
rang_due, rang_result = true, true
ring(ARGV[1])
return { 1, #new, known, blocked, schedules, returned and 1 or 0 }
