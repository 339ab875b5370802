-- Reads the records of one tenant that were written after a version, some at a time.
--
-- KEYS   the records by version, the versions
-- ARGV   the version, the beginning of the records' keys (of the same slot), the most records, the most bytes of all
--        of them, the most bytes of one
--
-- Returns the newest version, the last one that was looked at, 1 if there are more, and for each record its member, its
-- form, its remaining TTL in ms (-2 if it is gone, -3 if it is nothing of ours) and its version; then 1 if the tenant was
-- forgotten after that version; then the generations whose chunks are kept. Whoever asks after a version that is none of
-- this server's has seen what it has lost, and gets version 0.
local after, prefix = ARGV[1], ARGV[2]
local first, newest, forgotten, generation, before =
  unpack(redis.call('HMGET', KEYS[2], 'first', 'newest', 'forgotten', 'generation', 'before'))
local kept = {generation or '', before or ''}
local known = tonumber(after)
local is_void = newest and (not first or (forgotten and known < tonumber(forgotten)))
if known > 0 and is_void then return {newest, newest, 0, {}, 1, kept} end
if not first or not newest then return {'0', '0', 0, {}, 0, kept} end
if known > 0 and (known < tonumber(first) or known > tonumber(newest)) then return {'0', '0', 0, {}, 0, kept} end
local records_max, bytes_max, form_max = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local found = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. after, '+inf', 'WITHSCORES', 'LIMIT', 0, records_max + 1)
local out, bytes, last, more = {}, 0, after, 0
for n = 1, #found, 2 do
  if n > 2 * records_max or bytes > bytes_max then
    more = 1
    break
  end
  local key = prefix .. found[n]
  local form = redis.pcall('GETRANGE', key, 0, form_max)
  local ttl = redis.call('PTTL', key)
  if type(form) ~= 'string' or #form > form_max or ttl == -1 then
    form, ttl = '', -3
  end
  bytes = bytes + #form
  last = found[n + 1]
  if ttl ~= -2 or after ~= '0' then out[#out + 1] = {found[n], form, ttl, last} end
end
return {newest, last, more, out, 0, kept}
