#!lua flags=no-writes,allow-oom
-- One task as it is now. ARGV: id. Answers {state, body}; false where there is none.
return { redis.call('HGET', ns .. 'state', ARGV[1]), redis.call('HGET', ns .. 'body', ARGV[1]) }
