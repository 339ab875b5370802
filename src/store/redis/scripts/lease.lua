-- Takes a lease, unless another owner has it.
--
-- KEYS   the lease
-- ARGV   the owner, for how many milliseconds at most
--
-- Owners whose name begins with "j" get their answers as a whole. An owner that streams (any other name) does not wait
-- for them, and takes the lease over. An owner that has it already has it for the whole time again. Returns "taken",
-- "held", or "written" if an owner has written the entry.
local held = redis.call('GET', KEYS[1])
local is_whole = held and held:sub(1, 1) == 'j'
if not held or held == ARGV[1] or (is_whole and ARGV[1]:sub(1, 1) ~= 'j') then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return 'taken'
end
if held == 'written' then return 'written' end
return 'held'
