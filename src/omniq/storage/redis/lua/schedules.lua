#!lua flags=no-writes,allow-oom
-- ARGV: 'all'; 'due' and how many; or 'known' and a name. Answers {now, the next tick of all or '', name, record, ...}.
local names = { ARGV[2] }
if ARGV[1] == 'all' then names = redis.call('HKEYS', ns .. 'schedules') end
if ARGV[1] == 'due' then
  names = redis.call('ZRANGEBYSCORE', ns .. 'ticks', '-inf', score(now), 'LIMIT', 0, tonumber(ARGV[2]))
end
local answer = { score(now), redis.call('ZRANGE', ns .. 'ticks', 0, 0, 'WITHSCORES')[2] or '' }
for i, kept in ipairs(many('HMGET', ns .. 'schedules', names)) do
  if kept then
    answer[#answer + 1] = names[i]
    answer[#answer + 1] = string.sub(kept, 9)
  end
end
return answer
