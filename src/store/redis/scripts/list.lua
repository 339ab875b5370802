-- Enters chunks of one tenant into the list by which they are found when it is forgotten.
--
-- KEYS   the list
-- ARGV   the longest TTL in ms, then for each chunk: name, TTL in ms
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function number(n) return string.format('%.0f', n) end
for n = 2, #ARGV, 2 do
  redis.call('ZADD', KEYS[1], 'GT', number(now + tonumber(ARGV[n + 1])), ARGV[n])
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', number(now))
local longest = tonumber(ARGV[1])
if redis.call('PTTL', KEYS[1]) < longest then redis.call('PEXPIRE', KEYS[1], longest) end
return 1
