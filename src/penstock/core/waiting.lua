-- Faces that wait for the next event of one thing, such as a message in a log. Every event wakes all of them.
--
--   waiting   ZSET    address (notify.lua) -> number of the last event when it registered; "" -> number of the last
--                     event; PX
--
-- An event wakes the faces that registered before it, a slice at a time. The script that reports an event wakes the
-- first slice and returns how many faces are left; its caller repeats `waiting.wake` until none is left. Each face that
-- was woken calls a script of this component next, and that wakes another slice. The last face in the list looks again
-- after a second, so the rest is woken even if the caller and the faces of the first slices die.

_slice = { FACES = 64, ADDRESSES = 500 } -- woken by one call; looked at by one call, most of which are then gone
_sweep = { FROM = 16, ADDRESSES = 2 } -- the list is swept from this length on; addresses that each new one checks

-- Registers an address for `ms`. A face that is registered already keeps its place: another of its listeners waits for
-- an earlier event.
--- (address: str, ms: int)
--- uses: base
function waiting.add(address, ms)
  local list = base .. "waiting"
  local last = redis.call("ZSCORE", list, "") or 0
  if redis.call("ZADD", list, "NX", last, address) == 1 and redis.call("ZCARD", list) > _sweep.FROM then
    -- Without this, the addresses of processes that died would accumulate where no event happens.
    for _, other in ipairs(redis.call("ZRANDMEMBER", list, _sweep.ADDRESSES)) do
      if other ~= "" and not notify.reaches(other) then redis.call("ZREM", list, other) end
    end
  end
  if redis.call("PTTL", list) < ms then redis.call("PEXPIRE", list, ms) end
end

--- (address: str)
--- uses: base
function waiting.remove(address)
  redis.call("ZREM", base .. "waiting", address)
end

-- Reports an event. Returns how many faces are left to be woken.
--- () -> int
--- uses: base
function waiting.report()
  if redis.call("EXISTS", base .. "waiting") == 0 then return 0 end
  redis.call("ZINCRBY", base .. "waiting", 1, "")
  return waiting.wake()
end

-- Wakes the next slice of the faces that registered before the last event. Returns how many are left.
--- () -> int
--- uses: base
function waiting.wake()
  local list = base .. "waiting"
  local last = redis.call("ZSCORE", list, "")
  if not last then return 0 end
  local woken, seen, before = 0, 0, "(" .. last
  while woken < _slice.FACES and seen < _slice.ADDRESSES do
    local found = redis.call("ZRANGE", list, "-inf", before, "BYSCORE", "LIMIT", 0, _slice.FACES - woken)
    if #found == 0 then break end
    for i = 1, #found do
      if notify.send(found[i], "0") then woken = woken + 1 end
    end
    redis.call("ZREM", list, unpack(found))
    seen = seen + #found
  end
  local left = redis.call("ZCOUNT", list, "-inf", before)
  if left > 0 then
    local witness = redis.call("ZRANGE", list, before, "-inf", "BYSCORE", "REV", "LIMIT", 0, 1)
    notify.send(witness[1], "1000")
  elseif redis.call("ZCARD", list) == 1 then
    redis.call("DEL", list)
  end
  return left
end
