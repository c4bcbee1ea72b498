-- Commands with many values, sent in pieces. Lua can pass a command at most about 8000 values; with more, `unpack`
-- raises an error in the middle of the script, after some of the writes were made. Use these functions wherever the
-- number of values has no small limit.

-- Sends `command key values…`. Returns the reply to the last piece.
--- (command: str, key: str, values: table) -> int
function batch.write(command, key, values)
  local reply
  for i = 1, #values, 4000 do
    reply = redis.call(command, key, unpack(values, i, math.min(#values, i + 3999)))
  end
  return reply
end

-- Does what `batch.write` does, for HSET and ZADD. The server stores a small hash or sorted set, and a new one, as a
-- listpack, which it searches from the start for each member written. A member of more than 64 bytes makes the server
-- use a table instead, and it does not return to a listpack when that member is removed.
--- (command: str, key: str, values: table)
function batch.add(command, key, values)
  local encoding = #values > 64 and (redis.call("OBJECT", "ENCODING", key) or "listpack")
  if encoding ~= "listpack" and encoding ~= "ziplist" then return batch.write(command, key, values) end
  local long = string.rep("-", 65)
  if command == "HSET" then
    redis.call("HSET", key, long, "")
    batch.write(command, key, values)
    redis.call("HDEL", key, long)
  else
    redis.call("ZADD", key, 0, long)
    batch.write(command, key, values)
    redis.call("ZREM", key, long)
  end
end

-- The values of these fields of a hash, as HMGET returns them.
--- (key: str, fields: table) -> table
function batch.read(key, fields)
  if #fields <= 4000 then return redis.call("HMGET", key, unpack(fields)) end
  local all = {}
  for i = 1, #fields, 4000 do
    local some = redis.call("HMGET", key, unpack(fields, i, math.min(#fields, i + 3999)))
    for j = 1, #some do all[i + j - 1] = some[j] end
  end
  return all
end
