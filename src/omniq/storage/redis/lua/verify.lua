#!lua flags=no-writes,allow-oom
-- What should not be, a stretch of one key at a time; each record is looked at together with everything that points to
-- it, so a store at work raises no false alarm. ARGV: the key without its namespace, cursor
-- Answers {cursor, line, line, ...}.
local name, cursor, lines = ARGV[1], ARGV[2], {}
local SCANS = { hash = 'HSCAN', zset = 'ZSCAN', set = 'SSCAN' }
local function wrong(id, what) lines[#lines + 1] = id .. ' ' .. what end
local function score_in(index, member) return redis.call('ZSCORE', ns .. index, member) end

local function look_at_waiting(t)
  local where = place(t)
  local ready, later = score_in('ready:' .. t.queue, where), score_in('later:' .. t.queue, where)
  if not ready and not later then wrong(t.id, 'waits but stands in no index: no claim finds it') end
  if ready and later then wrong(t.id, 'is due and not due at once') end
  if t.expires ~= NEVER and not score_in('expiring', t.id) then wrong(t.id, 'expires but nobody would notice') end
  if redis.call('SISMEMBER', ns .. 'queues', t.queue) == 0 then wrong(t.id, 'waits in a queue that nobody looks at') end
end

local function look_at(id, raw)
  local t = decode(id, raw)
  if not t then return wrong(id, 'has a record that cannot be read') end
  local runs, final = t.status == RUNNING, t.status >= SUCCESS
  if redis.call('HEXISTS', ns .. 'body', id) == 0 then wrong(id, 'has lost its body') end
  local stretch = stretch_of(t)
  local in_line = redis.call('LPOS', ns .. 'stretch:' .. stretch, id)
  if not in_line or not score_in('order', stretch) then wrong(id, 'stands in no list') end
  if t.status == PENDING then look_at_waiting(t) end
  if runs ~= (t.owner ~= '') then wrong(id, 'runs without an owner, or has one and does not run') end
  if runs and not score_in('running', id) then wrong(id, 'runs without a lease') end
  if runs and redis.call('SISMEMBER', ns .. 'own:' .. t.owner, id) == 0 then wrong(id, 'is renewed by nobody') end
  if not runs and t.cancel == 1 then wrong(id, 'does not run but is to be cancelled') end
  if final ~= (t.finished > 0) then wrong(id, 'has ended without a moment, or has one and has not ended') end
  if final and not score_in('ended', id) then wrong(id, 'has ended but would be kept for ever') end
  if not final and t.key ~= '' and redis.call('HGET', ns .. 'unique', t.key) ~= id then
    wrong(id, 'does not hold its unique key')
  end
end

-- What an index says of a task, and whether the task agrees.
local agrees = {
  running = function(t) return t.status == RUNNING end,
  ended = function(t) return t.status >= SUCCESS end,
  expiring = function(t) return t.status == PENDING end,
  body = function() return true end,
  unique = function(t, key) return t.status < SUCCESS and t.key == key end,
  own = function(t) return t.status == RUNNING and 'own:' .. t.owner == name end,
  ready = function(t, where) return t.status == PENDING and place(t) == where end,
  later = function(t, where) return t.status == PENDING and place(t) == where end,
}

local type_ = redis.call('TYPE', ns .. name).ok
if string.find(name, '^stretch:') then
  for _, id in ipairs(type_ == 'list' and redis.call('LRANGE', ns .. name, 0, -1) or {}) do
    local t = load_one(id)
    if not t or 'stretch:' .. stretch_of(t) ~= name then wrong(id, 'stands in ' .. name .. ' but should not') end
  end
  return { '0', unpack(lines) }
end
if type_ == 'list' then -- runs:ID
  local id = string.sub(name, 6)
  if redis.call('HEXISTS', ns .. 'state', id) == 0 then wrong(id, 'has a history but is no task') end
  return { '0', unpack(lines) }
end
if not SCANS[type_] then return { '0' } end
local page = redis.call(SCANS[type_], ns .. name, cursor, 'COUNT', 500)
local index = string.match(name, '^[a-z]+')
for i = 1, #page[2], type_ == 'set' and 1 or 2 do
  local member, value = page[2][i], page[2][i + 1]
  if name == 'state' then
    look_at(member, value)
  elseif name == 'order' then
    if redis.call('EXISTS', ns .. 'stretch:' .. member) == 0 then wrong(member, 'is a stretch without tasks') end
  elseif name == 'broken' then
    wrong(member, 'stood in ' .. value .. ' but has no record that can be read')
  else
    local id = index == 'unique' and value or (index == 'ready' or index == 'later') and string.sub(member, 18) or member
    local t = load_one(id)
    if not t or not agrees[index](t, member) then wrong(id, 'stands in ' .. name .. ' but should not') end
  end
end
return { page[1], unpack(lines) }
