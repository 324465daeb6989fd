#!lua flags=no-writes,allow-oom
-- Whether `lapse` would find anything.
for _, index in ipairs({ 'running', 'expiring' }) do
  local first = redis.call('ZRANGE', ns .. index, 0, 0, 'WITHSCORES')
  if first[1] and tonumber(first[2]) <= now then return 1 end
end
return 0
