-- A transaction: conditions, then writes, executed atomically: all of them or none.
--
--   replay: see core/idempotency.lua
--
-- All keys are declared, and `base` never exists. Because it is missing, the server refuses the whole script while the
-- slot is being migrated to another node.
--
-- The server cannot undo a write. Therefore the script checks, before the first write, everything that could make one
-- fail: a key of another type, a value that is not a whole number or would reach ±2^53 (below it Lua counts exactly), a
-- score that would not be finite, and a command that this user may not send. Each write is checked against the state that the earlier writes will
-- leave. A *draft* of each key holds that state.

_write = { COMMAND = 1, KEY = 2, FIRST = 4 } -- FIRST: the first of its arguments
_exact = { LIMIT = 9007199254740992 } -- 2^53: Lua counts in floats, which are exact below it

-- Returns the draft of a key:
-- kind   the type of the key
-- parts  field -> text or number, false if it is deleted; the only field of a string is ""
-- new    true if an earlier write replaces or deletes the key, so that its value in the server no longer matters
--- (drafts: table, position: int) -> table
function draft.of(drafts, position)
  if not drafts[position] then drafts[position] = { kind = redis.call("TYPE", KEYS[position]).ok, parts = {} } end
  return drafts[position]
end

-- Adds to a number of a draft. Returns false and the present value if that is impossible.
--- (one: table, position: int, field: str, by: str) -> bool, any
function draft.add(one, position, field, by)
  local found = one.parts[field]
  if found == nil and not one.new then
    if one.kind == "string" then found = redis.call("GET", KEYS[position]) end
    if one.kind == "hash" then found = redis.call("HGET", KEYS[position], field) end
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
--- (one: table, position: int, member: str, by: str) -> bool, any
function draft.add_score(one, position, member, by)
  local found = one.parts[member]
  if found == nil and not one.new and one.kind == "zset" then found = redis.call("ZSCORE", KEYS[position], member) end
  local sum = tonumber(found or 0) + tonumber(by)
  if sum - sum ~= 0 then return false, tostring(found) end
  one.parts[member] = string.format("%.17g", sum)
  return true
end

-- Applies a write to the drafts: { command, position of its key in KEYS, type or false for any, arguments, … }. Returns
-- false, and the type or value that prevents it, if it is impossible.
--- (drafts: table, write: table) -> bool, any
function draft.write(drafts, write)
  local command, position, kind, first, second = unpack(write, 1, 5)
  if command == "SET" then
    drafts[position] = { kind = "string", parts = { [""] = first }, new = true }
  elseif command == "DEL" then
    drafts[position] = { kind = "none", parts = {}, new = true }
  elseif kind then
    local one = draft.of(drafts, position)
    if one.kind ~= kind then
      if one.kind ~= "none" then return false, one.kind end
      if command ~= "HDEL" and command ~= "SREM" and command ~= "ZREM" then one.kind = kind end
    end
    if command == "INCRBY" then return draft.add(one, position, "", first) end
    if command == "HINCRBY" then return draft.add(one, position, first, second) end
    if command == "ZINCRBY" then return draft.add_score(one, position, second, first) end
    if command == "ZADD" then one.parts[second] = first end
    if command == "HSET" then one.parts[first] = second end
    if command == "HDEL" or command == "ZREM" then
      for i = _write.FIRST, #write do one.parts[write[i]] = false end
    end
  end
  return true
end

-- Reads the value for a condition. Keeps it in the draft, because a write often changes the same value.
--- (drafts: table, command: str, position: int, name: str | bool) -> any
function condition.read(drafts, command, position, name)
  local found
  if name then found = redis.pcall(command, KEYS[position], name) else found = redis.pcall(command, KEYS[position]) end
  local kinds = { HGET = "hash", ZSCORE = "zset", GET = "string" }
  local kind = found and kinds[command]
  if kind and type(found) == "string" then
    if not drafts[position] then drafts[position] = { kind = kind, parts = {} } end
    if kind ~= "zset" then drafts[position].parts[name or ""] = found end
  end
  return found
end

-- Whether a condition holds: { command that reads, position of its key in KEYS, field or member or false, comparison,
-- value to compare with }. Returns also the value found.
--- (drafts: table, asked: table) -> bool, any
function condition.holds(drafts, asked)
  local command, position, name, compare, wanted = unpack(asked, 1, 5)
  local found = condition.read(drafts, command, position, name)
  if type(found) == "table" then return false, redis.call("TYPE", KEYS[position]).ok end
  local there = found and found ~= 0
  if compare == "there" then return there, found end
  if compare == "missing" then return not there, found end
  if not there then return false, false end
  if compare == "text" then return found == wanted, found end
  local number = tonumber(found)
  if not number then return false, found end
  if compare == "number" then return number == wanted, found end
  if compare == "at least" then return number >= wanted, found end
  return number <= wanted, found
end

-- Commits a transaction. KEYS: base; the locks, which must hold `token` (`locks` is their number); the keys of the
-- conditions and writes. `conditions` and `writes` are lists in MessagePack, for `condition.holds` and `draft.write`.
-- Returns { 1, reply to each write, … }. Otherwise nothing was written: { 0 } if a lock is not held any longer,
-- { -1, number, value found } for a condition that does not hold, { -2, number, value found } for an impossible write;
-- both are numbered from 1.
--- keys: base
--- args: caller: str, number: int, token: str, locks: int, conditions: str, writes: str
function script.commit(base, caller, number, token, locks, conditions, writes)
  local past = idempotency.replay(caller, number)
  if past then return past end
  for i = 2, 1 + locks do
    if redis.pcall("GET", KEYS[i]) ~= token then return { 0 } end
  end
  local drafts, allowed = {}, {}
  for i, asked in ipairs(cmsgpack.unpack(conditions)) do
    local holds, found = condition.holds(drafts, asked)
    if not holds then return { -1, i, found } end
  end
  local order = cmsgpack.unpack(writes)
  for i, write in ipairs(order) do
    local command = write[_write.COMMAND]
    if not allowed[command] then
      if not redis.acl_check_cmd(command, KEYS[write[_write.KEY]], "0", "0") then
        return redis.error_reply("NOPERM this user may not send " .. command .. ": nothing was written")
      end
      allowed[command] = true
    end
    local fine, found = draft.write(drafts, write)
    if not fine then return { -2, i, found } end
  end

  local answer = { 1 }
  for i, write in ipairs(order) do
    local reply = redis.call(write[_write.COMMAND], KEYS[write[_write.KEY]], unpack(write, _write.FIRST))
    answer[i + 1] = type(reply) == "table" and 1 or reply
  end
  return idempotency.keep(caller, number, answer)
end
