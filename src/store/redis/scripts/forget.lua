-- Forgets the records of one tenant, and keeps in mind that it did: whoever asks for what is new since an earlier version
-- learns of it, and nobody writes what depends on one. Its chunks belong to generations that are over.
--
-- KEYS   the records by version, their expiry, the versions
-- ARGV   the beginning of the records' keys (of the same slot), for how many milliseconds it is kept in mind
--
-- Returns how many records there were. A server that has no room forgets too, so nothing is written: a newest version
-- without a first one says it.
local count = 0
for _, member in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  count = count + redis.call('DEL', ARGV[1] .. member)
end
redis.call('DEL', KEYS[1], KEYS[2])
redis.call('HDEL', KEYS[3], 'first', 'generation', 'before', 'bytes')
redis.call('PEXPIRE', KEYS[3], ARGV[2])
return count
