-- How a task comes to wait, and who is told: the part of moving that an enqueue needs too. A script makes each function
-- anew whenever it runs, so one for a single task should not have many.
local TIMINGS = 1000
local rang_due, rang_result, timed = false, false, false

-- Takes its place among all tasks. A list of a hundred ids takes a third of the memory that they take in a sorted set.
local function line_up(t)
  local stretch = stretch_of(t)
  local w = into('ZADD', 'order', 2)
  if w[w.n] ~= stretch then put_pair('ZADD', 'order', stretch, stretch) end
  put('RPUSH', 'stretch:' .. stretch, t.id)
end

local function save(t)
  t.packed = encode(t)
  put_pair('HSET', 'state', t.id, t.packed)
  if t.as_found ~= t.status then
    local before = t.as_found or PENDING
    if not t.as_found then
      tally(ENQUEUED, t.queue, 1) -- which says that it waits
    elseif ARRIVED[t.status] then
      tally(ARRIVED[t.status], t.queue, 1)
    end
    if before ~= t.status then
      tally(before, t.queue, -1)
      tally(t.status, t.queue, 1)
    end
    t.as_found = t.status
  end
end

-- Where a waiting task stands; the order of these bytes is the order of claims.
local function place(t)
  return string.char(t.rank) .. t.due .. struct.pack('>I8', t.seq) .. t.id
end

local function wait_at(t, due, has_eta)
  t.status, t.due, t.has_eta = PENDING, due, has_eta
  local at = moment(due)
  -- What has no eta is due whatever the clock says, also after it was set back.
  if has_eta == 0 or at <= now then put_pair('ZADD', 'ready:' .. t.queue, '0', place(t))
  else put_pair('ZADD', 'later:' .. t.queue, score(at), place(t)) end
  put('SADD', 'queues', t.queue)
  if t.expires ~= NEVER then put_pair('ZADD', 'expiring', score(moment(t.expires)), t.id) end
  rang_due = true
  save(t)
end

local function waiting_in(queue)
  return redis.call('ZCARD', ns .. 'ready:' .. queue) + redis.call('ZCARD', ns .. 'later:' .. queue)
end

local function stop_waiting(t)
  local where = place(t)
  put('ZREM', 'ready:' .. t.queue, where)
  put('ZREM', 'later:' .. t.queue, where)
  if t.expires ~= NEVER then put('ZREM', 'expiring', t.id) end
end

-- Wakes those who sleep; `token` is who says so, and knows already. Somebody who waits for results has said so. All is
-- written by now: a user without the right to ring must not be told that nothing was done.
local function ring(token)
  flush()
  flush_counts()
  if timed then redis.call('LTRIM', ns .. 'timings', -TIMINGS, -1) end
  if rang_due then redis.pcall('PUBLISH', ns .. 'due', token) end
  if rang_result and redis.call('EXISTS', ns .. 'ear') == 1 then redis.pcall('PUBLISH', ns .. 'result', token) end
end
