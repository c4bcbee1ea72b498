-- Reads and writes the key `state` of a log (log.lua).

-- Returns two values: an error if the log has a newer format than this code, else nil; and the content of `state`, or
-- nil if there is no log. A script that no channel of files calls sets `is_messages`, so that `ends` is not looked up.
--- () -> error | nil, table | nil
--- uses: base state
function log.open()
  local packed = redis.call("HGET", state, "row")
  if not packed then return log.open_older() end
  local format, top, first, start, at, freed, begun, ended, limits, has_removed, has_shared, kept_ids =
    cmsgpack.unpack(packed)
  if format ~= log.FORMAT then return redis.error_reply("PENSTOCKFORMAT " .. format) end
  local l = {
    top = top, first = first, start = start, at = at, freed = freed, begun = begun, ended = ended, messages = 0,
    bytes = 0, age = 0, refuse = false, history_messages = 0, history_age = 0, has_limits = false,
    has_removed = has_removed, has_shared = has_shared, ids = kept_ids,
  }
  if limits then log.set_limits(l, limits) end
  return nil, l
end

-- `open`, for a log of formats 1 and 2.
--- () -> error | nil, table | nil
--- uses: base state
--- seldom
function log.open_older()
  local s = redis.call("HMGET", state, "format", "top", "first", "begun", "ended", "messages", "bytes", "age", "refuse",
    "start", "at", "freed", "history")
  local format = tonumber(s[1])
  if not format then return nil, nil end
  if format >= log.FORMAT then return redis.error_reply("PENSTOCKFORMAT " .. s[1]) end
  local messages, age, removed = string.match(s[13] or "0 0 0", "^(%d+) (%d+) (%d+)$")
  local l = {
    top = tonumber(s[2]), first = tonumber(s[3]), begun = tonumber(s[4]), ended = tonumber(s[5]),
    start = tonumber(s[10]) or 0, at = tonumber(s[11]) or false, freed = tonumber(s[12]) or false,
    has_removed = removed == "1", has_shared = true, ids = { redis.call("HLEN", base .. "sent"), 0, 0 },
    is_older = true,
  }
  log.set_limits(l, {
    tonumber(s[6] or 0), tonumber(s[7] or 0), tonumber(s[8] or 0), tonumber(s[9] or 0), tonumber(messages),
    tonumber(age),
  })
  return nil, l
end

-- Stores the content of `state`.
--- (l: table)
--- uses: state
function log.store(l)
  local limits = l.has_limits
    and { l.messages, l.bytes, l.age, l.refuse and 1 or 0, l.history_messages, l.history_age }
  redis.call("HSET", state, "row", cmsgpack.pack(log.FORMAT, l.top, l.first, l.start, l.at, l.freed, l.begun, l.ended,
    limits, l.has_removed, l.has_shared, l.ids))
  if l.is_older then log.drop_older(l) end
end

-- Completes the change from format 1 or 2.
--- (l: table)
--- uses: state
--- seldom
function log.drop_older(l)
  redis.call("HSET", state, "format", log.FORMAT)
  redis.call("HDEL", state, "top", "first", "begun", "ended", "messages", "bytes", "age", "refuse", "start", "at",
    "freed", "history")
  l.is_older = false
end

-- Creates a log without readers, and returns the content of its `state`. While the last number of a deleted log is
-- remembered, the new one begins above it. Limits as in the row.
--- (limits: table) -> table
--- uses: base state
--- seldom
function log.create(limits)
  local start = tonumber(redis.call("GET", base .. "before")) or 0
  redis.call("DEL", base .. "before")
  redis.call("HSET", state, "format", log.FORMAT)
  local l = {
    top = start, first = start + 1, start = start, at = false, freed = false, begun = 0, ended = 0, has_removed = false,
    has_shared = false, ids = false,
  }
  log.set_limits(l, limits)
  log.store(l)
  return l
end

-- Replaces the limits, given in the form of the row. Call `log.store` then.
--- (l: table, limits: table)
function log.set_limits(l, limits)
  l.messages, l.bytes, l.age, l.refuse = limits[1], limits[2], limits[3], limits[4] == 1
  l.history_messages, l.history_age = limits[5], limits[6]
  l.has_limits = limits[1] + limits[2] + limits[3] + limits[4] + limits[5] + limits[6] > 0
end
