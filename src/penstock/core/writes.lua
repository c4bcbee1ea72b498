-- Writes to the keys of users. A script checks all of them before it executes the first, because the server cannot undo
-- a write.
--
-- A write is { command, position of its key in `keys`, type of the key or false for any, arguments, … }. Everything
-- that could make one fail is checked: a key of another type, a value that is not a whole number or would reach ±2^53
-- (below it Lua counts exactly), a score that would not be finite, and a command that this user may not send. Each
-- write is checked against the state that the earlier writes will leave. A *draft* of each key holds that state.

_write = { COMMAND = 1, KEY = 2, FIRST = 4 } -- FIRST: the first of its arguments
_exact = { LIMIT = 9007199254740992 } -- 2^53: Lua counts in floats, which are exact below it

-- Returns the draft of a key:
-- kind   the type of the key
-- parts  field -> text or number, false if it is deleted; the only field of a string is ""
-- new    true if an earlier write replaces or deletes the key, so that its value in the server no longer matters
--- (drafts: table, keys: table, position: int) -> table
function writes.draft(drafts, keys, position)
  if not drafts[position] then drafts[position] = { kind = redis.call("TYPE", keys[position]).ok, parts = {} } end
  return drafts[position]
end

-- Adds to a number of a draft. Returns false and the present value if that is impossible.
--- (one: table, key: str, field: str, by: str) -> bool, any
function writes.add(one, key, field, by)
  local found = one.parts[field]
  if found == nil and not one.new then
    if one.kind == "string" then found = redis.call("GET", key) end
    if one.kind == "hash" then found = redis.call("HGET", key, field) end
  end
  found = tostring(found or 0)
  local number = (found == "0" or (#found <= 17 and string.match(found, "^-?[1-9]%d*$"))) and tonumber(found)
  local sum = number and number + tonumber(by)
  if not sum or math.abs(number) >= _exact.LIMIT or math.abs(sum) >= _exact.LIMIT then return false, found end
  one.parts[field] = sum
  return true
end

-- Adds to a score of a draft. Returns false and the present score if the sum is not finite: the server would store an
-- infinite score, and refuse the next write to it.
--- (one: table, key: str, member: str, by: str) -> bool, any
function writes.add_score(one, key, member, by)
  local found = one.parts[member]
  if found == nil and not one.new and one.kind == "zset" then found = redis.call("ZSCORE", key, member) end
  local sum = tonumber(found or 0) + tonumber(by)
  if sum - sum ~= 0 then return false, tostring(found) end
  one.parts[member] = string.format("%.17g", sum)
  return true
end

-- Applies a write to the drafts. Returns false, and the type or value that prevents it, if it is impossible.
--- (drafts: table, keys: table, write: table) -> bool, any
function writes.plan(drafts, keys, write)
  local command, position, kind, first, second = unpack(write, 1, 5)
  if command == "SET" then
    drafts[position] = { kind = "string", parts = { [""] = first }, new = true }
  elseif command == "DEL" then
    drafts[position] = { kind = "none", parts = {}, new = true }
  elseif kind then
    local one = writes.draft(drafts, keys, position)
    if one.kind ~= kind then
      if one.kind ~= "none" then return false, one.kind end
      if command ~= "HDEL" and command ~= "SREM" and command ~= "ZREM" then one.kind = kind end
    end
    if command == "INCRBY" then return writes.add(one, keys[position], "", first) end
    if command == "HINCRBY" then return writes.add(one, keys[position], first, second) end
    if command == "ZINCRBY" then return writes.add_score(one, keys[position], second, first) end
    if command == "ZADD" then one.parts[second] = first end
    if command == "HSET" then one.parts[first] = second end
    if command == "HDEL" or command == "ZREM" then
      for i = _write.FIRST, #write do one.parts[write[i]] = false end
    end
  end
  return true
end

-- Checks all of these writes. Returns nil if each of them can be executed; else the number of the first that cannot,
-- from 1, and the type or value that prevents it, or an error if this user may not send the command. `drafts`: position
-- of a key -> its draft, for the keys that the caller has read already.
--- (drafts: table, keys: table, order: table) -> int | nil, any
function writes.check(drafts, keys, order)
  local allowed = {}
  for i = 1, #order do
    local command = order[i][_write.COMMAND]
    if not allowed[command] then
      if not redis.acl_check_cmd(command, keys[order[i][_write.KEY]], "0", "0") then
        return i, redis.error_reply("NOPERM this user may not send " .. command .. ": nothing was written")
      end
      allowed[command] = true
    end
    local fine, found = writes.plan(drafts, keys, order[i])
    if not fine then return i, found end
  end
end

-- Executes a write. Returns its reply.
--- (keys: table, write: table) -> any
function writes.execute(keys, write)
  return redis.call(write[_write.COMMAND], keys[write[_write.KEY]], unpack(write, _write.FIRST))
end
