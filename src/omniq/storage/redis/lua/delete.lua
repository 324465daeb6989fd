#!lua flags=allow-oom
-- T16 for one. ARGV: token, id. Answers its status before; only what has ended goes.
local t = load_one(ARGV[2])
if not t then return redis.call('HEXISTS', ns .. 'state', ARGV[2]) == 1 and -2 or -1 end
if t.status >= SUCCESS then
  forget({ t })
  ring(ARGV[1])
end
return t.status
