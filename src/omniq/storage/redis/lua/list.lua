#!lua flags=no-writes,allow-oom
-- Newest first, a few stretches at a time: ARGV: below which order number ('+inf': from the start), how many to look at,
-- how many to give, then what must match: status or -1, queue or '', unique key or '', ended before (a moment) or ''
-- Answers {below which number to go on or -1, the last id so far, id, state, body, ...}.
local below, left = ARGV[1] == '+inf' and math.huge or tonumber(ARGV[1]), tonumber(ARGV[3])
local status, queue, key, before = tonumber(ARGV[4]), ARGV[5], ARGV[6], tonumber(ARGV[7])
local most = math.ceil(tonumber(ARGV[2]) / STRETCH)
local from = below == math.huge and '+inf' or math.floor((below - 1) / STRETCH)
local stretches = redis.call('ZREVRANGEBYSCORE', ns .. 'order', from, '-inf', 'LIMIT', 0, most)
local answer, last_seq = { -1, '' }, nil

local function fits(t)
  if not t then return status < 0 and queue == '' and key == '' and not before end
  return (status < 0 or t.status == status) and (queue == '' or t.queue == queue) and (key == '' or t.key == key)
    and (not before or t.finished > 0 and t.finished < before)
end

-- False: there is more, but enough was found.
local function look_at(stretch)
  local ids = redis.call('LRANGE', ns .. 'stretch:' .. stretch, 0, -1)
  local raws = many('HMGET', ns .. 'state', ids)
  for i = #ids, 1, -1 do
    local id, t = ids[i], decode(ids[i], raws[i])
    -- An enqueue that failed half way and was repeated stands in line twice: the later one counts.
    local is_its_place = not t or t.seq < below and stretch_of(t) == stretch
    if is_its_place and fits(t) then
      if left == 0 then return false end
      if t then left = left - 1 end -- or a page of what cannot be read would be the last one
      for _, part in ipairs({ id, raws[i] or '', redis.call('HGET', ns .. 'body', id) or '' }) do
        answer[#answer + 1] = part
      end
    end
    if t and is_its_place then last_seq, answer[2] = t.seq, id end
  end
  return true
end

for _, stretch in ipairs(stretches) do
  if not look_at(stretch) then
    answer[1] = string.format('%.0f', last_seq or stretch * STRETCH)
    return answer
  end
end
if #stretches < most then answer[2] = '' else answer[1] = string.format('%.0f', stretches[most] * STRETCH) end
return answer
