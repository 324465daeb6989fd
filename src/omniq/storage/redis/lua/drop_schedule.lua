#!lua flags=allow-oom
-- ARGV: name. Answers whether there was one.
redis.call('ZREM', ns .. 'ticks', ARGV[1])
return redis.call('HDEL', ns .. 'schedules', ARGV[1])
