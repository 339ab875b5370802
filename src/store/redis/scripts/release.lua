-- Gives a lease back, if this owner has it.
--
-- KEYS   the lease
-- ARGV   the owner, for how many milliseconds others are told that the entry was written (0: it was not)
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if tonumber(ARGV[2]) > 0 then
  redis.call('SET', KEYS[1], 'written', 'PX', ARGV[2])
else
  redis.call('DEL', KEYS[1])
end
return 1
