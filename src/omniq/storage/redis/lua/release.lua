#!lua flags=allow-oom
-- Everything of a worker that is known to be dead (T8, T9, T12). ARGV: token, failure_ttl, worker
local ids, lost = redis.call('SMEMBERS', ns .. 'own:' .. ARGV[3]), 0
local tasks = load(ids)
for _, id in ipairs(ids) do
  local t = tasks[id]
  if t and t.status == RUNNING and t.owner == ARGV[3] then
    lapse_one(t, tonumber(ARGV[2]))
    lost = lost + 1
  else
    put('SREM', 'own:' .. ARGV[3], id)
  end
end
ring(ARGV[1])
return lost
