#!lua flags=no-writes,allow-oom
-- Answers JSON and the moment of the last beat of each, newest first.
local ids, found = redis.call('ZREVRANGE', ns .. 'seen', 0, -1, 'WITHSCORES'), {}
for i = 1, #ids, 2 do
  local info = redis.call('HGET', ns .. 'workers', ids[i])
  if info then
    found[#found + 1] = info
    found[#found + 1] = ids[i + 1]
  end
end
return found
