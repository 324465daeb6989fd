#!lua flags=allow-oom
-- T3: what a worker holds, and, where a lease is given, so much more time for all of it. ARGV: worker, lease or ''
local lease, held = tonumber(ARGV[2]), {}
local ids = redis.call('SMEMBERS', ns .. 'own:' .. ARGV[1])
local tasks = load(ids)
for _, id in ipairs(ids) do
  local t = tasks[id]
  if t and t.status == RUNNING and t.owner == ARGV[1] then
    if lease then put_pair('ZADD', 'running', score(now + lease), id) end
    held[#held + 1] = { id, t.epoch, t.cancel, t.seq }
  end
end
flush()
return held
