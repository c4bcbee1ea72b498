-- The last call of a caller and what it was answered: a call that is sent again, its reply having been lost, is recognised.
--
--   producer:<p> STRING  number of the call and the answer; PX 60 s

--- function repeated.answer(producer: str, number: str) -> int | table | nil
-- What this call answered when it came before.
local last = producer ~= "" and redis.call("GET", base .. "producer:" .. producer)
local length = #number + 1
if last and string.sub(last, 1, length) == number .. " " then return cmsgpack.unpack(string.sub(last, length + 1)) end

--- function repeated.keep(producer: str, number: str, answer: int | table) -> int | table
if producer ~= "" then
  redis.call("SET", base .. "producer:" .. producer, number .. " " .. cmsgpack.pack(answer), "PX", 60000)
end
return answer
