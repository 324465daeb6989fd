#!lua flags=allow-oom
-- Which of these ids are there and have no result yet. ARGV: how long somebody listens (ms), ids
redis.call('SET', ns .. 'ear', 1, 'PX', tonumber(ARGV[1]))
local ids, waiting = {}, {}
for i = 2, #ARGV do ids[i - 1] = ARGV[i] end
local tasks = load(ids)
for _, id in ipairs(ids) do
  local t = tasks[id]
  if t and t.result_status == NONE then waiting[#waiting + 1] = id end
end
return waiting
