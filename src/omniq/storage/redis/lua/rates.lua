#!lua flags=no-writes,allow-oom
-- What happened since a moment, a stretch at a time. ARGV: below which order number, how many to look at, the moment
-- Answers {where to go on or -1, enqueued, succeeded, failed, cancelled, now}.
local since, from = tonumber(ARGV[3]), ARGV[1] == '+inf' and '+inf' or '(' .. ARGV[1]
local page = redis.call('ZREVRANGEBYSCORE', ns .. 'order', from, '-inf', 'WITHSCORES', 'LIMIT', 0, tonumber(ARGV[2]))
local ids, seen = {}, { 0, 0, 0, 0, 0 }
for i = 1, #page, 2 do ids[#ids + 1] = page[i] end
for _, t in pairs(load(ids)) do
  if t.enqueued > since then seen[1] = seen[1] + 1 end
  if t.status >= SUCCESS and t.finished > since then seen[t.status] = seen[t.status] + 1 end
end
return { #ids < tonumber(ARGV[2]) and -1 or page[#page], seen[1], seen[2], seen[3], seen[4], score(now) }
