#!lua flags=allow-oom
-- T10, T11. ARGV: token, failure_ttl, id. Answers its status afterwards; -1: there is no such task.
local t = load_one(ARGV[3])
if not t then return redis.call('HEXISTS', ns .. 'state', ARGV[3]) == 1 and -2 or -1 end
if t.status == PENDING then
  stop_waiting(t)
  finish(t, CANCELLED, '', fault('cancelled', 'Cancelled', 'cancelled before it ran'), tonumber(ARGV[2]))
elseif t.status == RUNNING then
  t.cancel, rang_due = 1, true
  save(t)
end
ring(ARGV[1])
return t.status
