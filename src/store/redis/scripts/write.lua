-- Writes records of one tenant, all or none, and gives each the next version.
--
-- KEYS   the records by version, their expiry, the versions, then the key of each record
-- ARGV   the version that the records depend on (0: none), for how many milliseconds deletions are told, the beginning of
--        the records' keys (of the same slot), the most records, the generation of the records' chunks (0: none); then for
--        each record: member, TTL in ms (0: deleted), form
--
-- Returns the version of the last record; 'forgotten' if the tenant was forgotten after the version that they depend on;
-- or 'over' if the generation is over, so that its chunks are gone or go.
--
-- Each change takes the next version. The first one of a tenant follows the microseconds since 1970: so whoever asks for
-- what is new since an earlier version has seen what this server has lost. A server that has started anew, or has taken
-- the place of another, may have lost what was written last: then the first version is drawn again.
local records, expiry, versions = KEYS[1], KEYS[2], KEYS[3]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local known, longest = tonumber(ARGV[1]), tonumber(ARGV[2])
local function number(n) return string.format('%.0f', n) end
local first, newest, forgotten, before, generation, generation_before =
  unpack(redis.call('HMGET', versions, 'first', 'newest', 'forgotten', 'server', 'generation', 'before'))
local is_void = newest and (not first or (forgotten and known < tonumber(forgotten)))
if known > 0 and is_void then return 'forgotten' end
if ARGV[5] ~= '0' and ARGV[5] ~= generation and ARGV[5] ~= generation_before then return 'over' end
-- Where this may not be asked, it is not known.
local info = redis.pcall('INFO', 'replication')
local server = type(info) == 'string' and info:match('master_replid:(%x+)')
local version = newest and tonumber(newest)
if not version or not first or (before and server and before ~= server) then
  version = math.max(time[1] * 1000000 + time[2], (version or 0) + 1)
  redis.call('HSET', versions, 'first', number(version))
  if newest and not first then redis.call('HSET', versions, 'forgotten', number(version)) end
end
if server then redis.call('HSET', versions, 'server', server) end

for n = 4, #KEYS do
  local at = 3 * (n - 4) + 6
  local member, ttl = ARGV[at], tonumber(ARGV[at + 1])
  local ends
  if ttl > 0 then
    redis.call('SET', KEYS[n], ARGV[at + 2], 'PX', ttl)
    ends = now + ttl
    longest = math.max(longest, ttl)
  elseif redis.call('DEL', KEYS[n]) == 1 then
    ends = now + tonumber(ARGV[2])
  end
  if ends then
    version = version + 1
    redis.call('ZADD', records, number(version), member)
    redis.call('ZADD', expiry, number(ends), member)
  end
end
redis.call('HSET', versions, 'newest', number(version))

-- What has ended long ago is forgotten, some at a time.
local ended = redis.call('ZRANGEBYSCORE', expiry, '-inf', number(now), 'LIMIT', 0, 100)
for _, member in ipairs(ended) do
  redis.call('ZREM', records, member)
  redis.call('ZREM', expiry, member)
end
-- Of more records than may be, those go that are missed least, the oldest first.
local over = redis.call('ZCARD', records) - tonumber(ARGV[4])
local oldest = over > 0 and redis.call('ZRANGE', records, 0, over + 1000) or {}
for _, kind in ipairs({'spelling', 'learned', 'worlds', 'fork_point', 'thread', 'child'}) do
  for _, member in ipairs(oldest) do
    if over > 0 and member:sub(1, #kind + 1) == kind .. ':' then
      redis.call('DEL', ARGV[3] .. member)
      redis.call('ZREM', records, member)
      redis.call('ZREM', expiry, member)
      over = over - 1
    end
  end
end
for _, key in ipairs({records, expiry, versions}) do
  if redis.call('PTTL', key) < longest then redis.call('PEXPIRE', key, longest) end
end
return number(version)
