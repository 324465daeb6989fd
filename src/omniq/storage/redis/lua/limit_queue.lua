#!lua flags=allow-oom
-- ARGV: queue, how many may wait in it or ''
if ARGV[2] == '' then return redis.call('HDEL', ns .. 'limits', ARGV[1]) end
return redis.call('HSET', ns .. 'limits', ARGV[1], ARGV[2])
