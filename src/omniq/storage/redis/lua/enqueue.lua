#!lua
-- T1. ARGV: token, on_conflict, the tasks. Answers as `arrive` does.
local answers = arrive(3, ARGV[2], false)
ring(ARGV[1])
return answers
