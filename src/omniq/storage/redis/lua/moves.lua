-- How a task gets from one status to another. Nothing is undone in a script, so whoever calls these has checked first.
local OUTCOME_SUCCESS, OUTCOME_RETRIED, OUTCOME_LOST, OUTCOME_DIED, OUTCOME_CANCELLED = 0, 1, 4, 5, 6
local TALLIED = { [OUTCOME_SUCCESS] = SUCCEEDED, [OUTCOME_RETRIED] = RETRIED, [OUTCOME_LOST] = LOST,
  [OUTCOME_DIED] = LOST }
local HISTORY, MAX_SUSPICIONS, LONGEST_LOSS_S, REMEMBER_S = 20, 10, 3600, 600

local function fault(kind, type, message)
  return '{"type":"' .. type .. '","message":"' .. message .. '","traceback":"","kind":"' .. kind .. '"}'
end

local function wait_for(t, seconds)
  wait_at(t, raw_moment(now + math.floor(math.max(0, seconds) * 1000000 + 0.5)), 1)
end

local function let_go(t)
  put('ZREM', 'running', t.id)
  put('SREM', 'own:' .. t.owner, t.id)
  t.owner, t.claim_id, t.cancel, t.isolates = '', '', 0, 0
end

local function note_result(t, status, result)
  t.result_status, t.result_at, t.result = status, now, result
  rang_result = true
end

local function finish(t, status, result, failure, keep_us)
  t.status, t.error, t.finished, t.prune_at = status, failure, now, now + keep_us
  note_result(t, status, result)
  if status == SUCCESS then
    put('RPUSH', 'timings', struct.pack('>dd', t.started - moment(t.due), now - t.started) .. t.queue)
    timed = true
  end
  put_pair('ZADD', 'ended', score(t.prune_at), t.id)
  if t.key ~= '' then put('HDEL', 'unique', t.key) end
  save(t)
end

local function note_run(t, outcome, failure)
  local key = ns .. 'runs:' .. t.id
  redis.call('LPUSH', key, struct.pack('>I4I8I8BI2c0', t.epoch, t.started, now, outcome, #t.owner, t.owner) .. failure)
  redis.call('LTRIM', key, 0, HISTORY - 1)
  if TALLIED[outcome] then tally(TALLIED[outcome], t.queue, 1) end
end

local function loss_delay_s(times)
  return times == 0 and 0 or math.min(LONGEST_LOSS_S, 2 ^ math.min(times - 1, 30))
end

-- T12: a cancel request wins over everything but success.
local function end_cancelled(t, outcome, failure, failure_ttl)
  note_run(t, outcome, failure)
  let_go(t)
  finish(t, CANCELLED, '', fault('cancelled', 'Cancelled', 'cancelled while it ran'), failure_ttl)
end

-- T8, T9. `cause` is there if the worker lives and tells it.
local function lose_once(t, outcome, cause, poison, failure_ttl)
  local last = t.losses + 1 >= t.max_losses
  note_run(t, outcome, cause ~= '' and cause or last and poison or '')
  let_go(t)
  t.losses = t.losses + 1
  if last then finish(t, FAILED, '', poison, failure_ttl) else wait_for(t, loss_delay_s(t.losses - 1)) end
end

-- A worker is gone: whoever was in flight beside others may be innocent, and is run on its own next.
local function lapse_one(t, failure_ttl)
  if t.cancel == 1 then return end_cancelled(t, OUTCOME_LOST, '', failure_ttl) end
  if t.isolates == 1 and t.suspicions < MAX_SUSPICIONS then
    note_run(t, OUTCOME_LOST, '')
    let_go(t)
    t.suspicions = t.suspicions + 1
    return wait_for(t, loss_delay_s(t.suspicions - 1))
  end
  local message = string.format('its worker died, %d times while running it', t.losses + 1)
  lose_once(t, OUTCOME_LOST, '', fault('poison', 'WorkerLost', message), failure_ttl)
end

-- T14
local function expire(t, failure_ttl)
  stop_waiting(t)
  finish(t, FAILED, '', fault('expired', 'Expired', 'not started before it expired'), failure_ttl)
end

local function is_expired(t)
  return t.expires ~= NEVER and moment(t.expires) <= now
end

-- Something that stands in an index but cannot be read must not stand in everybody's way; doctor shows it.
local function put_aside(id, where)
  put_pair('HSET', 'broken', id, where)
end

-- T16: the id and the call are remembered for ten minutes, unless the task is only moving to another store.
local function forget(tasks, moving)
  local ids = {}
  for i, t in ipairs(tasks) do ids[i] = t.id end
  local bodies, stretches = many('HMGET', ns .. 'body', ids), {}
  for i, t in ipairs(tasks) do
    put('HDEL', 'state', t.id)
    put('HDEL', 'body', t.id)
    local stretch = stretch_of(t)
    stretches[stretch] = true
    redis.call('LREM', ns .. 'stretch:' .. stretch, 0, t.id)
    put('ZREM', 'ended', t.id)
    redis.call('UNLINK', ns .. 'runs:' .. t.id)
    if bodies[i] and not moving then
      local until_ = struct.pack('>I8', now + REMEMBER_S * 1000000)
      redis.call('SET', ns .. 'gone:' .. t.id, string.sub(bodies[i], 1, 16) .. until_, 'EX', REMEMBER_S)
    end
    tally(t.status, t.queue, -1)
  end
  for stretch in pairs(stretches) do
    if redis.call('EXISTS', ns .. 'stretch:' .. stretch) == 0 then put('ZREM', 'order', stretch) end
  end
  if #tasks > 0 then rang_result = true end
end
