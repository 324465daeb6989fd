-- The contract's verbs as one Redis script: a spike, no product code.
-- KEYS[1] is the namespace with its hash tag, such as "{omniq}"; ARGV[1] the verb; ARGV[2] its request (msgpack).
-- cmsgpack does not know the type "bin", so bytes follow as ARGV[3] and so on, and the request has their number.
--
-- All keys share the namespace's hash tag, because the script computes names (queues, workers, claims, ids):
--   ready:<queue>  zset, score 0, member = 9-priority (1 byte) due (8) seq (8) id: byte order is claim order
--   later          zset of waiting ids that are not due yet, by due     expiring   zset of waiting ids, by expires_at
--   running        zset of running ids, by end of lease                 own:<worker>   set of running ids
--   claim:<id>     id and epoch of each task that a claim got; gone by itself when the claim's lease is over
--   body           hash id -> digest (16 bytes) and the encoded task    state   hash id -> see FORMAT
--   ended          hash id -> status (1) moment (8) result              error   hash id -> JSON
--   runs:<id>      list of closed runs, newest first                    gone:<id>  digest of a deleted task
--   unique         hash unique key -> id                                queues, paused   sets of names
--
-- A script is never interrupted, but it is not undone either when it fails half-way. So every verb reads and checks
-- first and writes afterwards, and a record that cannot be read is passed over, never an error.

local ns = KEYS[1] .. ':'
local ask = cmsgpack.unpack(ARGV[2])
local PENDING, RUNNING, SUCCESS, FAILED, CANCELLED = 0, 1, 2, 3, 4
local SUCCEED, REPEAT, RETRY, FAIL, CONTINUE, GIVE_BACK = 0, 1, 2, 3, 4, 5
local OUTCOME = { [0] = 'success', 'success', 'retried', 'failed', 'failed', 'given back' }
local HISTORY, PROMOTE, CHUNK, EXPIRY_ROUNDS = 20, 1000, 1000, 20
-- status cancel 9-priority epoch attempts losses max_losses seq due expires_at enqueued_at started_at, then four
-- strings: queue owner claim_id unique_key
local FORMAT = '>BBBI4I4I4I4I8I8I8I8I8I2c0I2c0I2c0I2c0'
local SHORTEST = 67

-- One moment for the whole script: Redis holds TIME still while a script runs. Microseconds stay exact in a double.
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])

local function fault(kind, message)
  return cjson.encode({ type = kind[1], message = message, kind = kind[2] })
end
local WHILE_RUNNING = fault({ 'Cancelled', 'cancelled' }, 'cancelled while it ran')
local BEFORE_RUNNING = fault({ 'Cancelled', 'cancelled' }, 'cancelled before it ran')
local LOST = fault({ 'WorkerLost', 'poison' }, 'its worker died too often')
local EXPIRED = fault({ 'Expired', 'expired' }, 'not started before it expired')

-- One command per batch and structure; `unpack` fails above about 8,000 values.
local function in_chunks(command, key, values, width)
  for first = 1, #values, CHUNK * width do
    redis.call(command, key, unpack(values, first, math.min(first + CHUNK * width - 1, #values)))
  end
end

local function read_many(key, ids)
  local found = {}
  for first = 1, #ids, CHUNK do
    local part = redis.call('HMGET', key, unpack(ids, first, math.min(first + CHUNK - 1, #ids)))
    for i = 1, #part do found[first + i - 1] = part[i] end
  end
  return found
end

local function decode(id, raw)
  if not raw or #raw < SHORTEST then return nil end
  local t = { id = id }
  local ok = pcall(function()
    t.status, t.cancel, t.rank, t.epoch, t.attempts, t.losses, t.max_losses, t.seq, t.due, t.expires, t.enqueued,
      t.started, t.queue, t.owner, t.claim_id, t.key = struct.unpack(FORMAT, raw)
  end)
  return ok and t or nil
end

local function encode(t)
  return struct.pack(FORMAT, t.status, t.cancel, t.rank, t.epoch, t.attempts, t.losses, t.max_losses, t.seq, t.due,
    t.expires, t.enqueued, t.started, #t.queue, t.queue, #t.owner, t.owner, #t.claim_id, t.claim_id, #t.key, t.key)
end

local function load(ids)
  local tasks, raw = {}, read_many(ns .. 'state', ids)
  for i, id in ipairs(ids) do tasks[id] = decode(id, raw[i]) end
  return tasks
end

local function place(t)
  return struct.pack('>BI8I8', t.rank, t.due, t.seq) .. t.id
end

-- What a verb wants to write, gathered per key and command, so that a batch is a handful of commands.
local batch, order = {}, {}
local function later(command, key, width, ...)
  local slot = command .. ' ' .. key
  if not batch[slot] then
    batch[slot] = { command, ns .. key, width }
    order[#order + 1] = slot
  end
  for _, value in ipairs({ ... }) do table.insert(batch[slot], value) end
end

local function flush()
  for _, slot in ipairs(order) do
    local b = batch[slot]
    local values = {}
    for i = 4, #b do values[i - 3] = b[i] end
    in_chunks(b[1], b[2], values, b[3])
  end
  batch, order = {}, {}
end

local function save(t) later('HSET', 'state', 2, t.id, encode(t)) end

local function wait_until(t, due)
  t.status, t.due = PENDING, due
  if due <= now then later('ZADD', 'ready:' .. t.queue, 2, 0, place(t))
  else later('ZADD', 'later', 2, string.format('%.0f', due), t.id) end
  if t.expires > 0 then later('ZADD', 'expiring', 2, string.format('%.0f', t.expires), t.id) end
  save(t)
end

local function let_go(t)
  later('ZREM', 'running', 1, t.id)
  later('SREM', 'own:' .. t.owner, 1, t.id)
  t.owner, t.claim_id, t.cancel = '', '', 0
end

local function stop_waiting(t)
  later('ZREM', 'ready:' .. t.queue, 1, place(t))
  later('ZREM', 'later', 1, t.id)
  later('ZREM', 'expiring', 1, t.id)
end

local function remember(t, status, result)
  later('HSET', 'ended', 2, t.id, struct.pack('>BI8', status, now) .. (result or ''))
end

local function finish(t, status, result, failure)
  t.status = status
  remember(t, status, result)
  if failure then later('HSET', 'error', 2, t.id, failure) else later('HDEL', 'error', 1, t.id) end
  if t.key ~= '' then later('HDEL', 'unique', 1, t.key) end
  save(t)
end

local function note(t, outcome, failure)
  local line = cjson.encode({ t.epoch, t.owner, string.format('%.0f', t.started), string.format('%.0f', now), outcome,
    failure or '' })
  redis.call('LPUSH', ns .. 'runs:' .. t.id, line)
  redis.call('LTRIM', ns .. 'runs:' .. t.id, 0, HISTORY - 1)
end

-- settle -----------------------------------------------------------------------------------------------------------

local function apply(t, s)
  local cancelled = t.cancel == 1 and s.action ~= SUCCEED
  if s.action ~= SUCCEED then note(t, cancelled and 'cancelled' or OUTCOME[s.action], s.error) end
  let_go(t)
  if s.action == SUCCEED then return finish(t, SUCCESS, ARGV[s.result]) end
  if cancelled then return finish(t, CANCELLED, nil, WHILE_RUNNING) end
  if s.action == RETRY or s.action == FAIL then t.attempts = t.attempts + 1 end
  if s.action == FAIL then return finish(t, FAILED, nil, s.error) end
  if s.action == REPEAT then
    t.attempts, t.losses = 0, 0
    remember(t, SUCCESS, ARGV[s.result])
    later('HDEL', 'error', 1, t.id)
  elseif s.action ~= GIVE_BACK then
    later('HSET', 'error', 2, t.id, s.error)
  end
  if s.action == CONTINUE then
    t.attempts = 0
    remember(t, FAILED)
  end
  wait_until(t, now + math.floor(math.max(0, s.delay_s) * 1000000))
end

local function answer(t, s)
  if not t then return 'stale' end
  if s.action == SUCCEED and t.status == SUCCESS then return t.epoch == s.epoch and 'already' or 'stale' end
  for _, line in ipairs(redis.call('LRANGE', ns .. 'runs:' .. s.id, 0, -1)) do
    local run = cjson.decode(line)
    local same = run[5] == OUTCOME[s.action] or (run[5] == 'cancelled' and s.action ~= SUCCEED)
    if run[1] == s.epoch and same then return 'already' end
  end
  return 'stale'
end

local function settle(settlements)
  local ids, answers = {}, {}
  for i, s in ipairs(settlements) do ids[i] = s.id end
  local tasks = load(ids)
  for i, s in ipairs(settlements) do
    local t = tasks[s.id]
    if t and t.status == RUNNING and t.epoch == s.epoch then
      apply(t, s)
      answers[i] = 'held'
    else
      answers[i] = answer(t, s)
    end
  end
  flush()
  return answers
end

-- claim ------------------------------------------------------------------------------------------------------------

local function promote()
  local ids = redis.call('ZRANGEBYSCORE', ns .. 'later', '-inf', string.format('%.0f', now), 'LIMIT', 0, PROMOTE)
  local tasks = load(ids)
  for _, id in ipairs(ids) do
    local t = tasks[id]
    if t and t.status == PENDING then later('ZADD', 'ready:' .. t.queue, 2, 0, place(t)) end
    later('ZREM', 'later', 1, id)
  end
  flush()
end

local function before(a, b)
  -- Not a < b on the members: Lua compares strings by the server's locale, and bytes are not text.
  if a.rank ~= b.rank then return a.rank < b.rank end
  if a.due ~= b.due then return a.due < b.due end
  return a.seq < b.seq
end

local function due(wish, limit)
  local heads = {}
  for _, queue in ipairs(wish.queues or redis.call('SMEMBERS', ns .. 'queues')) do
    if redis.call('SISMEMBER', ns .. 'paused', queue) == 0 then
      for _, member in ipairs(redis.call('ZRANGE', ns .. 'ready:' .. queue, 0, limit - 1)) do
        local rank, at, seq = struct.unpack('>BI8I8', member)
        heads[#heads + 1] = { rank = rank, due = at, seq = seq, id = string.sub(member, 18), queue = queue,
          member = member }
      end
    end
  end
  table.sort(heads, before)
  for i = #heads, limit + 1, -1 do heads[i] = nil end
  return heads
end

local function take(heads, wish, claimed)
  local ids = {}
  for i, head in ipairs(heads) do ids[i] = head.id end
  local tasks = load(ids)
  for _, head in ipairs(heads) do
    local t = tasks[head.id]
    later('ZREM', 'ready:' .. head.queue, 1, head.member)
    if t and t.status == PENDING and t.expires > 0 and t.expires <= now then
      later('ZREM', 'expiring', 1, t.id)
      finish(t, FAILED, nil, EXPIRED)
    elseif t and t.status == PENDING then
      later('ZREM', 'expiring', 1, t.id)
      t.status, t.epoch, t.owner, t.claim_id, t.started = RUNNING, t.epoch + 1, wish.worker, wish.claim_id, now
      later('ZADD', 'running', 2, string.format('%.0f', now + wish.lease * 1000000), t.id)
      later('SADD', 'own:' .. wish.worker, 1, t.id)
      save(t)
      claimed[#claimed + 1] = t
    end
  end
  flush()
end

local function claimed_before(wish)
  local ids, epochs = {}, {}
  for i, value in ipairs(redis.call('LRANGE', ns .. 'claim:' .. wish.claim_id, 0, -1)) do
    epochs[i] = struct.unpack('>I4', value)
    ids[i] = string.sub(value, 5)
  end
  local tasks, again = load(ids), {}
  for i, id in ipairs(ids) do
    local t = tasks[id]
    if t and t.status == RUNNING and t.epoch == epochs[i] then again[#again + 1] = t end
  end
  return again
end

local function hand_out(wish)
  local claimed = claimed_before(wish)
  if #claimed > 0 then return claimed end
  promote()
  for _ = 1, EXPIRY_ROUNDS do
    local wanted = wish.limit - #claimed
    local heads = wanted > 0 and due(wish, wanted) or {}
    take(heads, wish, claimed)
    if #heads < wanted or #claimed >= wish.limit then break end
  end
  for _, t in ipairs(claimed) do later('RPUSH', 'claim:' .. wish.claim_id, 1, struct.pack('>I4', t.epoch) .. t.id) end
  flush()
  if #claimed > 0 then redis.call('PEXPIRE', ns .. 'claim:' .. wish.claim_id, math.ceil(wish.lease * 1000)) end
  return claimed
end

local function exchange()
  local answers, claims, ids = settle(ask.settlements), {}, {}
  if ask.claim then
    local claimed = hand_out(ask.claim)
    for i, t in ipairs(claimed) do ids[i] = t.id end
    local bodies = read_many(ns .. 'body', ids)
    for i, t in ipairs(claimed) do claims[i] = { t.id, t.epoch, t.attempts, t.losses, bodies[i] } end
  end
  return { answers, claims }
end

-- leases -----------------------------------------------------------------------------------------------------------

local function renew()
  local ids, held = redis.call('SMEMBERS', ns .. 'own:' .. ask.worker), {}
  local tasks = load(ids)
  for _, id in ipairs(ids) do
    local t = tasks[id]
    if t and t.status == RUNNING and t.owner == ask.worker then
      later('ZADD', 'running', 2, string.format('%.0f', now + ask.lease * 1000000), id)
      held[#held + 1] = { id, t.epoch, t.cancel }
    end
  end
  flush()
  return held
end

local function lose(ids)
  local tasks, count = load(ids), 0
  for _, id in ipairs(ids) do
    local t = tasks[id]
    if t and t.status == RUNNING then
      local poison = t.cancel == 0 and t.losses + 1 >= t.max_losses
      local cancelled = t.cancel == 1
      note(t, 'lost', poison and LOST or nil)
      let_go(t)
      count = count + 1
      if cancelled then
        finish(t, CANCELLED, nil, WHILE_RUNNING)
      else
        local pause_s = t.losses == 0 and 0 or math.min(3600, 2 ^ math.min(t.losses - 1, 30))
        t.losses = t.losses + 1
        if poison then finish(t, FAILED, nil, LOST) else wait_until(t, now + pause_s * 1000000) end
      end
    end
  end
  flush()
  return count
end

local function lapse()
  local until_now = string.format('%.0f', now)
  local count = lose(redis.call('ZRANGEBYSCORE', ns .. 'running', '-inf', until_now, 'LIMIT', 0, ask.limit))
  local ids = redis.call('ZRANGEBYSCORE', ns .. 'expiring', '-inf', until_now, 'LIMIT', 0, ask.limit)
  local tasks = load(ids)
  for _, id in ipairs(ids) do
    local t = tasks[id]
    later('ZREM', 'expiring', 1, id)
    if t and t.status == PENDING then
      stop_waiting(t)
      finish(t, FAILED, nil, EXPIRED)
      count = count + 1
    end
  end
  flush()
  return count
end

local function cancel()
  local t = load({ ask.id })[ask.id]
  if not t then return -1 end
  if t.status == PENDING then
    stop_waiting(t)
    finish(t, CANCELLED, nil, BEFORE_RUNNING)
  elseif t.status == RUNNING then
    t.cancel = 1
    save(t)
  end
  flush()
  return t.status
end

-- enqueue: two passes, because nothing is undone ---------------------------------------------------------------------

local function there(task, new)
  local known = new[task.id] and new[task.id].digest or redis.call('HGET', ns .. 'body', task.id)
    or redis.call('GET', ns .. 'gone:' .. task.id)
  return known and string.sub(known, 1, 16)
end

local function holder(key, keys)
  return keys[key] or redis.call('HGET', ns .. 'unique', key) or nil
end

local function enqueue()
  local new, keys, replaced, placed, fresh = {}, {}, {}, {}, {}
  for i, task in ipairs(ask.tasks) do
    task.body = ARGV[task.body]
    task.digest = string.sub(task.body, 1, 16)
    local known = there(task, new)
    if known and known ~= task.digest then return { 'IdConflict', task.id } end
    local held_by = not known and task.key and holder(task.key, keys)
    if held_by and ask.on_conflict == 'raise' then return { 'DuplicateTask', held_by } end
    if held_by and ask.on_conflict == 'replace' then replaced[held_by] = task end
    if not known and not held_by then
      new[task.id], fresh[#fresh + 1] = task, task
      if task.key then keys[task.key] = task.id end
    end
    placed[i] = { known and task.id or held_by or task.id, (known or held_by) and 0 or 1 }
  end
  local seq = redis.call('INCRBY', ns .. 'seq', #fresh) - #fresh
  for i, task in ipairs(fresh) do
    local content = replaced[task.id] or task
    local t = { id = task.id, status = PENDING, cancel = 0, rank = 9 - task.priority, epoch = 0, attempts = 0,
      losses = 0, max_losses = task.max_losses, seq = seq + i, expires = task.expires_us or 0, enqueued = now, started = 0,
      queue = task.queue, owner = '', claim_id = '', key = task.key or '' }
    later('HSET', 'body', 2, t.id, task.digest .. string.sub(content.body, 17))
    if task.key then later('HSET', 'unique', 2, task.key, t.id) end
    later('SADD', 'queues', 1, t.queue)
    wait_until(t, content.eta_us or now)
    replaced[task.id] = nil
  end
  for id, task in pairs(replaced) do
    local t = load({ id })[id]
    if t and t.status == PENDING then
      stop_waiting(t)
      -- The digest stays that of the first enqueue: whoever repeats that one must be told "already there".
      local first = string.sub(redis.call('HGET', ns .. 'body', id), 1, 16)
      later('HSET', 'body', 2, id, first .. string.sub(task.body, 17))
      flush()
      wait_until(t, task.eta_us or t.enqueued)
    end
  end
  flush()
  return { 'ok', placed }
end

local verbs = { enqueue = enqueue, exchange = exchange, renew = renew, lapse = lapse, cancel = cancel,
  release = function() return lose(redis.call('SMEMBERS', ns .. 'own:' .. ask.worker)) end }
return verbs[ARGV[1]]()
