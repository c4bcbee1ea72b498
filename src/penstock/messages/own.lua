-- The numbers of the messages that a member sent itself, so that they do not count as unread.
--
--   own  HASH  member          -> "<lo> <hi>": the first and the last of its chunks
--              member NUL <n>  -> chunk n: numbers in ascending order, six bytes each, 256 in all chunks but the last
--
-- A chunk is deleted when all readers of the member have acknowledged its numbers. So a message costs six bytes from its
-- send until its sender has acknowledged it.

own = { CHUNK = 256, BYTES = 6 }

--- (member: str, n: int) -> str
--- inline
function own.field(member, n)
  return member .. "\0" .. string.format("%d", n)
end

-- Returns the numbers of the first and the last chunk, or nil.
--- (member: str) -> int | nil, int
--- uses: base
function own.chunks(member)
  local lo, hi = string.match(redis.call("HGET", base .. "own", member) or "", "^(%d+) (%d+)$")
  return tonumber(lo), tonumber(hi)
end

-- The number at a place, from 1, of a chunk.
--- (chunk: str, place: int) -> int
function own.at(chunk, place)
  return (struct.unpack(">I6", chunk, (place - 1) * own.BYTES + 1))
end

-- Notes messages `first` to `last` of a member.
--- (member: str, first: int, last: int)
--- uses: base
function own.add(member, first, last)
  local lo, hi = own.chunks(member)
  if not lo then lo, hi = 1, 1 end
  local chunk = redis.call("HGET", base .. "own", own.field(member, hi)) or ""
  for number = first, last do
    if #chunk >= own.CHUNK * own.BYTES then
      redis.call("HSET", base .. "own", own.field(member, hi), chunk)
      chunk, hi = "", hi + 1
    end
    chunk = chunk .. struct.pack(">I6", number)
  end
  redis.call("HSET", base .. "own", own.field(member, hi), chunk, member, string.format("%d %d", lo, hi))
end

-- Returns how many messages of a member have numbers above `after`.
--- (member: str, after: int) -> int
--- uses: base
function own.above(member, after)
  local lo, hi = own.chunks(member)
  if not lo then return 0 end
  local from, to, chunk = lo, hi, nil
  while from < to do -- the last chunk that begins at or below `after`, or the first one
    local middle = math.floor((from + to + 1) / 2)
    local tried = redis.call("HGET", base .. "own", own.field(member, middle))
    if own.at(tried, 1) <= after then
      from, chunk = middle, tried
    else
      to = middle - 1
    end
  end
  chunk = chunk or redis.call("HGET", base .. "own", own.field(member, from))
  local low, high = 0, #chunk / own.BYTES -- `low` numbers are at or below `after`
  while low < high do
    local middle = math.floor((low + high + 1) / 2)
    if own.at(chunk, middle) <= after then low = middle else high = middle - 1 end
  end
  local found = #chunk / own.BYTES - low
  if from == hi then return found end
  local last = redis.call("HGET", base .. "own", own.field(member, hi))
  return found + (hi - from - 1) * own.CHUNK + #last / own.BYTES
end

-- Deletes chunks whose numbers are all at or below `upto`: some hundreds of them. Later calls delete the others.
--- (member: str, upto: int)
--- uses: base
function own.drop(member, upto)
  local lo, hi = own.chunks(member)
  if not lo then return end
  local fields, from = {}, lo
  while lo <= hi and #fields < 500 do
    local chunk = redis.call("HGET", base .. "own", own.field(member, lo))
    if own.at(chunk, #chunk / own.BYTES) > upto then break end
    fields[#fields + 1], lo = own.field(member, lo), lo + 1
  end
  if lo == from then return end
  if lo > hi then
    fields[#fields + 1] = member
  else
    redis.call("HSET", base .. "own", member, string.format("%d %d", lo, hi))
  end
  redis.call("HDEL", base .. "own", unpack(fields))
end

-- Deletes everything about a member.
--- (member: str)
--- uses: base
function own.forget(member)
  local lo, hi = own.chunks(member)
  if not lo then return end
  for n = lo, hi do redis.call("HDEL", base .. "own", own.field(member, n)) end
  redis.call("HDEL", base .. "own", member)
end
