-- The two moves that nearly every task makes, its first claim and its success, without a table of its record: to make
-- one and to write it back is most of what they cost. A record is cut where the move changes it, and only if its texts
-- are those of a task that nothing else ever happened to; for all others there are the moves of `moves.lua`.
--   1 status  2 isolates  3 rank  4 max_losses  5 epoch  9 seq  15 enqueued, due  22 started  29 result_ttl  33 the texts
local TEXTS, SUCCEEDED_PLAIN = 33, string.char(PLAIN + SUCCESS, 0)
local function text(value) return struct.pack('>Bc0', #value, value) end

local quickly = {} -- queue -> how many went from where to where: counted once for all
local function count_quickly()
  for queue, moved in pairs(quickly) do
    tally(PENDING, queue, -moved.claimed)
    tally(RUNNING, queue, moved.claimed - moved.ended)
    tally(SUCCESS, queue, moved.ended)
    tally(SUCCEEDED, queue, moved.ended)
  end
  quickly = {}
end

local function moved_in(queue)
  quickly[queue] = quickly[queue] or { claimed = 0, ended = 0 }
  return quickly[queue]
end

-- T2 for the tasks of one queue that are due at once and have nothing to tell. Answers a function: the record after the
-- claim, or nil for any other task.
local function first_claims(queue, worker, claim_id, isolates)
  if #worker > 255 or #claim_id > 255 then return function() end end
  local waits, runs = text(queue), text(queue) .. text(worker) .. text(claim_id)
  waits = waits .. string.rep('\0', ROOM - TEXTS + 1 - #waits)
  -- In one piece, and of numbers: each text on the way would be another piece of memory.
  local moved, format = moved_in(queue), '>BBc2I4I6I7I7c4c' .. #runs
  return function(raw)
    if string.byte(raw) ~= PLAIN + PENDING or string.sub(raw, TEXTS) ~= waits then return nil end
    moved.claimed = moved.claimed + 1
    local epoch, seq, enqueued = struct.unpack('>I4I6I7', raw, 5)
    return struct.pack(format, PLAIN + RUNNING, isolates, string.sub(raw, 3, 4), epoch + 1, seq, enqueued, now,
      string.sub(raw, 29, 32), runs)
  end
end

-- T4 for runs whose texts were met before in this call: those of one claim are alike.
local met = {}
local function meet(t, raw)
  if string.byte(raw) == PLAIN + RUNNING then
    met[string.sub(raw, TEXTS)] = { queue = t.queue, own = 'own:' .. t.owner, text = text(t.queue),
      timing = '>ddc' .. #t.queue }
  end
end

local function quick_success(id, raw, epoch, result, success_ttl)
  local known = met[string.sub(raw, TEXTS)]
  if not known or string.byte(raw) ~= PLAIN + RUNNING or #result > 65535 then return false end
  if struct.unpack('>I4', raw, 5) ~= epoch then return false end
  local due, started, ttl = struct.unpack('>I7I7I4', raw, 15)
  local prune_at = now + (ttl == NO_TTL and success_ttl or ttl / 1000 * 1000000)
  put('ZREM', 'running', id)
  put('SREM', known.own, id)
  put('RPUSH', 'timings', struct.pack(known.timing, started - due, now - started, known.queue))
  put_pair('ZADD', 'ended', score(prune_at), id)
  put_pair('HSET', 'state', id, SUCCEEDED_PLAIN .. string.sub(raw, 3, 32) .. known.text
    .. struct.pack('>I7I7I2c0', now, prune_at, #result, result))
  moved_in(known.queue).ended = moved_in(known.queue).ended + 1
  rang_result, timed = true, true
  return true
end
