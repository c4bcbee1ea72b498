-- Faces that wait for the next event of one thing, such as a message in a log. Every event wakes all of them.
--
--   <list>   ZSET    address (notify.lua) -> number of the last event when it registered; "" -> number of the last
--                    event; PX
--
-- An event wakes the faces that registered before it, a slice at a time. The script that reports an event wakes the
-- first slice and returns how many faces are left; its caller repeats `waiting.wake` until none is left. Each face that
-- was woken calls a script of this component next, and that wakes another slice. The last face in the list looks again
-- after a second, so the rest is woken even if the caller and the faces of the first slices die.

_slice = { FACES = 64, ADDRESSES = 500 } -- one call wakes at most 64 faces, and tries about 500 addresses at most
_face_sweep = { FROM = 16, ADDRESSES = 2 } -- in a list longer than 16, each new address checks two random ones

-- Registers an address for `ms`. A face that is registered already keeps its number, because another of its listeners
-- waits for an earlier event.
--- (list: str, address: str, ms: int)
--- uses: base
function waiting.add(list, address, ms)
  local key = base .. list
  local last = redis.call("ZSCORE", key, "") or 0
  if redis.call("ZADD", key, "NX", last, address) == 1 and redis.call("ZCARD", key) > _face_sweep.FROM then
    -- Otherwise the addresses of processes that died would accumulate where nothing happens.
    for _, other in ipairs(redis.call("ZRANDMEMBER", key, _face_sweep.ADDRESSES)) do
      if other ~= "" and not notify.reaches(other) then redis.call("ZREM", key, other) end
    end
  end
  if redis.call("PTTL", key) < ms then redis.call("PEXPIRE", key, ms) end
end

-- Removes an address. Does nothing for "".
--- (list: str, address: str)
--- uses: base
function waiting.remove(list, address)
  if address ~= "" then redis.call("ZREM", base .. list, address) end
end

-- Reports an event. Returns how many faces are left to be woken.
--- (list: str) -> int
--- uses: base
function waiting.report(list)
  local key = base .. list
  if redis.call("EXISTS", key) == 0 then return 0 end
  redis.call("ZINCRBY", key, 1, "")
  return waiting.wake(list)
end

-- Wakes the next slice of the faces that registered before the last event. Returns how many are left.
--- (list: str) -> int
--- uses: base
function waiting.wake(list)
  local key = base .. list
  local last = redis.call("ZSCORE", key, "")
  if not last then return 0 end
  local left = waiting.wake_below(list, "(" .. last)
  if left == 0 and redis.call("ZCARD", key) == 1 then redis.call("DEL", key) end
  return left
end

-- Wakes and removes a slice of the addresses with scores up to `most`, the lowest first. Returns how many are left.
--- (list: str, most: str) -> int
--- uses: base
function waiting.wake_below(list, most)
  local key, woken, seen = base .. list, 0, 0
  while woken < _slice.FACES and seen < _slice.ADDRESSES do
    local found = redis.call("ZRANGE", key, "-inf", most, "BYSCORE", "LIMIT", 0, _slice.FACES - woken)
    if #found == 0 then return 0 end
    for i = 1, #found do
      if notify.send(found[i], "0") then woken = woken + 1 end
    end
    redis.call("ZREM", key, unpack(found))
    seen = seen + #found
  end
  local left = redis.call("ZCOUNT", key, "-inf", most)
  if left > 0 then
    notify.send(redis.call("ZRANGE", key, most, "-inf", "BYSCORE", "REV", "LIMIT", 0, 1)[1], "1000")
  end
  return left
end
