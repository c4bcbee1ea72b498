-- The counts of the aggregate that receives as r, stored beside the channel (channel.lua) that it receives from.
--
--   totals:<r>     HASH  lines: how many were counted or rejected; rejected: how many were rejected; table:<t>: 1
--   counts:<r>:<t> ZSET  key -> count, of table t
--   rejected:<r>   LIST  the first thousand lines that were rejected, as JSON: file, line number, reason

_most = { REJECTED = 1000 }

-- Unpacks counts: { lines, how many rejected, { table = { key = n } }, { rejected line, … } }; {} for "".
--- (packed: str) -> table
function counts.decode(packed)
  return packed == "" and {} or cmsgpack.unpack(packed)
end

-- Adds unpacked counts to those of a receiver.
--- (receiver: str, found: table)
--- uses: base state
function counts.add(receiver, found)
  local lines, bad, tables, rejected = unpack(found)
  if not lines then return end
  local totals, list = base .. "totals:" .. receiver, base .. "rejected:" .. receiver
  redis.call("HSET", state, "counted", 1, "counts:" .. receiver, 1)
  redis.call("HINCRBY", totals, "lines", lines)
  redis.call("HINCRBY", totals, "rejected", bad)
  for name, keys in pairs(tables) do
    redis.call("HSET", totals, "table:" .. name, 1)
    for key, n in pairs(keys) do redis.call("ZINCRBY", base .. "counts:" .. receiver .. ":" .. name, n, key) end
  end
  local room = _most.REJECTED - redis.call("LLEN", list)
  for i = 1, math.min(#rejected, room) do redis.call("RPUSH", list, rejected[i]) end
end

--- (receiver: str)
--- uses: base state
function counts.delete(receiver)
  local totals = base .. "totals:" .. receiver
  for _, field in ipairs(redis.call("HKEYS", totals)) do
    local name = string.match(field, "^table:(.*)$")
    if name then redis.call("UNLINK", base .. "counts:" .. receiver .. ":" .. name) end
  end
  redis.call("UNLINK", totals, base .. "rejected:" .. receiver)
  redis.call("HDEL", state, "counts:" .. receiver)
end

-- Returns { lines, rejected, { table, … } }.
--- keys: base state
--- args: receiver: str
--- flags: no-writes
function script.totals(base, state, receiver)
  local fault = log.open()
  if fault then return fault end
  local found = redis.call("HGETALL", base .. "totals:" .. receiver)
  local lines, rejected, tables = 0, 0, {}
  for i = 1, #found, 2 do
    local field, value = found[i], found[i + 1]
    local name = string.match(field, "^table:(.*)$")
    if name then
      tables[#tables + 1] = name
    elseif field == "lines" then
      lines = tonumber(value)
    else
      rejected = tonumber(value)
    end
  end
  return { lines, rejected, tables }
end

-- Returns { key, count, … }, the highest counts first.
--- keys: base state
--- args: receiver: str, table_name: str, offset: int, n: int
--- flags: no-writes
function script.top_counts(base, state, receiver, table_name, offset, n)
  local fault = log.open()
  if fault then return fault end
  local key = base .. "counts:" .. receiver .. ":" .. table_name
  return redis.call("ZRANGE", key, offset, offset + n - 1, "REV", "WITHSCORES")
end

-- Returns { count or nil, … } for these keys.
--- keys: base state
--- args: receiver: str, table_name: str, wanted: *
--- flags: no-writes
function script.counts_of(base, state, receiver, table_name, wanted, ...)
  local fault = log.open()
  if fault then return fault end
  return redis.call("ZMSCORE", base .. "counts:" .. receiver .. ":" .. table_name, unpack(ARGV, wanted))
end

-- Returns a page of the rejected lines.
--- keys: base state
--- args: receiver: str, offset: int, n: int
--- flags: no-writes
function script.rejected(base, state, receiver, offset, n)
  local fault = log.open()
  if fault then return fault end
  return redis.call("LRANGE", base .. "rejected:" .. receiver, offset, offset + n - 1)
end

-- Deletes the counts of a receiver; its cursor stays. Returns 1.
--- keys: base state
--- args: receiver: str
--- flags: allow-oom
function script.forget_counts(base, state, receiver)
  local fault = log.open()
  if fault then return fault end
  counts.delete(receiver)
  return 1
end
