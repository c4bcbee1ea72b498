-- Idempotency: a call that is sent again, because its reply was lost, changes nothing and gets the same answer.
--
--   replay:<caller>  STRING  number of the caller's last call, and its answer, in MessagePack; PX 60 s at least
--
-- A caller waits for the answer before its next call, and its numbers increase. So a call whose number is not
-- higher than the last one is a copy. A copy with a lower number arrived late, when its caller had already continued:
-- its answer goes unread, but it must not be executed again. A call without a number (`caller` is empty) is always
-- executed.

_replay = { KEPT = 60000 } -- ms

-- Returns the answer of this call from what is kept for its caller, or nil. `kept`: false if nothing is kept.
--- (kept: str | false, number: int) -> any
function idempotency.answer(kept, number)
  if kept then
    local last, answer = cmsgpack.unpack(kept)
    if number <= last then return answer end
  end
end

-- Returns the answer of this call if it was executed before, else nil.
--- (caller: str, number: int) -> any
--- uses: base
function idempotency.replay(caller, number)
  if caller ~= "" then return idempotency.answer(redis.call("GET", base .. "replay:" .. caller), number) end
end

-- As `replay`; but a call that was not executed before is stored already, with an empty array as its answer. For a
-- script that cannot refuse the call any more, and stores any other answer with `keep`.
--- (caller: str, number: int) -> any
--- uses: base
function idempotency.begin(caller, number)
  if caller == "" then return nil end
  local key = base .. "replay:" .. caller
  local kept = redis.call("SET", key, cmsgpack.pack(number, {}), "PX", _replay.KEPT, "GET")
  local answer = idempotency.answer(kept, number)
  if answer ~= nil then redis.call("SET", key, kept, "PX", _replay.KEPT) end
  return answer
end

-- The number of the caller's last call; 0 if none is known.
--- (caller: str) -> int
--- uses: base
--- seldom
function idempotency.last(caller)
  local kept = redis.call("GET", base .. "replay:" .. caller)
  local last = kept and cmsgpack.unpack(kept)
  return last or 0
end

-- Stores the answer for `ms` milliseconds, by default a minute, and returns it.
--- (caller: str, number: int, answer: any, ms: int | nil) -> any
--- uses: base
function idempotency.keep(caller, number, answer, ms)
  if caller ~= "" then
    redis.call("SET", base .. "replay:" .. caller, cmsgpack.pack(number, answer), "PX", ms or _replay.KEPT)
  end
  return answer
end
