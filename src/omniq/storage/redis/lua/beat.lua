#!lua flags=allow-oom
-- A worker lives, or (without a text) has ended. ARGV: id, JSON or ''
if ARGV[2] == '' then
  redis.call('HDEL', ns .. 'workers', ARGV[1])
  redis.call('ZREM', ns .. 'seen', ARGV[1])
else
  redis.call('HSET', ns .. 'workers', ARGV[1], ARGV[2])
  redis.call('ZADD', ns .. 'seen', score(now), ARGV[1])
end
return 1
