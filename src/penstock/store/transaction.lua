-- A transaction: conditions, then writes, in one step, all of them or none.
--
--   call:<caller>  see call.lua
--
-- All keys are declared, and `base` never exists: while the slot moves to another node, the server refuses the whole
-- script for it. The server undoes nothing: so whatever could make a write fail is looked for before the first one. That
-- is a key of another type, a number that is none or would reach ±2^53 (where Lua counts exactly), and a command that
-- this user may not send. Later writes see what earlier ones will have done: a draft of each key is kept.

--- function draft.of(drafts: table, place: int) -> table
-- kind: its type. parts: field -> text or number, false when deleted; a string's only field is "". new: nothing of
-- what the server holds is left.
if not drafts[place] then drafts[place] = { kind = redis.call("TYPE", KEYS[place]).ok, parts = {} } end
return drafts[place]

--- function draft.add(one: table, place: int, field: str, by: str) -> bool, any
-- Returns what is there if it cannot be added to.
local found = one.parts[field]
if found == nil and not one.new then
  if one.kind == "string" then found = redis.call("GET", KEYS[place]) end
  if one.kind == "hash" then found = redis.call("HGET", KEYS[place], field) end
end
found = tostring(found or 0)
local number = (found == "0" or (#found <= 17 and string.match(found, "^-?[1-9]%d*$"))) and tonumber(found)
local sum = number and number + tonumber(by)
if not sum or math.abs(number) >= 9007199254740992 or math.abs(sum) >= 9007199254740992 then return false, found end
one.parts[field] = sum
return true

--- function draft.write(drafts: table, at: int) -> bool, any
-- The write that begins at ARGV[at]. Returns what stands in its way.
local command, place, first = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 3]
local one = draft.of(drafts, place)
if command == "PEXPIRE" then return true end
if command == "SET" or command == "DEL" then
  local text = command == "SET" and { [""] = first }
  drafts[place] = { kind = text and "string" or "none", parts = text or {}, new = true }
  return true
end
local removes = command == "HDEL" or command == "SREM" or command == "ZREM"
local kind = ({ H = "hash", Z = "zset", S = "set", I = "string", L = "list", R = "list" })[string.sub(command, 1, 1)]
if one.kind ~= kind then
  if one.kind ~= "none" then return false, one.kind end
  if not removes then one.kind = kind end
end
if command == "INCRBY" then return draft.add(one, place, "", first) end
if command == "HINCRBY" then return draft.add(one, place, first, ARGV[at + 4]) end
if command == "HSET" then one.parts[first] = ARGV[at + 4] end
if command == "HDEL" then
  for i = at + 3, at + 2 + tonumber(ARGV[at + 2]) do one.parts[ARGV[i]] = false end
end
return true

--- function condition.holds(at: int) -> bool, any
-- The condition that begins at ARGV[at]. Returns what was found, too.
local read, key, name, compare, wanted = ARGV[at], KEYS[tonumber(ARGV[at + 1])], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
local found
if name == "" and (read == "GET" or read == "EXISTS") then
  found = redis.pcall(read, key)
else
  found = redis.pcall(read, key, name)
end
if type(found) == "table" then return false, redis.call("TYPE", key).ok end
local there = found and found ~= 0
if compare == "there" then return there, found end
if compare == "missing" then return not there, found end
if not there then return false, false end
if compare == "text" then return found == wanted, found end
local number, bound = tonumber(found), tonumber(wanted)
if not number then return false, found end
if compare == "number" then return number == bound, found end
if compare == "at least" then return number >= bound, found end
return number <= bound, found

--- script commit
--- keys: base
--- args: caller: str, number: int, token: str, locks: int, conditions: int, order: *
-- KEYS: base, `locks` locks that must hold `token`, the keys of the order. The order: so many conditions, each { command
-- that reads, place of its key in KEYS, field or member or "", how to compare, with what }; then writes, each { command,
-- place of its key, how many arguments, … }.
-- Returns { 1, the reply to each write }, { 0 } if a lock is not held any more, { -1, which condition failed, what was
-- found }, or { -2, which write cannot be done, what stands in its way }; numbered from 1, nothing is written then.
local past = call.past(caller, number)
if past then return past end
for i = 2, 1 + locks do
  if redis.pcall("GET", KEYS[i]) ~= token then return { 0 } end
end
local at = order
for i = 1, conditions do
  local holds, found = condition.holds(at)
  if not holds then return { -1, i, found } end
  at = at + 5
end

local writes, next_ = at, at
local drafts, allowed, n = {}, {}, 0
while next_ <= #ARGV do
  n = n + 1
  if not allowed[ARGV[next_]] then
    if not redis.acl_check_cmd(ARGV[next_], KEYS[tonumber(ARGV[next_ + 1])], "0", "0") then
      return redis.error_reply("NOPERM this user may not send " .. ARGV[next_] .. ": nothing was written")
    end
    allowed[ARGV[next_]] = true
  end
  local fine, found = draft.write(drafts, next_)
  if not fine then return { -2, n, found } end
  next_ = next_ + 3 + tonumber(ARGV[next_ + 2])
end

local answer = { 1 }
at = writes
while at <= #ARGV do
  local last = at + 2 + tonumber(ARGV[at + 2])
  local reply = redis.call(ARGV[at], KEYS[tonumber(ARGV[at + 1])], unpack(ARGV, at + 3, last))
  answer[#answer + 1] = type(reply) == "table" and 1 or reply
  at = last + 1
end
call.keep(caller, number, answer, 60000)
return answer
