#!lua flags=no-writes,allow-oom
-- Answers {minute, {column:queue, how much, ...}, minute, ...}.
local answer = {}
for _, minute in ipairs(redis.call('ZRANGE', ns .. 'minutes', 0, -1)) do
  answer[#answer + 1] = minute
  answer[#answer + 1] = redis.call('HGETALL', ns .. 'tally:' .. minute)
end
return answer
