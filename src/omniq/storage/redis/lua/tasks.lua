-- What every script begins with: the keys, a task's record, and how a batch becomes a handful of commands.
-- KEYS[1] is the namespace as a hash tag and a colon, "{omniq}:". Every key begins with it, so that all of them are in
-- one slot of a Cluster and a script may reach each of them.
--
--   state    hash id -> the record below           body     hash id -> digest, the call, all else
--   stretch:N  list of ids in order of enqueueing, those whose order numbers begin with N (STRETCH in each)
--   order    zset of those stretches
--   ready:Q  zset of places, all with score 0: bytes are in the order of claims
--   later:Q  zset of places by the moment they are due, for what is not due yet
--   expiring zset of waiting ids by expires_at     running  zset of running ids by the end of their lease
--   own:W    set of what worker W holds            claim:W:C   claim C of W handed something out; goes by itself
--   ended    zset of final ids by prune_at         runs:ID  list of closed runs, newest first
--   unique   hash unique key -> id                 gone:ID  digest of a deleted task, until when; goes by itself
--   queues   set of those with something waiting   paused   set of queues
--   limits   hash queue -> how many may wait
--   parcel   list: what was taken out and not dropped yet
--   receipt:ID  a parcel that came in, until when that is known; goes by itself
--   tally:M  hash column:queue -> what changed in minute M (0: what is older), which is also how many there are; what
--            is enqueued waits, and is counted once for both     minutes  zset of those
--   timings  list of the latest that succeeded, newest last
--   broken   hash id -> what stood in an index but could not be read
--   workers  hash id -> JSON                       seen     zset of their ids by their last beat
--   schedules  hash name -> revision, record       ticks    zset of their names by the next tick
--
-- A moment is microseconds since 1970. Doubles hold them exactly until 2255; what people choose themselves (eta,
-- expires_at) may lie beyond, so it is kept as eight bytes whose order is that of time and only compared as a double.
local ns = KEYS[1]
local PENDING, RUNNING, SUCCESS, FAILED, CANCELLED, NONE = 0, 1, 2, 3, 4, 255
local CHUNK, STRETCH = 1000, 128
local NEVER = string.rep('\0', 8)
local LAST = 253402300799999968 -- the last moment that Python can name, as a double
-- status, cancel requested, isolates, eta was given, 9 - priority, status of the result; epoch, attempts, losses,
-- suspicions, max_losses; seq; due, expires_at; enqueued, started, finished, result and prune moments; result_ttl;
-- then the texts: queue, owner, claim_id, unique_key, progress, error, result
local FORMAT = '>BBBBBBI4I4I4I4I4I8c8c8I8I8I8I8I8dI2c0I2c0I2c0I2c0I2c0I4c0I4c0'
local SHORTEST = 6 + 5 * 4 + 8 + 16 + 5 * 8 + 8 + 5 * 2 + 2 * 4
-- Most tasks never have more to tell than this, and their record is short: Valkey keeps a field and a value of up to 84
-- bytes as one piece of memory, and writes the next value over it. PLAIN + status, isolates, 9 - priority, max_losses;
-- epoch; seq, enqueued, started; result_ttl in milliseconds; queue. Then, for one that waits, nothing up to ROOM bytes, so
-- that there is room for its run; for one that runs its owner and claim_id; for a success finished, prune_at and result.
local PLAIN, PLAIN_FORMAT, ROOM, NO_TTL = 128, '>BBBBI4I6I7I7I4Bc0', 84, 4294967295

local function raw_moment(at)
  at = math.min(at, LAST)
  local high = math.floor(at / 4294967296)
  return struct.pack('>I4I4', high + 2147483648, at - high * 4294967296)
end

local function moment(raw)
  local high, low = struct.unpack('>I4I4', raw)
  return (high - 2147483648) * 4294967296 + low
end

-- Named fields at once: a table that grows field by field is made anew six times.
local function read(id, status, cancel, isolates, has_eta, rank, result_status, epoch, attempts, losses, suspicions,
    max_losses, seq, due, expires, enqueued, started, finished, result_at, prune_at, result_ttl, queue, owner, claim_id,
    key, progress, error, result)
  return { id = id, status = status, cancel = cancel, isolates = isolates, has_eta = has_eta, rank = rank,
    result_status = result_status, epoch = epoch, attempts = attempts, losses = losses, suspicions = suspicions,
    max_losses = max_losses, seq = seq, due = due, expires = expires, enqueued = enqueued, started = started,
    finished = finished, result_at = result_at, prune_at = prune_at, result_ttl = result_ttl, queue = queue,
    owner = owner, claim_id = claim_id, key = key, progress = progress, error = error, result = result,
    as_found = status }
end

local function unpacked(id, raw) return #raw >= SHORTEST and read(id, struct.unpack(FORMAT, raw)) end

local function unpacked_plain(id, raw)
  local status, isolates, rank, max_losses, epoch, seq, enqueued, started, ttl, queue, at = struct.unpack(PLAIN_FORMAT, raw)
  local owner, claim_id, finished, prune_at, result, result_status = '', '', 0, 0, '', NONE
  status = status - PLAIN
  if status == RUNNING then owner, claim_id, at = struct.unpack('>Bc0Bc0', raw, at) end
  if status == SUCCESS then finished, prune_at, result, at = struct.unpack('>I7I7I2c0', raw, at) end
  if status == SUCCESS then result_status = SUCCESS end
  return (status == PENDING or at == #raw + 1) and read(id, status, 0, isolates, 0, rank, result_status, epoch, 0, 0, 0,
    max_losses, seq, raw_moment(enqueued), NEVER, enqueued, started, finished, finished, prune_at,
    ttl == NO_TTL and -1 or ttl / 1000, queue, owner, claim_id, '', '', '', result)
end

local function decode(id, raw)
  if not raw or raw == '' then return nil end
  local fits, t = pcall(string.byte(raw) < PLAIN and unpacked or unpacked_plain, id, raw)
  return fits and t and t.status <= CANCELLED and t or nil
end

local function is_plain(t)
  local ms = t.result_ttl * 1000
  return t.status <= SUCCESS and t.has_eta == 0 and t.cancel == 0 and t.attempts + t.losses + t.suspicions == 0
    and t.key == '' and t.error == '' and t.progress == '' and t.expires == NEVER and t.max_losses < 256
    and t.result_status == (t.status == SUCCESS and SUCCESS or NONE) and t.result_at == t.finished and #t.result < 65536
    and #t.owner < 256 and #t.claim_id < 256 and t.due == raw_moment(t.enqueued)
    and (ms < 0 or ms == math.floor(ms) and ms < NO_TTL and ms / 1000 == t.result_ttl)
end

local function encode_plain(t)
  local head = struct.pack(PLAIN_FORMAT, PLAIN + t.status, t.isolates, t.rank, t.max_losses, t.epoch, t.seq, t.enqueued,
    t.started, t.result_ttl < 0 and NO_TTL or t.result_ttl * 1000, #t.queue, t.queue)
  if t.status == RUNNING then return head .. struct.pack('>Bc0Bc0', #t.owner, t.owner, #t.claim_id, t.claim_id) end
  if t.status == SUCCESS then return head .. struct.pack('>I7I7I2c0', t.finished, t.prune_at, #t.result, t.result) end
  return head .. string.rep('\0', ROOM - #head)
end

local function encode(t)
  if is_plain(t) then return encode_plain(t) end
  return struct.pack(FORMAT, t.status, t.cancel, t.isolates, t.has_eta, t.rank, t.result_status, t.epoch, t.attempts,
    t.losses, t.suspicions, t.max_losses, t.seq, t.due, t.expires, t.enqueued, t.started, t.finished, t.result_at,
    t.prune_at, t.result_ttl, #t.queue, t.queue, #t.owner, t.owner, #t.claim_id, t.claim_id, #t.key, t.key,
    #t.progress, t.progress, #t.error, t.error, #t.result, t.result)
end

-- `unpack` fails above about 8,000 values.
local function many(command, key, fields)
  local found = {}
  for first = 1, #fields, CHUNK do
    local last = math.min(first + CHUNK - 1, #fields)
    local part = key and redis.call(command, key, unpack(fields, first, last))
      or redis.call(command, unpack(fields, first, last))
    for i = 1, last - first + 1 do found[first + i - 1] = part[i] end
  end
  return found
end

local function load(ids)
  local tasks, raw = {}, many('HMGET', ns .. 'state', ids)
  for i, id in ipairs(ids) do tasks[id] = tasks[id] or decode(id, raw[i]) end
  return tasks
end

local function stretch_of(t) return string.format('%.0f', math.floor(t.seq / STRETCH)) end

local function pairs_of(flat)
  local found = {}
  for i = 1, #flat, 2 do found[flat[i]] = flat[i + 1] end
  return found
end

local function load_one(id)
  return decode(id, redis.call('HGET', ns .. 'state', id))
end

-- What a script wants to write, gathered per command and key: a batch is a handful of commands, whatever its size.
local writes, order = {}, {}
local function into(command, key, width)
  local by_key = writes[command]
  if not by_key then
    by_key = {}
    writes[command] = by_key
  end
  local w = by_key[key]
  if not w then
    w = { command = command, key = ns .. key, step = CHUNK * width, n = 0 }
    by_key[key] = w
    order[#order + 1] = w
  end
  return w
end

local function put(command, key, value)
  local w = into(command, key, 1)
  local n = w.n + 1
  w[n], w.n = value, n
end

local function put_pair(command, key, first, second)
  local w = into(command, key, 2)
  local n = w.n
  w[n + 1], w[n + 2], w.n = first, second, n + 2
end

-- How many more there are in each status, and what happened, by minute. The first columns are the statuses.
local ENQUEUED, SUCCEEDED, GIVEN_UP, STOPPED, RETRIED, LOST = 5, 6, 7, 8, 9, 10
local ARRIVED = { [SUCCESS] = SUCCEEDED, [FAILED] = GIVEN_UP, [CANCELLED] = STOPPED }
local MINUTE_US = 60000000
local tallied = {}
local function tally(column, queue, by)
  local field = column .. ':' .. queue
  tallied[field] = (tallied[field] or 0) + by
end

local function add_up(key, changes)
  for field, by in pairs(changes) do
    if by ~= 0 and redis.call('HINCRBY', ns .. key, field, by) == 0 then redis.call('HDEL', ns .. key, field) end
  end
end

local function flush()
  for _, w in ipairs(order) do
    for first = 1, w.n, w.step do
      redis.call(w.command, w.key, unpack(w, first, math.min(first + w.step - 1, w.n)))
    end
  end
  writes, order = {}, {}
end

-- Once, at the end of a script.
local function flush_counts()
  if next(tallied) then
    local minute = string.format('%.0f', math.floor(now / MINUTE_US))
    redis.call('ZADD', ns .. 'minutes', minute, minute)
    add_up('tally:' .. minute, tallied)
  end
end

-- What is done together mostly ends at one moment.
local scored, scored_as
local function score(at)
  if at ~= scored then scored, scored_as = at, string.format('%.0f', at) end
  return scored_as
end
