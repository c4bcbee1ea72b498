-- The last call of a caller and what it was answered: a call that is sent again, its reply having been lost, is recognised.
--
--   producer:<p> STRING  number of the call and the answer; PX 60 s

-- What this call answered when it came before. A lower number is a copy that was under way for long, its caller has gone on
-- since: nobody reads the answer, but it must not be done again.
--- (producer: str, number: str) -> int | table | nil
--- uses: base
function repeated.answer(producer, number)
  local last = producer ~= "" and redis.call("GET", base .. "producer:" .. producer)
  local known, answer = string.match(last or "", "^(%d+) (.*)$")
  if known and tonumber(number) <= tonumber(known) then return cmsgpack.unpack(answer) end
end

--- (producer: str, number: str, answer: int | table) -> int | table
--- uses: base
function repeated.keep(producer, number, answer)
  if producer ~= "" then
    redis.call("SET", base .. "producer:" .. producer, number .. " " .. cmsgpack.pack(answer), "PX", 60000)
  end
  return answer
end
