#!lua
-- A schedule as it is now, and the tasks of its ticks, if nobody changed it since it was read. ARGV: token, name, the
-- revision it had (0: there was none), its new one, its next tick or '', its record, the tasks
-- Answers {0} where somebody did; else {1, id of a task that was made, ...}. A tick whose id is known makes no task.
local name, before = ARGV[2], tonumber(ARGV[3])
local known = redis.call('HGET', ns .. 'schedules', name)
if (known and struct.unpack('>I8', known) or 0) ~= before then return { 0 } end
local made, answers = { 1 }, #ARGV > 6 and arrive(7, 'skip', true) or { 0 }
for n = 7, #ARGV, 3 do
  local created = answers[1] == 0 or answers[2 * (n - 7) / 3 + 3] == 1
  if created then made[#made + 1] = ARGV[n] end
end
redis.call('HSET', ns .. 'schedules', name, struct.pack('>I8', tonumber(ARGV[4])) .. ARGV[6])
if ARGV[5] == '' then redis.call('ZREM', ns .. 'ticks', name) else redis.call('ZADD', ns .. 'ticks', ARGV[5], name) end
rang_due = #made > 1
ring(ARGV[1])
return made
