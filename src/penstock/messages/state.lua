-- Reads and writes the key `state` of a log (log.lua).

-- Returns two values: an error if the log has a newer format than this code, else nil; and the content of `state`, or
-- nil if there is no log.
--- () -> error | nil, table | nil
--- uses: base state
function log.open()
  local packed = redis.call("HGET", state, "row")
  if not packed then return nil, nil end
  local format, top, first, start, at, freed, begun, ended, limits, has_removed, has_shared, kept_ids, has_ends =
    cmsgpack.unpack(packed)
  if format ~= log.FORMAT then return redis.error_reply("PENSTOCKFORMAT " .. format) end
  local l = {
    base = base, stream = base .. "log", ends = has_ends and base .. "ends", top = top, first = first, start = start,
    at = at, freed = freed, begun = begun, ended = ended, messages = 0, bytes = 0, age = 0, refuse = false,
    history_messages = 0, history_age = 0, has_limits = false, has_removed = has_removed, has_shared = has_shared,
    ids = kept_ids,
  }
  if limits then log.set_limits(l, limits) end
  return nil, l
end

-- The frame of a script that needs the log: `l`, nil if it does not exist.
--- uses: base state
function frame.log()
  local fault, l = log.open()
  if fault then return fault end
  -- …
end

-- The frame of a script that needs none of the numbers of the log.
--- uses: base state
function frame.format()
  local fault = log.open()
  if fault then return fault end
  -- …
end

-- The frame of a script that recognises a repeated call, and returns its first answer again.
--- uses: base state caller number
function frame.once(...)
  local fault, l = log.open()
  if fault then return fault end
  local past = idempotency.replay(caller, number)
  if past then return past end
  -- …
  return idempotency.keep(caller, number, ...)
end

-- Stores the content of `state`.
--- (l: table)
--- uses: state
function log.store(l)
  local limits = l.has_limits
    and { l.messages, l.bytes, l.age, l.refuse and 1 or 0, l.history_messages, l.history_age }
  redis.call("HSET", state, "row", cmsgpack.pack(log.FORMAT, l.top, l.first, l.start, l.at, l.freed, l.begun, l.ended,
    limits, l.has_removed, l.has_shared, l.ids, l.ends ~= false))
end

-- Creates a log without readers, and returns the content of its `state`. While the last number of a deleted log is
-- remembered, the new one begins above it. Limits as in the row; `has_ends`: see core/log.lua.
--- (limits: table, has_ends: bool) -> table
--- uses: base state
--- seldom
function log.create(limits, has_ends)
  local start = tonumber(redis.call("GET", base .. "before")) or 0
  redis.call("DEL", base .. "before")
  local l = log.begin(base .. "log", has_ends and base .. "ends", start)
  l.base, l.has_removed, l.has_shared, l.ids = base, false, false, false
  log.set_limits(l, limits)
  log.store(l)
  return l
end

-- Replaces the limits, given in the form of the row. The caller must call `log.store` afterwards.
--- (l: table, limits: table)
function log.set_limits(l, limits)
  l.messages, l.bytes, l.age, l.refuse = limits[1], limits[2], limits[3], limits[4] == 1
  l.history_messages, l.history_age = limits[5], limits[6]
  l.has_limits = limits[1] + limits[2] + limits[3] + limits[4] + limits[5] + limits[6] > 0
end
