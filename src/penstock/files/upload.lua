-- Scripts of a sender, which puts the records of files into a channel (channel.lua).

-- The reply to a sender that needs this much space, if there is less even after receivers were passed over; otherwise nil.
--- (l: table, space: int, now: int) -> table | nil
--- uses: base state
function channel.lacking(l, space, now)
  local low = redis.call("ZRANGE", base .. "readers", 0, 0)[1] or ""
  if l.ended - l.begun + space <= l.bytes then return nil end
  local left = channel.pass_over(l, now, space)
  if l.ended - l.begun + space > l.bytes then return { "FULL", left, l.ended - l.begun, low } end
end

-- The entries of these sources: { "OK", { entry or "", … } }
--- keys: base state
--- args: sources: *
--- flags: no-writes
function script.known(base, state, sources, ...)
  local fault = log.open()
  if fault then return fault end
  local answer = {}
  for i = sources, #ARGV do answer[#answer + 1] = redis.call("HGET", base .. "sources", ARGV[i]) or "" end
  return { "OK", answer }
end

-- Take over an upload that another process began; that process is refused from then on. { "OK", entry } or { "TAKEN" } if it has
-- ended
--- keys: base state
--- args: source: str, file: str, token: str
--- flags: allow-oom
function script.take_source(base, state, source, file, token)
  local fault = log.open()
  if fault then return fault end
  local entry = redis.call("HGET", base .. "sources", source)
  if not entry then return { "TAKEN" } end
  local found = cmsgpack.unpack(entry)
  if found[2] ~= file then return { "TAKEN" } end
  found[1] = token
  redis.call("HSET", base .. "sources", source, cmsgpack.pack(found))
  return { "OK", cmsgpack.pack(found) }
end

-- Append records, given as kind, body, …; all of them or none. `fresh`: if the file begins here, the entry that its sender has
-- found at `place` ("" for none); "-" if the upload continues. `ending`: if the upload ends here, the outcome to keep at `place`
-- ("-" for none); "" if it does not end.
-- { "OK", bytes held, slowest receiver }, { "FULL", ms after which to try again or -1, bytes held, slowest receiver } or
-- { "GONE" | "CLOSED" | "TAKEN" | "LARGE" | "STRANGER" }
--- keys: base state
--- args: caller: str, number: int, given: int, source: str, file: str, token: str, fresh: str, mark: str, place: str
--- args: ending: str, rest: *
function script.put(base, state, caller, number, given, source, file, token, fresh, mark, place, ending, rest, ...)
  local fault, l = log.open()
  if fault then return fault end
  local past = idempotency.replay(caller, number)
  if past then return past end
  if not l then return { "GONE" } end
  if channel.ended() > 0 then return { "CLOSED", redis.call("ZCARD", base .. "readers") } end
  local entry = redis.call("HGET", base .. "sources", source) or ""
  if fresh == "-" then
    local found = entry ~= "" and cmsgpack.unpack(entry) or { "", "" }
    if found[1] ~= token or found[2] ~= file then return { "TAKEN" } end
  elseif entry ~= "" or (redis.call("HGET", base .. "sources", place) or "") ~= fresh then
    return { "TAKEN" }
  end
  if not channel.has_receivers() then return { "STRANGER" } end
  local size, now = 0, clock.now(given)
  for i = rest, #ARGV, 2 do size = size + log.size(ARGV[i] .. file, ARGV[i + 1]) end
  if size > l.bytes then return { "LARGE" } end
  local full = channel.lacking(l, size, now)
  if full then return full end
  for i = rest, #ARGV, 2 do channel.append(l, now, ARGV[i] .. file, ARGV[i + 1]) end
  log.appended(l, now, false)
  if l.ended - l.begun > tonumber(redis.call("HGET", state, "peak") or 0) then redis.call("HSET", state, "peak", l.ended - l.begun) end
  if ending == "" then
    redis.call("HSET", base .. "sources", source, cmsgpack.pack({ token, file, mark, "" }))
  else
    redis.call("HDEL", base .. "sources", source)
  end
  if ending ~= "" and ending ~= "-" then
    redis.call("HSET", base .. "sources", place, cmsgpack.pack({ "", "", mark, ending }))
    redis.call("ZADD", base .. "sent_at", now, place)
    local old = redis.call("ZRANGE", base .. "sent_at", 0, -10001)
    for i = 1, #old do
      redis.call("ZREM", base .. "sent_at", old[i])
      redis.call("HDEL", base .. "sources", old[i])
    end
  end
  log.ring(l, now)
  return idempotency.keep(caller, number, { "OK", l.ended - l.begun, redis.call("ZRANGE", base .. "readers", 0, 0)[1] or "" })
end

-- For a sender that was refused: notify `address` when there is space for `size` bytes and for a quarter of the limit. With less
-- space its next batch would be refused again after each megabyte. Replies as `put` does.
--- keys: base state
--- args: given: int, size: int, address: str, stay_ms: int
--- flags: allow-oom
function script.await_space(base, state, given, size, address, stay_ms)
  local fault, l = log.open()
  if fault then return fault end
  local space = l and math.min(l.bytes, math.max(size, math.floor(l.bytes / 4)))
  local full = l and channel.ended() == 0 and channel.lacking(l, space, clock.now(given))
  log.wait("wanting", space or 0, address, full and stay_ms or 0)
  return full or { "OK", l and l.ended - l.begun or 0, "" }
end
