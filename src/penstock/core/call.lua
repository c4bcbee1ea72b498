-- Calls that count once: the number and the answer of each caller's last call, kept for a minute or longer.
--
--   call:<caller>  STRING  { number, answer } in MessagePack; PX 60 s at least
--
-- A caller has one call under way at a time, and its numbers rise. So a number that is not above the last is a copy of a
-- call that was done: the reply was lost, or a copy was late.

-- The answer it was given, if it was done.
--- (caller: str, number: int) -> table | nil
--- uses: base
function call.past(caller, number)
  local kept = redis.call("GET", base .. "call:" .. caller)
  if kept then
    local last = cmsgpack.unpack(kept)
    if last[1] >= number then return last[2] end
  end
end

--- (caller: str, number: int, answer: table, ms: int)
--- uses: base
function call.keep(caller, number, answer, ms)
  redis.call("SET", base .. "call:" .. caller, cmsgpack.pack({ number, answer }), "PX", ms)
end
