-- Numbers of messages that do not count as unread: those that a member sent itself, and events. A limit of messages
-- does not count events either.
--
--   own  HASH  member          -> "<lo> <hi>:" and chunk <hi>, its last one; <lo>: the first one that is stored
--              member NUL <n>  -> chunk <n>
--              NUL             -> the same as of a member, for all events
--
-- A chunk has 256 numbers in ascending order, six bytes each; the last chunk may have fewer. Once the messages of a
-- chunk have been freed, the next call of its member that acknowledges something or begins another chunk deletes it. So
-- a message costs six bytes while it is stored.

own = { CHUNK = 256, BYTES = 6 }

events = { MOST_EVENTS = 10000 }
_events = { OF = "\0" }

_own_slice = { DROPPED = 500, FORGOTTEN = 3000, PROBES = 32 } -- chunks that one call deletes, or one command reads

--- (member: str, n: int) -> str
--- inline
function own.field(member, n)
  return member .. "\0" .. string.format("%d", n)
end

-- Returns the numbers of the first and the last chunk, and the last chunk; or nil.
--- (member: str) -> int | nil, int, str
--- uses: base
function own.last(member)
  local row = redis.call("HGET", base .. "own", member)
  if not row then return nil end
  local lo, hi, from = string.match(row, "^(%d+) (%d+):()")
  if not from or (#row - from + 1) % own.BYTES > 0 then error("a list of own messages cannot be read") end
  return tonumber(lo), tonumber(hi), string.sub(row, from)
end

--- (member: str, lo: int, hi: int, chunk: str)
--- uses: base
function own.store(member, lo, hi, chunk)
  redis.call("HSET", base .. "own", member, string.format("%d %d:", lo, hi) .. chunk)
end

-- The number at an index, from 1, of a chunk.
--- (chunk: str, index: int) -> int
function own.at(chunk, index)
  return (struct.unpack(">I6", chunk, (index - 1) * own.BYTES + 1))
end

-- Notes messages `first` to `last` of a member. Returns whether they began another chunk.
--- (member: str, first: int, last: int) -> bool
--- uses: base
function own.add(member, first, last)
  local lo, hi, chunk = own.last(member)
  if not lo then lo, hi, chunk = 1, 1, "" end
  if #chunk > 0 and own.at(chunk, #chunk / own.BYTES) >= first then -- the log began again below these numbers
    own.forget(member)
    lo, hi, chunk = hi + 1, hi + 1, ""
  end
  local has_new_chunk = false
  while first <= last do
    if #chunk >= own.CHUNK * own.BYTES then
      has_new_chunk = true
      redis.call("HSET", base .. "own", own.field(member, hi), chunk)
      chunk, hi = "", hi + 1
    end
    local added = { chunk }
    for number = first, math.min(last, first + own.CHUNK - #chunk / own.BYTES - 1) do
      added[#added + 1] = struct.pack(">I6", number)
    end
    first, chunk = first + #added - 1, table.concat(added)
  end
  own.store(member, lo, hi, chunk)
  return has_new_chunk
end

-- Returns how many messages of a member have numbers above `after`.
--- (member: str, after: int) -> int
--- uses: base
function own.above(member, after)
  local lo, hi, last = own.last(member)
  if not lo then return 0 end
  local chunk, found = last, 0
  if own.at(last, 1) > after and lo < hi then
    local from, to = lo, hi - 1
    chunk = redis.call("HGET", base .. "own", own.field(member, lo))
    if own.at(chunk, #chunk / own.BYTES) <= after then
      from, chunk = lo + 1, last
      local every = from <= to and 0 or 1
      while every ~= 1 do -- looks for the last chunk that begins at or below `after`, or the first one that is left
        every = math.ceil((to - from + 1) / _own_slice.PROBES)
        local fields = {}
        for n = from, to, every do fields[#fields + 1] = own.field(member, n) end
        local chunks, at = redis.call("HMGET", base .. "own", unpack(fields)), 1
        while chunks[at + 1] and own.at(chunks[at + 1], 1) <= after do at = at + 1 end
        from, chunk = from + (at - 1) * every, chunks[at]
        to = math.min(to, from + every - 1)
      end
    end
    if from < hi then found = (hi - from - 1) * own.CHUNK + #last / own.BYTES end
  end
  local low, high = 0, math.floor(#chunk / own.BYTES) -- `low` numbers are at or below `after`
  while low < high do
    local middle = math.floor((low + high + 1) / 2)
    if own.at(chunk, middle) <= after then low = middle else high = middle - 1 end
  end
  return found + #chunk / own.BYTES - low
end

-- Deletes chunks whose numbers are not above `upto`: some hundreds of them. Later calls delete the others.
--- (member: str, upto: int)
--- uses: base
function own.drop(member, upto)
  local lo, hi, last = own.last(member)
  if not lo then return end
  local fields, from = {}, lo
  while lo < hi and #fields < _own_slice.DROPPED do
    local chunk = redis.call("HGET", base .. "own", own.field(member, lo))
    if own.at(chunk, own.CHUNK) > upto then break end
    fields[#fields + 1], lo = own.field(member, lo), lo + 1
  end
  if lo == hi and own.at(last, #last / own.BYTES) <= upto then
    fields[#fields + 1] = member
  elseif lo > from then
    own.store(member, lo, hi, last)
  end
  if #fields > 0 then redis.call("HDEL", base .. "own", unpack(fields)) end
end

-- Deletes the chunks of a member: at most 3000 chunks, of 768,000 messages. Returns whether there is more. Raises
-- an error for a list with more chunks than are stored, before it deletes anything.
--- (member: str) -> bool
--- uses: base
function own.forget(member)
  local lo, hi, chunk = own.last(member)
  if not lo then return false end
  if hi - lo >= redis.call("HLEN", base .. "own") then error("a list of own messages cannot be read") end
  local to = math.min(hi - 1, lo + _own_slice.FORGOTTEN - 1)
  if to < hi - 1 then own.store(member, to + 1, hi, chunk) else redis.call("HDEL", base .. "own", member) end
  for from = lo, to, 1000 do
    local fields = {}
    for n = from, math.min(to, from + 999) do fields[#fields + 1] = own.field(member, n) end
    redis.call("HDEL", base .. "own", unpack(fields))
  end
  return to < hi - 1
end

-- Notes that the last message is an event.
--- (l: table)
--- uses: base
--- seldom
function events.add(l)
  l.has_removed = true
  if own.add(_events.OF, l.top, l.top) then own.drop(_events.OF, l.first - 1) end
end

-- Returns how many events have numbers above `after`.
--- (l: table, after: int) -> int
--- uses: base
function events.above(l, after)
  if not l.has_removed then return 0 end
  return math.min(own.above(_events.OF, after), l.top - after)
end

-- Returns the lowest number above which there are at most `most` messages (without events), or, if `of_events`, at most
-- `most` events.
--- (l: table, most: int, of_events: bool) -> int
--- uses: base
--- seldom
function events.lowest(l, most, of_events)
  local low, high = l.first - 1, l.top
  while low < high do
    local middle = math.floor((low + high) / 2)
    local found = events.above(l, middle)
    if not of_events then found = l.top - middle - found end
    if found <= most then high = middle else low = middle + 1 end
  end
  return low
end

-- Returns the number above which there are the last `n` messages, without events.
--- (l: table, n: int) -> int
--- uses: base
function events.floor(l, n)
  local to = l.top - n
  if to < l.first or not l.has_removed then return to end
  return events.lowest(l, n, false)
end

-- Returns the number up to which messages exceed the bound of events, or `first` - 1.
--- (l: table) -> int
--- uses: base
function events.overflow(l)
  if not l.has_removed or l.top - l.first < events.MOST_EVENTS then return l.first - 1 end
  if events.above(l, l.first - 1) <= events.MOST_EVENTS then return l.first - 1 end
  return events.lowest(l, events.MOST_EVENTS, true)
end

-- Returns how many messages above `after` do not count as unread for a member: its own, and events.
--- (l: table, member: str, after: int) -> int
--- uses: base
function log.uncounted(l, member, after)
  return math.min(own.above(member, after) + events.above(l, after), l.top - after)
end
