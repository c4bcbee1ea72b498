-- Commands on many values. Lua hands a command at most some 8000 of them and raises beyond, in the middle of a script;
-- so where their number is not small by construction, they go in pieces.

--- function batch.write(command: str, key: str, values: table) -> int
-- Returns the last piece's reply.
local reply
for i = 1, #values, 4000 do
  reply = redis.call(command, key, unpack(values, i, math.min(#values, i + 3999)))
end
return reply

--- function batch.read(key: str, fields: table) -> table
-- HMGET.
if #fields <= 4000 then return redis.call("HMGET", key, unpack(fields)) end
local all = {}
for i = 1, #fields, 4000 do
  local some = redis.call("HMGET", key, unpack(fields, i, math.min(#fields, i + 3999)))
  for j = 1, #some do all[i + j - 1] = some[j] end
end
return all
