-- T1 for all or none: everything is looked at before anything is written.
local META = '>BBI4dc8c8I2c0I2c0'
local HAS_ETA, ETA_IN, EXPIRES, EXPIRES_IN = 1, 2, 4, 8

local function after(seconds) return raw_moment(now + math.floor(struct.unpack('>d', seconds) * 1000000 + 0.5)) end
local function has(flags, bit) return flags % (2 * bit) >= bit end

local function arriving(n)
  local task = { id = ARGV[n], body = ARGV[n + 1] }
  local flags, eta, expires
  task.rank, flags, task.max_losses, task.result_ttl, eta, expires, task.queue, task.key =
    struct.unpack(META, ARGV[n + 2])
  task.has_eta = (has(flags, HAS_ETA) or has(flags, ETA_IN)) and 1 or 0
  task.eta = has(flags, ETA_IN) and after(eta) or eta
  task.expires = has(flags, EXPIRES_IN) and after(expires) or has(flags, EXPIRES) and expires or NEVER
  task.digest = string.sub(task.body, 1, 16)
  return task
end

-- A body with the call of another, and all else as it was; also the digest of the first enqueue: whoever repeats that
-- one is told "already there". Where there is no such body, or what is left of it makes no sense, the other one.
local function with_call(body, other)
  if not body or #body < 20 then return other end
  local length, others = struct.unpack('>I4', body, 17), struct.unpack('>I4', other, 17)
  return string.sub(body, 1, 16) .. string.sub(other, 17, 20 + others) .. string.sub(body, 21 + length)
end

local function remembered(value)
  return value and struct.unpack('>I8', value, 17) > now and string.sub(value, 1, 16)
end

-- The tasks that ARGV has from `at` on: id, body, what the record needs (META). `lenient`: an id that is known is no
-- conflict, whatever call it belongs to, and what has no room in its queue is left out.
-- Answers: {0} all are new; {1, id, created, ...}; {2, id} the id belongs to another call; {3, holder, key} key is held;
-- {4, queue, how many may wait} there is no room.
local function arrive(at, on_conflict, lenient)
  local limits, rooms, full = pairs_of(redis.call('HGETALL', ns .. 'limits')), {}, nil
  -- Takes a place in its queue, if there is a limit and room.
  local function has_room(queue)
    if not limits[queue] then return true end
    rooms[queue] = (rooms[queue] or tonumber(limits[queue]) - waiting_in(queue)) - 1
    if rooms[queue] < 0 then full = { 4, queue, tonumber(limits[queue]) } end
    return rooms[queue] >= 0
  end

  local tasks, ids, gone_keys, keys = {}, {}, {}, {}
  for n = at, #ARGV, 3 do
    local task = arriving(n)
    tasks[#tasks + 1] = task
    ids[#ids + 1] = task.id
    gone_keys[#gone_keys + 1] = ns .. 'gone:' .. task.id
    if task.key ~= '' then keys[#keys + 1] = task.key end
  end
  local bodies, gone = many('HMGET', ns .. 'body', ids), many('MGET', nil, gone_keys)

  local holders = {} -- key -> the living task that holds it
  local held_by = many('HMGET', ns .. 'unique', keys)
  for i, key in ipairs(keys) do
    local t = held_by[i] and load_one(held_by[i])
    if t and t.status < SUCCESS then holders[key] = t end
  end

  local new, fresh, replaced, replacing, answers, all_new = {}, {}, {}, {}, { 1 }, true
  for i, task in ipairs(tasks) do
    local known = new[task.id] and new[task.id].digest or bodies[i] and string.sub(bodies[i], 1, 16)
      or remembered(gone[i])
    if known and known ~= task.digest and not lenient then return { 2, task.id } end
    local holder = not known and task.key ~= '' and holders[task.key]
    if holder and on_conflict == 'raise' then return { 3, holder.id, task.key } end
    if holder and on_conflict == 'replace' then
      if not replaced[holder.id] then replacing[#replacing + 1] = holder end
      replaced[holder.id] = task
    end
    local left_out = not known and not holder and not has_room(task.queue) and lenient
    if known or holder or left_out then
      all_new = false
    else
      new[task.id], fresh[#fresh + 1] = task, task
      if task.key ~= '' then holders[task.key] = task end
    end
    answers[#answers + 1] = holder and holder.id or task.id
    answers[#answers + 1] = (known or holder or left_out) and 0 or 1
  end
  if full and not lenient then return full end

  local arrived = raw_moment(now)
  local seq = #fresh > 0 and redis.call('INCRBY', ns .. 'seq', #fresh) - #fresh or 0
  for i, task in ipairs(fresh) do
    local last = replaced[task.id] or task -- replaced by a later one of the same batch
    local t = { id = task.id, cancel = 0, isolates = 0, rank = task.rank, result_status = NONE, epoch = 0, attempts = 0,
      losses = 0, suspicions = 0, max_losses = task.max_losses, seq = seq + i, expires = task.expires, enqueued = now,
      started = 0, finished = 0, result_at = 0, prune_at = 0, result_ttl = task.result_ttl, queue = task.queue,
      owner = '', claim_id = '', key = task.key, progress = '', error = '', result = '' }
    line_up(t)
    if t.key ~= '' then put_pair('HSET', 'unique', t.key, t.id) end
    wait_at(t, last.has_eta == 1 and last.eta or arrived, last.has_eta)
  end
  -- Last: by its body a task is known, and whoever failed half way may call again.
  for _, task in ipairs(fresh) do
    local last = replaced[task.id] or task
    put_pair('HSET', 'body', task.id, last == task and task.body or with_call(task.body, last.body))
  end
  flush()
  for _, t in ipairs(replacing) do
    if t.status == PENDING then -- one that runs is left alone
      local task = replaced[t.id]
      local body = redis.call('HGET', ns .. 'body', t.id)
      stop_waiting(t)
      flush()
      put_pair('HSET', 'body', t.id, with_call(body, task.body))
      wait_at(t, task.has_eta == 1 and task.eta or raw_moment(t.enqueued), task.has_eta)
    end
  end
  rang_due = true
  return all_new and { 0 } or answers
end
