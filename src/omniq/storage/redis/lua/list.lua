#!lua flags=no-writes,allow-oom
-- Newest first, a stretch at a time: ARGV: below which order number ('+inf': from the start), how many to look at, how
-- many to give, then what must match: status or -1, queue or '', unique key or '', ended before (a moment) or ''
-- Answers {where to go on or -1, its id, id, state, body, ...}.
local status, queue, key, before = tonumber(ARGV[4]), ARGV[5], ARGV[6], tonumber(ARGV[7])
local from = ARGV[1] == '+inf' and '+inf' or '(' .. ARGV[1]
local page = redis.call('ZREVRANGEBYSCORE', ns .. 'order', from, '-inf', 'WITHSCORES', 'LIMIT', 0, tonumber(ARGV[2]))
local ids, raws = {}, nil
for i = 1, #page, 2 do ids[#ids + 1] = page[i] end
raws = many('HMGET', ns .. 'state', ids)
local whole = #ids < tonumber(ARGV[2])
local answer, left = { whole and -1 or page[#page], whole and '' or ids[#ids] }, tonumber(ARGV[3])
for i, id in ipairs(ids) do
  local t = decode(id, raws[i])
  local fits = not t and status < 0 and queue == '' and key == '' and not before
  if t then
    fits = (status < 0 or t.status == status) and (queue == '' or t.queue == queue) and (key == '' or t.key == key)
      and (not before or t.finished > 0 and t.finished < before)
  end
  if fits then
    if left == 0 then
      answer[1], answer[2] = page[2 * i - 2], ids[i - 1]
      break
    end
    left = left - 1
    answer[#answer + 1] = id
    answer[#answer + 1] = raws[i] or ''
    answer[#answer + 1] = redis.call('HGET', ns .. 'body', id) or ''
  end
end
return answer
