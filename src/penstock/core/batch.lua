-- Commands on many values. Lua hands a command at most some 8000 of them and raises beyond, in the middle of a script;
-- so where their number is not small by construction, they go in pieces.

-- Returns the last piece's reply.
--- (command: str, key: str, values: table) -> int
function batch.write(command, key, values)
  local reply
  for i = 1, #values, 4000 do
    reply = redis.call(command, key, unpack(values, i, math.min(#values, i + 3999)))
  end
  return reply
end

-- `n` members of this hash or sorted set are to be written. With few and short members it is a list, which the server
-- searches through for each of them; one long member makes it a table, and a table it remains.
--- (key: str, n: int)
function batch.index(key, n)
  local encoding = n > 32 and redis.call("OBJECT", "ENCODING", key)
  if encoding == "listpack" or encoding == "ziplist" then
    local long = string.rep("-", 65)
    if redis.call("TYPE", key).ok == "hash" then
      redis.call("HSET", key, long, "")
      redis.call("HDEL", key, long)
    else
      redis.call("ZADD", key, 0, long)
      redis.call("ZREM", key, long)
    end
  end
end

-- HMGET.
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
