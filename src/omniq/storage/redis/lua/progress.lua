#!lua
-- How far a run is. ARGV: id, epoch, JSON. Answers 0 where the epoch is no longer current.
local t = load_one(ARGV[1])
if not t or t.status ~= RUNNING or t.epoch ~= tonumber(ARGV[2]) then return 0 end
t.progress = ARGV[3]
save(t)
flush()
return 1
