-- Forgets the records of one tenant.
--
-- KEYS   the records by version, their expiry, the newest version
-- ARGV   the beginning of the records' keys (of the same slot)
--
-- Returns how many there were.
local count = 0
for _, member in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  count = count + redis.call('DEL', ARGV[1] .. member)
end
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
return count
