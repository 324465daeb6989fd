-- The two moves that nearly every task makes, its first claim and its success, without a table of its record: to make
-- one and to write it back is most of what they cost. A record is cut where the move changes it, and only if its texts
-- are those of a task that nothing else ever happened to; for all others there are the moves of `moves.lua`.
--   1 status, cancel, isolates, has_eta  5 rank  6 result_status  7 epoch  11 .. seq  35 due  43 expires  51 enqueued
--   59 started  67 finished, result_at  83 prune_at  91 result_ttl  99 the texts
local TEXTS = 99
local function text(value) return struct.pack('>I2c0', #value, value) end

local quickly = {} -- queue -> how many went from where to where: counted once for all
local function count_quickly()
  for queue, moved in pairs(quickly) do
    count(PENDING, queue, -moved.claimed)
    count(RUNNING, queue, moved.claimed - moved.ended)
    count(SUCCESS, queue, moved.ended)
    tally(SUCCEEDED, queue, moved.ended)
  end
  quickly = {}
end

local function moved_in(queue)
  quickly[queue] = quickly[queue] or { claimed = 0, ended = 0 }
  return quickly[queue]
end

-- T2 for the tasks of one queue that are due at once, have no key, and were never claimed. Answers a function: the
-- record after the claim, or nil for any other task.
local function first_claims(queue, worker, claim_id, isolates)
  local waits, runs = text(queue) .. string.rep('\0', 16), text(queue) .. text(worker) .. text(claim_id) .. string.rep('\0', 12)
  local moved = moved_in(queue)
  return function(raw)
    if string.sub(raw, TEXTS) ~= waits then return nil end
    local status, cancel, _, has_eta = string.byte(raw, 1, 4)
    if status ~= PENDING or cancel ~= 0 or has_eta ~= 0 or string.sub(raw, 43, 50) ~= NEVER then return nil end
    moved.claimed = moved.claimed + 1
    return struct.pack('>BBBc3I4c48I8c32', RUNNING, 0, isolates, string.sub(raw, 4, 6), struct.unpack('>I4', raw, 7) + 1,
      string.sub(raw, 11, 58), now, string.sub(raw, 67, 98)) .. runs
  end
end

-- T4 for runs whose texts were met before in this call: those of one claim are alike.
local met = {}
local function meet(t, raw)
  if t.key == '' and t.progress == '' and t.error == '' and t.result == '' then
    met[string.sub(raw, TEXTS)] = { queue = t.queue, own = 'own:' .. t.owner, texts = text(t.queue) .. string.rep('\0', 12) }
  end
end

local function quick_success(id, raw, epoch, result, success_ttl)
  local known = met[string.sub(raw, TEXTS)]
  if not known or string.byte(raw) ~= RUNNING or struct.unpack('>I4', raw, 7) ~= epoch then return false end
  local started, ttl = struct.unpack('>I8', raw, 59), struct.unpack('>d', raw, 91)
  local prune_at = now + (ttl >= 0 and ttl * 1000000 or success_ttl)
  put('ZREM', 'running', id)
  put('SREM', known.own, id)
  put('LPUSH', 'timings', struct.pack('>dd', started - moment(string.sub(raw, 35, 42)), now - started) .. known.queue)
  put_pair('ZADD', 'ended', score(prune_at), id)
  put_pair('HSET', 'state', id, struct.pack('>BBBc2Bc60I8I8I8c8', SUCCESS, 0, 0, string.sub(raw, 4, 5), SUCCESS,
    string.sub(raw, 7, 66), now, now, prune_at, string.sub(raw, 91, 98)) .. known.texts .. struct.pack('>I4', #result) .. result)
  moved_in(known.queue).ended = moved_in(known.queue).ended + 1
  rang_result, timed = true, true
  return true
end
