-- The one clock: the server's, in microseconds. It stands still while a script runs.
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
