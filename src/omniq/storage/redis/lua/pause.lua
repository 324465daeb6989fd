#!lua flags=allow-oom
-- ARGV: token, queue, 1 to pause and 0 to go on
if ARGV[3] == '1' then
  redis.call('SADD', ns .. 'paused', ARGV[2])
else
  redis.call('SREM', ns .. 'paused', ARGV[2])
  rang_due = true
  ring(ARGV[1])
end
return 1
