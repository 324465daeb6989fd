#!lua flags=allow-oom
-- Settle what has ended, then hand out at most `limit` due tasks. Both may run where memory is full: they make room.
-- ARGV: token, success_ttl, failure_ttl, how many settlements, those; then, if there is a claim: worker, claim_id,
-- limit, lease, isolates, scarce_limit, how many scarce queues, those, how many queues (-1: all), those
-- Answers: {answers, something is due, something has ended, due in microseconds or -1, broken ids, id, state, body, ...}
local PROMOTE, LEAST_PROMOTED, EXPIRY_ROUNDS = 20000, 1000, 20
local token, success_ttl, failure_ttl, said = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local answers = settle(5, said, success_ttl, failure_ttl)
local at = 5 + 3 * said
local reply = { answers, 0, 0, -1, {} }

local function rung()
  ring(token)
  reply[2], reply[3] = rang_due and 1 or 0, rang_result and 1 or 0
  return reply
end

if not ARGV[at] then return rung() end
local worker, claim_id, limit, lease = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
local isolates, scarce_left = tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5])
local scarce, queues = {}, {}
at = at + 6
for _ = 1, tonumber(ARGV[at]) do
  at = at + 1
  scarce[ARGV[at]] = true
end
at = at + 1
local wanted_queues = tonumber(ARGV[at])
local names = wanted_queues < 0 and redis.call('SMEMBERS', ns .. 'queues') or {}
for i = 1, wanted_queues do names[i] = ARGV[at + i] end
local paused, seen = {}, {}
for _, name in ipairs(redis.call('SMEMBERS', ns .. 'paused')) do paused[name] = true end
for _, name in ipairs(names) do
  if not paused[name] and not seen[name] then
    seen[name], queues[#queues + 1] = true, name
  end
end

-- What came due moves over. Each moves once, and priorities are exact among what has moved, so it is all of it unless
-- that would keep everybody else waiting (some 2 microseconds each): the rest then follows with the next claims.
local function promote()
  local left = PROMOTE
  for _, queue in ipairs(queues) do
    local most = math.max(left, LEAST_PROMOTED)
    local places = redis.call('ZRANGEBYSCORE', ns .. 'later:' .. queue, '-inf', score(now), 'LIMIT', 0, most)
    left = left - #places
    for _, where in ipairs(places) do
      put_pair('ZADD', 'ready:' .. queue, '0', where)
      put('ZREM', 'later:' .. queue, where)
    end
  end
  flush()
end

-- Not a < b on the places: Lua compares text by the server's locale, and these are bytes.
local function before(a, b)
  if a.rank ~= b.rank then return a.rank < b.rank end
  if a.high ~= b.high then return a.high < b.high end
  if a.low ~= b.low then return a.low < b.low end
  return a.seq < b.seq
end

local function heads(wanted)
  local found = {}
  for _, queue in ipairs(queues) do
    local most = scarce[queue] and math.min(wanted, scarce_left) or wanted
    local places = most > 0 and redis.call('ZRANGE', ns .. 'ready:' .. queue, 0, most - 1) or {}
    for _, where in ipairs(places) do
      local head = { id = string.sub(where, 18), queue = queue, where = where }
      if #queues > 1 then head.rank, head.high, head.low, head.seq = struct.unpack('>BI4I4I8', where) end
      found[#found + 1] = head
    end
  end
  if #queues > 1 then table.sort(found, before) end
  local picked, share = {}, scarce_left
  for _, head in ipairs(found) do
    if #picked == wanted then break end
    if not scarce[head.queue] then
      picked[#picked + 1] = head
    elseif share > 0 then
      picked[#picked + 1], share = head, share - 1
    end
  end
  return picked
end

local claimed = {}
local function run(head, packed)
  put_pair('HSET', 'state', head.id, packed)
  put_pair('ZADD', 'running', score(now + lease), head.id)
  put('SADD', 'own:' .. worker, head.id)
  head.packed = packed
  claimed[#claimed + 1] = head
  if scarce[head.queue] then scarce_left = scarce_left - 1 end
end

-- One that was claimed before, has an eta, expires, or is not what it should be.
local function take_other(head, t)
  if not t or t.status ~= PENDING then
    if not t then put_aside(head.id, 'ready:' .. head.queue) end
    table.insert(reply[5], head.id)
  elseif is_expired(t) then
    expire(t, failure_ttl)
  elseif t.has_eta == 1 and moment(t.due) > now then -- the clock was set back since it came due
    put_pair('ZADD', 'later:' .. head.queue, score(moment(t.due)), head.where)
  else
    if t.expires ~= NEVER then put('ZREM', 'expiring', t.id) end
    t.status, t.epoch, t.owner, t.claim_id, t.started = RUNNING, t.epoch + 1, worker, claim_id, now
    t.isolates, t.progress = isolates, ''
    run(head, encode(t))
    tally(PENDING, t.queue, -1)
    tally(RUNNING, t.queue, 1)
  end
end

local function take(picked)
  local ids, quick, taken, here = {}, {}, {}, {}
  for i, head in ipairs(picked) do ids[i] = head.id end
  local found = many('HMGET', ns .. 'state', ids)
  for i, head in ipairs(picked) do
    local queue, raw = head.queue, found[i]
    quick[queue] = quick[queue] or first_claims(queue, worker, claim_id, isolates)
    taken[queue] = (taken[queue] or 0) + 1
    local packed = raw and not here[head.id] and quick[queue](raw)
    if packed then
      run(head, packed)
    elseif here[head.id] then -- it stands there twice
      table.insert(reply[5], head.id)
    else
      take_other(head, decode(head.id, raw))
    end
    here[head.id] = true
  end
  -- Whatever became of them, they do not wait here any more, and they were the first ones.
  for queue, how_many in pairs(taken) do redis.call('ZREMRANGEBYRANK', ns .. 'ready:' .. queue, 0, how_many - 1) end
  count_quickly()
  flush()
end

-- When the next one comes up, so that the worker sleeps no longer. Queues with nothing left are looked at no more.
local function next_look()
  local soonest = -1
  for _, queue in ipairs(queues) do
    local share = not scarce[queue] or scarce_left > 0
    local first = redis.call('ZRANGE', ns .. 'later:' .. queue, 0, 0, 'WITHSCORES')
    local ready = redis.call('EXISTS', ns .. 'ready:' .. queue) == 1
    if not first[1] and not ready then redis.call('SREM', ns .. 'queues', queue) end
    local due_in = share and (ready and 0 or first[2] and math.max(0, tonumber(first[2]) - now))
    if due_in and (soonest < 0 or due_in < soonest) then soonest = due_in end
  end
  return soonest
end

local function in_order()
  for _, head in ipairs(claimed) do
    head.rank, head.high, head.low, head.seq = struct.unpack('>BI4I4I8', head.where)
  end
  table.sort(claimed, before)
end

local marker = ns .. 'claim:' .. #worker .. ':' .. worker .. ':' .. claim_id
if redis.call('EXISTS', marker) == 1 then
  for _, t in pairs(load(redis.call('SMEMBERS', ns .. 'own:' .. worker))) do
    if t.status == RUNNING and t.owner == worker and t.claim_id == claim_id then
      claimed[#claimed + 1] = { id = t.id, where = place(t), packed = encode(t) }
    end
  end
  in_order()
  reply[4] = 0
end
if #claimed == 0 then
  promote()
  local more = true -- whether there may be more right away
  for round = 1, EXPIRY_ROUNDS do
    local wanted, had = limit - #claimed, #claimed
    local picked = wanted > 0 and heads(wanted) or {}
    take(picked)
    if round > 1 then in_order() end -- a scarce one may come up behind an expired one
    more = #picked == wanted or #claimed - had < #picked -- expired ones, say, took a place
    if not more or #claimed >= limit then break end
  end
  if #claimed > 0 then redis.call('SET', marker, 1, 'PX', math.max(1, math.ceil(lease / 1000))) end
  reply[4] = more and 0 or next_look()
end
local ids = {}
for i, head in ipairs(claimed) do ids[i] = head.id end
local bodies = many('HMGET', ns .. 'body', ids)
for i, head in ipairs(claimed) do
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3] = head.id, head.packed, bodies[i] or ''
end
return rung()
