-- The counts of aggregates, kept beside the channel (channel.lua) that they receive.

-- Unpack counts: { lines, how many rejected, { table = { key = n } }, { rejected line, … } }; {} for "".
--- (packed: str) -> table
function channel.counted(packed)
  return packed == "" and {} or cmsgpack.unpack(packed)
end

--- (who: str, found: table)
--- uses: base state
function channel.count(who, found)
  local lines, bad, tables, rejected = unpack(found)
  if not lines then return end
  local totals, list = base .. "totals:" .. who, base .. "rejected:" .. who
  redis.call("HSET", state, "counted", 1, "counts:" .. who, 1)
  redis.call("HINCRBY", totals, "lines", lines)
  redis.call("HINCRBY", totals, "rejected", bad)
  for name, keys in pairs(tables) do
    redis.call("HSET", totals, "table:" .. name, 1)
    for key, n in pairs(keys) do redis.call("ZINCRBY", base .. "counts:" .. who .. ":" .. name, n, key) end
  end
  for i = 1, math.min(#rejected, 1000 - redis.call("LLEN", list)) do redis.call("RPUSH", list, rejected[i]) end
end

--- (who: str)
--- uses: base state
function channel.forget_counts(who)
  local totals = base .. "totals:" .. who
  for _, field in ipairs(redis.call("HKEYS", totals)) do
    local name = string.match(field, "^table:(.*)$")
    if name then redis.call("UNLINK", base .. "counts:" .. who .. ":" .. name) end
  end
  redis.call("UNLINK", totals, base .. "rejected:" .. who)
  redis.call("HDEL", state, "counts:" .. who)
end

-- { lines, rejected, { table, … } }
--- keys: base state
--- args: who: str
--- flags: no-writes
function script.totals(base, state, who)
  local fault = log.open()
  if fault then return fault end
  local found = redis.call("HGETALL", base .. "totals:" .. who)
  local answer = { 0, 0, {} }
  for i = 1, #found, 2 do
    local name = string.match(found[i], "^table:(.*)$")
    if name then
      answer[3][#answer[3] + 1] = name
    elseif found[i] == "lines" then
      answer[1] = tonumber(found[i + 1])
    else
      answer[2] = tonumber(found[i + 1])
    end
  end
  return answer
end

-- Keys with the highest counts, highest first: { key, count, … }
--- keys: base state
--- args: who: str, name: str, offset: int, n: int
--- flags: no-writes
function script.top(base, state, who, name, offset, n)
  local fault = log.open()
  if fault then return fault end
  return redis.call("ZRANGE", base .. "counts:" .. who .. ":" .. name, offset, offset + n - 1, "REV", "WITHSCORES")
end

-- The counts of these keys: { count or nil, … }
--- keys: base state
--- args: who: str, name: str, wanted: *
--- flags: no-writes
function script.of_keys(base, state, who, name, wanted, ...)
  local fault = log.open()
  if fault then return fault end
  return redis.call("ZMSCORE", base .. "counts:" .. who .. ":" .. name, unpack(ARGV, wanted))
end

--- keys: base state
--- args: who: str, offset: int, n: int
--- flags: no-writes
function script.rejected(base, state, who, offset, n)
  local fault = log.open()
  if fault then return fault end
  return redis.call("LRANGE", base .. "rejected:" .. who, offset, offset + n - 1)
end

--- keys: base state
--- args: who: str
--- flags: allow-oom
function script.forget_counts(base, state, who)
  local fault = log.open()
  if fault then return fault end
  channel.forget_counts(who)
  return 1
end
