-- What an operator took from its holders: locks, permits and leaderships.
--
--   broken   HASH  token of a holding that an operator ended -> the reason; PX an hour. With 1000 of them it is emptied
--                  before the next one is added

_most_broken = { KEPT = 1000, MS = 3600000 }

-- Records that an operator ended the holding of this token.
--- (base: str, token: str, reason: str)
function breaking.note(base, token, reason)
  local key = base .. "broken"
  if redis.call("HLEN", key) >= _most_broken.KEPT then redis.call("DEL", key) end
  redis.call("HSET", key, token, reason)
  redis.call("PEXPIRE", key, _most_broken.MS)
end

-- Returns the reason if an operator ended the holding of this token, else false.
--- (base: str, token: str) -> str | bool
function breaking.reason(base, token)
  return redis.call("HGET", base .. "broken", token)
end
