-- T4 to T7, T12: what was said of runs that have ended, fenced by their epoch.
local SUCCEED, REPEAT, RETRY, FAIL, CONTINUE, GIVE_BACK, LOSE = 0, 1, 2, 3, 4, 5, 6
-- Outcomes are numbered as in Python: success, retried, failed, given back, lost, died, cancelled.
local OUTCOME = { [0] = 0, 0, 1, 2, 2, 3, 5 }
local HELD, ALREADY, STALE = 0, 1, 2

local function close(t, action, delay_s, first, second, success_ttl, failure_ttl)
  if action == SUCCEED then
    let_go(t)
    return finish(t, SUCCESS, first, '', t.result_ttl >= 0 and t.result_ttl * 1000000 or success_ttl)
  end
  local failure = action ~= REPEAT and first or ''
  if t.cancel == 1 then return end_cancelled(t, OUTCOME_CANCELLED, failure, failure_ttl) end
  if action == LOSE then return lose_once(t, OUTCOME[LOSE], failure, second, failure_ttl) end
  note_run(t, OUTCOME[action], failure)
  let_go(t)
  if action == FAIL then
    t.attempts = t.attempts + 1
    return finish(t, FAILED, '', failure, failure_ttl)
  end
  if action == REPEAT then
    t.attempts, t.losses, t.suspicions, t.error = 0, 0, 0, ''
    note_result(t, SUCCESS, first)
  elseif action == CONTINUE then
    t.attempts, t.error = 0, failure
    note_result(t, FAILED, '')
    tally(GIVEN_UP, t.queue, 1)
  elseif action == RETRY then
    t.attempts, t.error = t.attempts + 1, failure
  end
  wait_for(t, delay_s)
end

-- It does not hold: was this very outcome recorded before?
local function answer(t, id, epoch, action)
  if not t then return STALE end
  if action == SUCCEED and t.status == SUCCESS and t.epoch == epoch then return ALREADY end
  for _, line in ipairs(redis.call('LRANGE', ns .. 'runs:' .. id, 0, -1)) do
    local run_epoch, _, _, outcome = struct.unpack('>I4I8I8B', line)
    local same = outcome == OUTCOME[action] or action ~= SUCCEED and outcome == OUTCOME_CANCELLED
    if run_epoch == epoch and same then return ALREADY end
  end
  return STALE
end

-- ARGV from `at`: id, epoch and action and delay and the length of the first text, both texts
local function settle(at, how_many, success_ttl, failure_ttl)
  local ids, answers, tasks = {}, {}, {}
  for i = 1, how_many do ids[i] = ARGV[at + 3 * (i - 1)] end
  local found = many('HMGET', ns .. 'state', ids)
  for i, id in ipairs(ids) do
    local epoch, action, delay_s, length = struct.unpack('>dBdI4', ARGV[at + 3 * i - 2])
    local texts, raw, t = ARGV[at + 3 * i - 1], found[i], tasks[id]
    if not t and raw and action == SUCCEED and quick_success(id, raw, epoch, texts, success_ttl) then
      tasks[id], answers[i] = { status = SUCCESS, epoch = epoch }, HELD
    else
      t = t or decode(id, raw)
      tasks[id] = t
      if t and t.status == RUNNING and t.epoch == epoch then
        local first, second = texts, ''
        if length < #texts then first, second = string.sub(texts, 1, length), string.sub(texts, length + 1) end
        if action == SUCCEED then meet(t, raw) end
        close(t, action, delay_s, first, second, success_ttl, failure_ttl)
        answers[i] = HELD
      else
        answers[i] = answer(t, id, epoch, action)
      end
    end
  end
  count_quickly()
  flush()
  return answers
end
