-- A transaction: conditions, then writes, executed atomically: all of them or none.
--
--   replay: see core/idempotency.lua
--
-- All keys are declared, and `base` never exists. Because it is missing, the server refuses the whole script while the
-- slot is being migrated to another node.
--
-- core/writes.lua says what is checked before the first write.

-- Reads the value for a condition. Keeps it in `drafts` (core/writes.lua), because a write often changes the same
-- value.
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

-- Returns whether a condition holds, and the value found. A condition is { command that reads, position of its key in
-- KEYS, field or member or false, comparison, value to compare with }.
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
-- conditions and writes. `conditions` and `writes` are lists in MessagePack, for `condition.holds` and core/writes.lua.
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
  local drafts = {}
  for i, asked in ipairs(cmsgpack.unpack(conditions)) do
    local holds, found = condition.holds(drafts, asked)
    if not holds then return { -1, i, found } end
  end
  local order = cmsgpack.unpack(writes)
  local refused, found = writes.check(drafts, KEYS, order)
  if type(found) == "table" then return found end
  if refused then return { -2, refused, found } end

  local answer = { 1 }
  for i = 1, #order do
    local reply = writes.execute(KEYS, order[i])
    answer[i + 1] = type(reply) == "table" and 1 or reply
  end
  return idempotency.keep(caller, number, answer)
end
