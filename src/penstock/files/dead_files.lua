-- Dead files of a channel: files that a receiver could not save, or whose records are damaged. They are kept until an
-- operator decides. The bytes of a file that was received whole are on the disk of that receiver.
--
--   dead_files   HASH  "<receiver> NUL <id>" -> "<server ms> <1 if its receiver is to try it again, else 0> <1 if its
--                      bytes are kept, else 0> <JSON>", see DeadFile in dead_files.py
--
-- A finished channel with dead files does not expire.

_dead_files = { MOST = 1000 }

-- Returns how many dead files each receiver has.
--- () -> table
--- uses: base
function dead_files.counts()
  local found = {}
  for _, field in ipairs(redis.call("HKEYS", base .. "dead_files")) do
    local receiver = string.match(field, "^%Z*")
    found[receiver] = (found[receiver] or 0) + 1
  end
  return found
end

-- Forgets the dead files of a receiver that was removed.
--- (receiver: str)
--- uses: base
function dead_files.forget(receiver)
  for _, field in ipairs(redis.call("HKEYS", base .. "dead_files")) do
    if string.match(field, "^%Z*") == receiver then redis.call("HDEL", base .. "dead_files", field) end
  end
end

-- Stores a dead file, or the facts about it after one more attempt. Returns { "OK" }, { "GONE" }, or { "DEAD_FILES",
-- how many are stored } if there is no room for one more.
--- keys: base state
--- args: given: int, receiver: str, id: str, is_kept: int, json: str
--- flags: allow-oom
--- frame: log
function script.note_dead_file(base, state, given, receiver, id, is_kept, json)
  if not l then return { "GONE" } end
  local field, stored = receiver .. "\0" .. id, redis.call("HLEN", base .. "dead_files")
  if stored >= _dead_files.MOST and redis.call("HEXISTS", base .. "dead_files", field) == 0 then
    return { "DEAD_FILES", stored }
  end
  redis.call("HSET", base .. "dead_files", field, string.format("%d 0 %d ", clock.now(given), is_kept) .. json)
  return { "OK" }
end

-- Returns { "OK", id, "<server ms> <1 or 0> <1 or 0> <JSON>", … }.
--- keys: base state
--- args: receiver: str
--- flags: no-writes
--- frame: format
function script.list_dead_files(base, state, receiver)
  local found, answer = redis.call("HGETALL", base .. "dead_files"), { "OK" }
  for i = 1, #found, 2 do
    local of, id = string.match(found[i], "^(%Z*)%z(.*)$")
    if of == receiver then
      answer[#answer + 1] = id
      answer[#answer + 1] = found[i + 1]
    end
  end
  return answer
end

-- Has the receiver try these files again, except those whose bytes are not kept. Returns { "OK", how many }.
--- keys: base state
--- args: receiver: str, ids: *
--- flags: allow-oom
--- frame: format
function script.retry_dead_files(base, state, receiver, ids, ...)
  local n = 0
  for i = ids, #ARGV do
    local field = receiver .. "\0" .. ARGV[i]
    local at, rest = string.match(redis.call("HGET", base .. "dead_files", field) or "", "^(%d+) %d (1 .*)$")
    if at then
      redis.call("HSET", base .. "dead_files", field, at .. " 1 " .. rest)
      n = n + 1
    end
  end
  return { "OK", n }
end

-- Removes dead files. Returns { "OK", how many there were }.
--- keys: base state
--- args: receiver: str, ids: *
--- flags: allow-oom
--- frame: log
function script.remove_dead_files(base, state, receiver, ids, ...)
  local n = 0
  for i = ids, #ARGV do n = n + redis.call("HDEL", base .. "dead_files", receiver .. "\0" .. ARGV[i]) end
  local finished = l and channel.close_number() > 0 and redis.call("EXISTS", base .. "readers") == 0
  if n > 0 and finished then channel.expire() end
  return { "OK", n }
end
