#!lua
-- T15. ARGV: token, id, eta, epoch or ''. Answers {status, epoch} as found; only a waiting task moves.
local t, epoch = load_one(ARGV[2]), tonumber(ARGV[4])
if not t then return { redis.call('HEXISTS', ns .. 'state', ARGV[2]) == 1 and -2 or -1, 0 } end
if t.status == PENDING and (not epoch or epoch == t.epoch) then
  stop_waiting(t)
  flush()
  wait_at(t, ARGV[3], 1)
  ring(ARGV[1])
end
return { t.status, t.epoch }
