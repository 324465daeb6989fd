#!lua flags=allow-oom
-- ARGV: id
if redis.call('LINDEX', ns .. 'parcel', 0) == ARGV[1] then return redis.call('DEL', ns .. 'parcel') end
return 0
