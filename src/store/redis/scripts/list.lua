-- Enters chunks of one tenant into the list by which they are found when it is forgotten, in the generation that takes new
-- ones.
--
-- KEYS   the list, the versions
-- ARGV   the version that the chunks' records depend on (0: none), the longest TTL in ms, the most bytes of a generation,
--        then for each chunk: name, TTL in ms, bytes
--
-- Returns the generation, and 1 if chunks of generations that are over are to be taken away; or 'forgotten' if the tenant
-- was forgotten after the version. A generation that has no room for the chunks becomes the one before, whose chunks stay,
-- and the one before that is over.
local list, versions = KEYS[1], KEYS[2]
local known, longest, most = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function number(n) return string.format('%.0f', n) end
local first, newest, forgotten, generation, kept, unswept =
  unpack(redis.call('HMGET', versions, 'first', 'newest', 'forgotten', 'generation', 'bytes', 'unswept'))
local is_void = newest and (not first or (forgotten and known < tonumber(forgotten)))
if known > 0 and is_void then return 'forgotten' end

redis.call('ZREMRANGEBYSCORE', list, '-inf', number(now))
local all, new = 0, 0
for n = 4, #ARGV, 3 do
  local bytes = tonumber(ARGV[n + 2])
  all = all + bytes
  if generation and not redis.call('ZSCORE', list, generation .. ':' .. ARGV[n]) then new = new + bytes end
end
kept = tonumber(kept or '0')
if not generation or (kept > 0 and kept + new > most) then
  redis.call('HSET', versions, 'before', generation or '')
  if generation then
    unswept = '1'
    redis.call('HSET', versions, 'unswept', unswept)
  end
  -- No generation has the name of another, also not of one that was forgotten.
  generation = number(math.max(time[1] * 1000000 + time[2], tonumber(generation or '0') + 1))
  kept, new = 0, all
end
redis.call('HSET', versions, 'generation', generation, 'bytes', number(kept + new))
for n = 4, #ARGV, 3 do
  redis.call('ZADD', list, 'GT', number(now + tonumber(ARGV[n + 1])), generation .. ':' .. ARGV[n])
end
for _, key in ipairs({list, versions}) do
  if redis.call('PTTL', key) < longest then redis.call('PEXPIRE', key, longest) end
end
return {generation, unswept and 1 or 0}
