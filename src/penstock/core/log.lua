-- A log: entries with numbers without gaps, in a stream. The oldest entries are freed; those that remain do not change.
--
--   <stream>  STREAM  <number>-<server ms>: by (who appended it), end (bytes of all entries up to this one), body; and
--                     a further field, if its noun wants one
--   <ends>    LIST    "<end> <server ms>" of each entry that is there. A log of large entries has it, so that nothing
--                     reads an entry only to free it, or to compare a position with it
--
-- The noun of a log keeps its numbers, and passes them as a table `l`. After each change it stores them:
--
--   stream, ends  the keys; `ends` is false for a log without that list
--   top, first    numbers of the last entry and of the oldest stored one
--   start         number before the first entry ever
--   at, freed     server ms of entry `top` and of entry `first` - 1; false: unknown
--   begun, ended  bytes of all entries ever freed, and ever appended: ended - begun bytes are stored
--
-- A function sets `l.is_lost` if an entry is missing that must be there, because the stream has vanished.
--
-- A *position* is the id of an entry, held outside the server. Because it has the server's time, no other entry with
-- this number has the same id. `log.locate` compares the two: they differ if the log began again since, because it was
-- deleted and created again, or because the server fell back to an older state.
--
-- The noun defines one function, for entries that it takes out of the stream before they are freed:
--
--   log.missing(l: table, number: int) -> table | nil    the entry, in the form of one of the stream; or nil

log = { ENTRY_OVERHEAD = 32 } -- about the bytes that the server needs to store an entry
_fields = { BY = 2, BODY = 6, VALUE = 8 } -- values of an entry that `append` wrote; VALUE: of its further field

-- Returns the numbers of a log that begins above number `start`.
--- (stream: str, ends: str | false, start: int) -> table
function log.begin(stream, ends, start)
  return {
    stream = stream, ends = ends, top = start, first = start + 1, start = start, at = false, freed = false, begun = 0,
    ended = 0,
  }
end

-- Appends an entry and returns its position; or nil, if the stream has vanished, and nothing was written. `field` and
-- `value`: a further field, or nil.
--- (l: table, now: int, by: str, body: str, field: str | nil, value: str | nil) -> str | nil
function log.append(l, now, by, body, field, value)
  local position, ended = string.format("%d-%d", l.top + 1, now), l.ended + log.size(by, body)
  local entry = { position, "by", by, "end", ended, "body", body, field, value }
  if l.first > l.top then
    redis.call("XADD", l.stream, unpack(entry))
  elseif not redis.call("XADD", l.stream, "NOMKSTREAM", unpack(entry)) then
    return nil
  end
  if l.ends then redis.call("RPUSH", l.ends, string.format("%d %d", ended, now)) end
  l.top, l.ended, l.at = l.top + 1, ended, now
  return position
end

-- The bytes that an entry counts against a limit: its own, and about what the server needs to store it.
--- (by: str, body: str) -> int
--- inline
function log.size(by, body)
  return #by + #body + log.ENTRY_OVERHEAD
end

-- Returns an entry that is not freed, or nil.
--- (l: table, number: int) -> table | nil
function log.entry(l, number)
  if l.entry_number ~= number then
    l.entry = redis.call("XRANGE", l.stream, number, number, "COUNT", 1)[1] or log.missing(l, number)
    l.entry_number = number
  end
  if not l.entry then l.is_lost = true end
  return l.entry
end

-- Returns a field of an entry, or "".
--- (entry: table, name: str) -> str
function log.field(entry, name)
  local fields = entry[2]
  for i = 1, #fields, 2 do
    if fields[i] == name then return fields[i + 1] end
  end
  return ""
end

-- Returns the server ms of an entry that is not freed, or nil if that is unknown.
--- (l: table, number: int) -> int | nil
function log.time_of(l, number)
  local ends = l.ends and redis.call("LINDEX", l.ends, number - l.first)
  if ends then return tonumber(string.match(ends, " (%d+)$")) end
  local entry = log.entry(l, number)
  return entry and tonumber(string.match(entry[1], "%d+$"))
end

-- Returns the number of a position ("": 0), or nil if the log began again since.
--- (l: table, position: str) -> int | nil
function log.locate(l, position)
  if position == "" then return 0 end
  local number, at = string.match(position, "^(%d+)-(%d+)$")
  number, at = tonumber(number), tonumber(at)
  if number <= l.start or number > l.top then return nil end
  if number >= l.first then
    local found = number == l.top and l.at or log.time_of(l, number)
    return (not found or found == at) and number or nil
  end
  return (number < l.first - 1 or not l.freed or l.freed == at) and number or nil
end

-- Returns the position of the entry with this number, or "" if that is unknown.
--- (l: table, number: int) -> str
function log.position(l, number)
  local at
  if number == l.top then
    at = l.at
  elseif number == l.first - 1 then
    at = l.freed
  elseif number >= l.first then
    at = log.time_of(l, number)
  end
  return at and number > l.start and string.format("%d-%d", number, at) or ""
end

-- Appends to `into` the entries after number `position`, each as number, ms, by, body, and the value of its further
-- field or "": up to `limit` entries and `room` bytes of bodies, but at least one entry if there is one. Returns the
-- number of the last one. Reads ten at a time, so that it reads few large bodies that do not fit.
--- (l: table, position: int, limit: int, room: int, into: table) -> int
function log.read(l, position, limit, room, into)
  local head = #into
  while limit > 0 and position < l.top do
    local some, i = redis.call("XRANGE", l.stream, position + 1, "+", "COUNT", math.min(limit, 10)), 1
    if #some == 0 then
      l.is_lost = true
      return position
    end
    while limit > 0 and some[i] do
      local entry = some[i]
      local number, at = string.match(entry[1], "^(%d+)-(%d+)$")
      if tonumber(number) == position + 1 then
        i = i + 1
      else
        entry = log.missing(l, position + 1)
        if not entry then
          l.is_lost = true
          return position
        end
        at = string.match(entry[1], "%d+$")
      end
      local fields = entry[2]
      room = room - #fields[_fields.BODY]
      if room < 0 and #into > head then return position end
      position, limit = position + 1, limit - 1
      into[#into + 1] = position
      into[#into + 1] = tonumber(at)
      into[#into + 1] = fields[_fields.BY]
      into[#into + 1] = fields[_fields.BODY]
      into[#into + 1] = fields[_fields.VALUE] or ""
    end
  end
  return position
end

-- Returns the number of the last entry that exceeds a bound: it was appended at or before server ms `before` (0: no
-- such bound), or with it more than `bytes` are stored (0: no such bound). Examines at most a thousand entries,
-- beginning at number `from`, and returns `from` - 1 if none exceeds a bound. The second value is whether later ones
-- may.
--- (l: table, from: int, bytes: int, before: int) -> int, bool
--- seldom
function log.last_exceeding(l, from, bytes, before)
  local to, most = from - 1, from + 999
  while to < most do
    local some = redis.call("XRANGE", l.stream, to + 1, "+", "COUNT", 10)
    for i = 1, #some do
      local at = tonumber(string.match(some[i][1], "%d+$"))
      local by, body = log.field(some[i], "by"), log.field(some[i], "body")
      local kept = l.ended - tonumber(log.field(some[i], "end")) + log.size(by, body)
      if not (before > 0 and at <= before or bytes > 0 and kept > bytes) then return to, false end
      to = tonumber(string.match(some[i][1], "^%d+"))
    end
    if #some < 10 then return to, false end
  end
  return to, true
end

-- Frees all entries up to this number.
--- (l: table, to: int)
function log.free_to(l, to)
  if to >= l.top then
    redis.call("UNLINK", unpack({ l.stream, l.ends or nil }))
    l.begun, l.freed = l.ended, l.at
  else
    local ends = l.ends and redis.call("LINDEX", l.ends, to - l.first)
    if ends then
      redis.call("LTRIM", l.ends, to - l.first + 1, -1)
      local ended, at = string.match(ends, "^(%d+) (%d+)$")
      l.begun, l.freed = tonumber(ended), tonumber(at)
    else
      local entry = log.entry(l, to)
      l.begun = entry and tonumber(log.field(entry, "end")) or l.begun
      l.freed = entry and tonumber(string.match(entry[1], "%d+$")) or false
    end
    redis.call("XTRIM", l.stream, "MINID", to + 1)
  end
  l.first = to + 1
end
