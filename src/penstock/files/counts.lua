-- The counts of the aggregate that receives as r, in keys of the channel (channel.lua) that it receives from.
--
--   totals:<r>           HASH  lines: how many were counted or rejected; rejected: how many were rejected
--                              version: changes whenever counts are added; dead, dead_id: see uncounted.lua
--                              deposit, committed: see deposits.lua
--                              table:<t>: the kind of table t; sum:<t>: the magnitudes of all its numbers, added up
--   counts:<r>:<t>       ZSET  key -> number, of table t; of kind "last" the order of the value; of "uniques" 0
--   values:<r>:<t>       HASH  key -> exact number of kind "sum", or the value of kind "last" or "first"
--   uniques:<r>:<t>:<k>  HLL   the different texts of key k in a table of kind "uniques"; see before_key
--   windows:<r>          ZSET  table of a window -> server ms at which it expires; its name is <t>@<start>
--   rejected:<r>         LIST  the first thousand lines that were rejected, as JSON: file, line number, reason
--
-- The kind of a table is a word, followed by the number of decimal places: "count 0", "sum 2", "min 0", "max 3",
-- "first 0", "last 0", "uniques 0". Numbers are integers: 1.25 in a table of kind "sum 2" is 125.
--
-- ZSETs have floating-point scores, which are exact up to 2^53. No number of a table is greater than its `sum:<t>`, so
-- as long as that is below 2^53, nothing has to be checked key by key.

_most = { REJECTED = 1000, EXACT = 9007199254740992, INTEGER = 4611686018427387904, UNIQUES = 1000, EXPIRED = 100 }

-- The name of a table in the form in which it is written before one of its keys. Both may contain colons, so those of
-- the name become "=", which no name contains: otherwise key "b:c" of table "a" would be key "c" of table "a:b".
--- (name: str) -> str
function counts.before_key(name)
  return string.gsub(name, ":", "=") .. ":"
end

-- The key in the server that counts the different texts of one key of a table.
--- (receiver: str, name: str, key: str) -> str
--- uses: base
function counts.texts(receiver, name, key)
  return base .. "uniques:" .. receiver .. ":" .. counts.before_key(name) .. key
end

-- Unpacks counts. Returns {} for ""; { deposit = id, pieces = n } for "@<id> <n>", which means the n pieces of a
-- deposit; else { lines, how many rejected, { table = { kind, ms that it is kept or 0, { key = number } } }, { rejected
-- line, … }, { dead batch, … } or nil }. A number of kind "sum" is a text, one of "first" and "last" is { order, value
-- }, and one of "uniques" is { text, … }.
--- (packed: str) -> table
function counts.decode(packed)
  if packed == "" then return {} end
  local id, n = string.match(packed, "^@(%S+) (%d+)$")
  if id then return { deposit = id, pieces = tonumber(n) } end
  return cmsgpack.unpack(packed)
end

-- Returns { "OVERFLOW" | "KIND" | "UNIQUES" | "DEAD", table, key or kind } if these counts, each as `counts.decode`
-- returns it, cannot be added to those of a receiver; { "PENDING" }, { "BUSY", ms } or { "LOST" } if they cannot be
-- added now, see deposits.lua; else nil. Writes nothing, except to the key `sums` if one is given: then these counts
-- are a piece to be deposited, and the pieces that were deposited before are taken into account.
--- (receiver: str, all: table, now: int, sums: str | nil) -> table | nil
--- uses: base
function counts.refusal(receiver, all, now, sums)
  local totals, added, by_key, dead = base .. "totals:" .. receiver, {}, {}, 0
  local deposit
  for _, found in ipairs(all) do
    deposit = deposit or found.deposit or (found[1] and "")
    if found.deposit and deposits.count(receiver, found.deposit) ~= found.pieces then return { "LOST" } end
  end
  local refusal = deposit and not sums and deposits.refusal(receiver, deposit, now)
  if refusal then return refusal end
  local function of_pieces(field) return sums and tonumber(redis.call("HGET", sums, field)) or 0 end
  for _, found in ipairs(all) do
    dead = dead + #(found[5] or {})
    for name, one in pairs(found[3] or {}) do
      local kind = redis.call("HGET", totals, "table:" .. name)
      if kind and kind ~= one[1] then return { "KIND", name, kind } end
      local word = string.match(one[1], "^%a+")
      if word == "count" or word == "sum" then
        local sum = added[name] or tonumber(redis.call("HGET", totals, "sum:" .. name) or 0) + of_pieces("sum:" .. name)
        for _, n in pairs(one[3]) do sum = sum + math.abs(tonumber(n)) end
        added[name] = sum
        if word == "sum" and sum > _most.INTEGER then return { "OVERFLOW", name, "" } end
        if word == "count" and sum > _most.EXACT then
          local numbers = by_key[name] or {}
          by_key[name] = numbers
          for key, n in pairs(one[3]) do
            local before = numbers[key] or counts.number(receiver, name, key)
            -- A sum of the two would be rounded, possibly down to the limit.
            if before * n > 0 and math.abs(n) > _most.EXACT - math.abs(before) then return { "OVERFLOW", name, key } end
            numbers[key] = before + n
          end
        end
      elseif word == "uniques" then
        local index = base .. "counts:" .. receiver .. ":" .. name
        added[name] = added[name] or redis.call("ZCARD", index) + of_pieces("keys:" .. name)
        for key in pairs(one[3]) do
          local is_new = not redis.call("ZSCORE", index, key)
          if is_new and sums then
            is_new = redis.call("HSETNX", sums, "key:" .. counts.before_key(name) .. key, 1) == 1
          end
          if is_new then added[name] = added[name] + 1 end
        end
        if added[name] > _most.UNIQUES then return { "UNIQUES", name, "" } end
        if sums then redis.call("HSET", sums, "keys:" .. name, added[name] - redis.call("ZCARD", index)) end
      end
      if sums and (word == "count" or word == "sum") then
        local before = tonumber(redis.call("HGET", totals, "sum:" .. name) or 0)
        redis.call("HSET", sums, "sum:" .. name, string.format("%.17g", added[name] - before))
      end
    end
  end
  return uncounted.refusal(receiver, dead)
end

-- Returns the number of a key in a table; 0 for a key without one.
--- (receiver: str, name: str, key: str) -> num
--- uses: base
function counts.number(receiver, name, key)
  return tonumber(redis.call("ZSCORE", base .. "counts:" .. receiver .. ":" .. name, key) or 0)
end

-- Adds unpacked counts that `counts.refusal` did not refuse to those of a receiver.
--- (receiver: str, found: table, now: int)
--- uses: base state
function counts.add(receiver, found, now)
  if found.deposit then return deposits.commit(receiver) end
  local lines, bad, tables, rejected, dead = unpack(found)
  if not lines then return end
  local totals, list = base .. "totals:" .. receiver, base .. "rejected:" .. receiver
  redis.call("HSET", state, "counted", 1, "counts:" .. receiver, 1)
  redis.call("HINCRBY", totals, "lines", lines)
  redis.call("HINCRBY", totals, "rejected", bad)
  redis.call("HINCRBY", totals, "version", 1)
  for name, one in pairs(tables) do counts.add_table(receiver, name, one[1], one[2], one[3], now) end
  local room = _most.REJECTED - redis.call("LLEN", list)
  for i = 1, math.min(#rejected, room) do redis.call("RPUSH", list, rejected[i]) end
  for _, batch in ipairs(dead or {}) do uncounted.add(receiver, batch, now) end
end

-- Adds numbers to a table of this kind. A table that is kept for `keep` ms only is the table of a window.
--- (receiver: str, name: str, kind: str, keep: int, numbers: table, now: int)
--- uses: base
function counts.add_table(receiver, name, kind, keep, numbers, now)
  local totals, table_id = base .. "totals:" .. receiver, receiver .. ":" .. name
  local index, values, sum = base .. "counts:" .. table_id, base .. "values:" .. table_id, 0
  local word = string.match(kind, "^%a+")
  redis.call("HSET", totals, "table:" .. name, kind)
  for key, n in pairs(numbers) do
    if word == "count" then
      sum = sum + math.abs(n)
      redis.call("ZINCRBY", index, n, key)
    elseif word == "sum" then
      sum = sum + math.abs(tonumber(n))
      redis.call("HINCRBY", values, key, n)
      redis.call("ZADD", index, redis.call("HGET", values, key), key)
    elseif word == "min" then
      redis.call("ZADD", index, "LT", n, key)
    elseif word == "max" then
      redis.call("ZADD", index, "GT", n, key)
    elseif word == "uniques" then
      redis.call("ZADD", index, 0, key)
      local texts = counts.texts(receiver, name, key)
      for i = 1, #n, 1000 do redis.call("PFADD", texts, unpack(n, i, math.min(i + 999, #n))) end
    else
      counts.keep_one(index, values, word, key, n[1], n[2])
    end
  end
  if sum > 0 then
    local before = tonumber(redis.call("HGET", totals, "sum:" .. name) or 0)
    redis.call("HSET", totals, "sum:" .. name, string.format("%.17g", before + sum))
  end
  if keep > 0 then counts.expire(receiver, name, keep, now) end
end

-- Keeps one of two values: by their order the first or the last, or if both have the same order, the greater text.
--- (index: str, values: str, word: str, key: str, order: num, value: str)
function counts.keep_one(index, values, word, key, order, value)
  local before = tonumber(redis.call("ZSCORE", index, key) or nil)
  local wins = not before or (word == "first" and order < before) or (word == "last" and order > before)
  if before == order then wins = value > redis.call("HGET", values, key) end
  if not wins then return end
  redis.call("ZADD", index, order, key)
  redis.call("HSET", values, key, value)
end

-- Lets the table of a window expire `keep` ms from now, and forgets some that have expired.
--- (receiver: str, name: str, keep: int, now: int)
--- uses: base
function counts.expire(receiver, name, keep, now)
  local totals, windows = base .. "totals:" .. receiver, base .. "windows:" .. receiver
  redis.call("PEXPIRE", base .. "counts:" .. receiver .. ":" .. name, keep)
  redis.call("PEXPIRE", base .. "values:" .. receiver .. ":" .. name, keep)
  redis.call("ZADD", windows, now + keep, name)
  for _, old in ipairs(redis.call("ZRANGE", windows, "-inf", now, "BYSCORE", "LIMIT", 0, _most.EXPIRED)) do
    redis.call("HDEL", totals, "table:" .. old, "sum:" .. old)
    redis.call("ZREM", windows, old)
  end
end

--- (receiver: str)
--- uses: base state
function counts.delete(receiver)
  local totals = base .. "totals:" .. receiver
  for _, field in ipairs(redis.call("HKEYS", totals)) do
    local name = string.match(field, "^table:(.*)$")
    if name then
      local index = base .. "counts:" .. receiver .. ":" .. name
      if string.match(redis.call("HGET", totals, field), "^uniques") then
        for _, key in ipairs(redis.call("ZRANGE", index, 0, -1)) do
          redis.call("UNLINK", counts.texts(receiver, name, key))
        end
      end
      redis.call("UNLINK", index, base .. "values:" .. receiver .. ":" .. name)
    end
  end
  deposits.drop(receiver)
  redis.call("UNLINK", totals, base .. "rejected:" .. receiver, base .. "windows:" .. receiver)
  uncounted.delete(receiver)
  redis.call("HDEL", state, "counts:" .. receiver)
end

-- Returns { lines, rejected, version, { table, kind, … }, lines of dead batches }, or, like the next three scripts,
-- { "PENDING" } if there are pieces to be added first. The version changes whenever counts are added.
--- keys: base state
--- args: receiver: str
--- flags: no-writes
--- frame: format
function script.totals(base, state, receiver)
  local found = redis.call("HGETALL", base .. "totals:" .. receiver)
  local numbers, tables = { lines = 0, rejected = 0, version = 0, dead = 0 }, {}
  for i = 1, #found, 2 do
    local field, value = found[i], found[i + 1]
    if field == "committed" then return { "PENDING" } end
    local name = string.match(field, "^table:(.*)$")
    if name then
      tables[#tables + 1] = name
      tables[#tables + 1] = value
    elseif numbers[field] then
      numbers[field] = tonumber(value)
    end
  end
  return { numbers.lines, numbers.rejected, numbers.version, tables, numbers.dead }
end

-- Returns { kind, key, number, … }, the highest numbers first. Of kind "first" or "last", each value is returned
-- instead of its order. Of kind "uniques", at most a hundred keys are returned, in descending order of their names. The
-- script has no flag "no-writes", because PFCOUNT counts as a command that writes.
--- keys: base state
--- args: receiver: str, table_name: str, offset: int, n: int
--- flags: allow-oom
--- frame: format
function script.top_counts(base, state, receiver, table_name, offset, n)
  local known = redis.call("HMGET", base .. "totals:" .. receiver, "table:" .. table_name, "committed")
  if known[2] then return { "PENDING" } end
  local kind = known[1] or "count 0"
  local word, table_id = string.match(kind, "^%a+"), receiver .. ":" .. table_name
  local index, answer = base .. "counts:" .. table_id, { kind }
  if word == "uniques" then n = math.min(n, 100) end
  local found = redis.call("ZRANGE", index, offset, offset + n - 1, "REV", "WITHSCORES")
  for i = 1, #found, 2 do
    local value = found[i + 1]
    if word == "uniques" then
      value = redis.call("PFCOUNT", counts.texts(receiver, table_name, found[i]))
    elseif word == "sum" or word == "first" or word == "last" then
      value = redis.call("HGET", base .. "values:" .. table_id, found[i])
    end
    answer[#answer + 1] = found[i]
    answer[#answer + 1] = value
  end
  return answer
end

-- Returns { kind, number or false, … } for these keys, or { "PENDING" }.
--- keys: base state
--- args: receiver: str, table_name: str, wanted: *
--- flags: allow-oom
--- frame: format
function script.counts_of(base, state, receiver, table_name, wanted, ...)
  local known = redis.call("HMGET", base .. "totals:" .. receiver, "table:" .. table_name, "committed")
  if known[2] then return { "PENDING" } end
  local kind = known[1] or "count 0"
  local word, table_id = string.match(kind, "^%a+"), receiver .. ":" .. table_name
  local answer = { kind }
  for i = wanted, #ARGV do
    local value = redis.call("ZSCORE", base .. "counts:" .. table_id, ARGV[i])
    if value and word == "uniques" then
      value = redis.call("PFCOUNT", counts.texts(receiver, table_name, ARGV[i]))
    elseif value and (word == "sum" or word == "first" or word == "last") then
      value = redis.call("HGET", base .. "values:" .. table_id, ARGV[i])
    end
    answer[#answer + 1] = value
  end
  return answer
end

-- Returns a page of the rejected lines, or { "PENDING" }.
--- keys: base state
--- args: receiver: str, offset: int, n: int
--- flags: no-writes
--- frame: format
function script.rejected(base, state, receiver, offset, n)
  if redis.call("HGET", base .. "totals:" .. receiver, "committed") then return { "PENDING" } end
  return redis.call("LRANGE", base .. "rejected:" .. receiver, offset, offset + n - 1)
end

-- Deletes the counts of a receiver; its cursor stays. Returns 1.
--- keys: base state
--- args: receiver: str
--- flags: allow-oom
--- frame: format
function script.forget_counts(base, state, receiver)
  counts.delete(receiver)
  return 1
end
