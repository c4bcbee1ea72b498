-- The dead letters of a mailbox: messages that their workers gave up, or that were delivered too often.
--
--   dead     ZSET  position of the message -> server ms at which it died
--   letters  HASH  position -> { sender, body, deliveries, reason }, in MessagePack
--
--            delivered `max_deliveries` times and not acknowledged, or `bury`
--   claimed ────────────────────────────────────────────────────────────────▶ dead ── requeue ──▶ a new message
--                                                                               └──── remove ───▶ (none)

_letters = { ROOM = 1048576 } -- bytes of bodies in one call

-- Makes a dead letter of a message, if it is still stored and not overdue. Returns the bytes of its body, or 0. If the
-- stream has vanished, `l.is_lost` is set.
--- (l: table, number: int, deliveries: int, reason: str, now: int) -> int
--- uses: base
function letters.bury(l, number, deliveries, reason, now)
  local row = {}
  if not shared_reader.read(l, number, row) or row[5] == log.OVERDUE then return 0 end
  local position = string.format("%d-%d", row[1], row[2])
  redis.call("ZADD", base .. "dead", now, position)
  redis.call("HSET", base .. "letters", position, cmsgpack.pack({ row[3], row[4], deliveries, reason }))
  return #row[4]
end

--- (position: str)
--- uses: base
function letters.remove(position)
  redis.call("ZREM", base .. "dead", position)
  redis.call("HDEL", base .. "letters", position)
end

-- Returns a page of dead letters, the latest first, up to a mebibyte of bodies, but at least one if there is one:
-- { "OK", how many there are, position, ms, sender, body, deliveries, reason, … }.
--- keys: base state
--- args: offset: int, n: int
--- flags: no-writes
--- frame: format
function script.list_dead_letters(base, state, offset, n)
  local answer, room = { "OK", redis.call("ZCARD", base .. "dead") }, _letters.ROOM
  local found = redis.call("ZRANGE", base .. "dead", offset, offset + n - 1, "REV", "WITHSCORES")
  for i = 1, #found, 2 do
    local letter = redis.call("HGET", base .. "letters", found[i])
    if letter then
      local by, body, deliveries, reason = unpack(cmsgpack.unpack(letter))
      room = room - #body
      if room < 0 and i > 1 then break end
      for _, value in ipairs({ found[i], tonumber(found[i + 1]), by, body, deliveries, reason }) do
        answer[#answer + 1] = value
      end
    end
  end
  return answer
end

-- Posts dead letters again as new messages, up to a mebibyte of bodies; the caller sends the other positions again.
-- Returns { "OK", how many positions were handled, how many of them were dead letters, how many of those that wait are
-- left to wake } or { "GONE" | "VANISHED" }.
--- keys: base state
--- args: caller: str, number: int, given: int, positions: *
--- frame: once
function script.requeue_dead_letters(base, state, caller, number, given, positions, ...)
  if not l then return log.refuse_gone() end
  local now, room, examined, done, left = clock.now(given), _letters.ROOM, 0, 0, 0
  for i = positions, #ARGV do
    local letter = redis.call("HGET", base .. "letters", ARGV[i])
    if letter then
      local by, body = unpack(cmsgpack.unpack(letter))
      room = room - #body
      if room < 0 and done > 0 then break end
      if not log.append(l, now, by, body) then return { "VANISHED", "log" } end
      letters.remove(ARGV[i])
      done = done + 1
    end
    examined = examined + 1
  end
  if done > 0 then
    log.save(l, now)
    left = log.report(l, now)
  end
  return { "OK", examined, done, left }
end

-- Deletes dead letters. Returns { "OK", how many of the positions were dead letters }.
--- keys: base state
--- args: caller: str, number: int, positions: *
--- flags: allow-oom
--- frame: once
function script.remove_dead_letters(base, state, caller, number, positions, ...)
  local done = 0
  for i = positions, #ARGV do
    done = done + redis.call("HEXISTS", base .. "letters", ARGV[i])
    letters.remove(ARGV[i])
  end
  return { "OK", done }
end
