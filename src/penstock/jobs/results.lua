-- How jobs ended. A result is kept for the time that its job asked for.
--
--   results        HASH   id -> end of its time, a letter (see `ending`), and the result or a text
--   ends:<class>   LIST   end and id of the results whose ttl has the same power of two; the class is its exponent
--   row            (row.lua)  the classes that are in use, and the earliest end
--
-- A result whose time is over counts as missing. Scripts that finish jobs remove such results from the heads of the
-- lists: more than they add, so that the hash does not grow. Within a list the ends are almost in order; where they are
-- not, a result stays for at most twice its time. An entry whose end differs from that of the stored result is skipped:
-- the id was used again.

-- None of these letters is the letter of a state.
ending = { COMPLETED = "c", CANCELLED = "n", EXPIRED = "e", DROPPED = "o", NOTED = "N" } -- NOTED: notes.lua

_kept = layout { ends = "I6", ending = "*" } -- server ms

_ended = layout { letter = "c1", text = "*" }

_noted = layout { letter = "c1", notes = "Hc0", ending = "*" }

_end = layout { at = "I6", id = "*" } -- in a list

-- LEAST: how many results one script removes at least; IDLE: how many if the worker is idle. A script reads at most
-- PIECE of them at once, and stops after BYTES, because reading a megabyte takes 2 ms. Milliseconds between two
-- removals: PAUSE while no job runs, BUSY_PAUSE while many are overdue.
_trim = { LEAST = 100, IDLE = 1000, PIECE = 25, BYTES = 262144, PAUSE = 60000, BUSY_PAUSE = 100 }

-- Collects a result. `results.write` stores it.
--- (s: table, id: str, letter: str, text: str, ttl: int)
function results.keep(s, id, letter, text, ttl)
  local kept, until_ = s.results, struct.pack(">I6", s.now + ttl)
  kept[#kept + 1], kept[#kept + 2] = id, until_ .. letter .. text
  local _, class = math.frexp(ttl)
  local ends = s.ends[class]
  if not ends then
    ends = {}
    s.ends[class] = ends
  end
  ends[#ends + 1] = until_ .. id
  row.not_after(s.row, _row.NEXT_RESULT, s.now + ttl)
end

-- Stores the collected results.
--- (s: table)
--- uses: base
function results.write(s)
  if #s.results == 0 then return end
  batch.add("HSET", base .. "results", s.results)
  for class, ends in pairs(s.ends) do
    batch.write("RPUSH", base .. "ends:" .. class, ends)
    if s.row[_row.RESULT_CLASSES] % 2 ^ (class + 1) < 2 ^ class then
      s.row[_row.RESULT_CLASSES] = s.row[_row.RESULT_CLASSES] + 2 ^ class
    end
  end
  s.results, s.ends = {}, {}
end

-- A letter and a text, or false if nothing is kept.
--- (id: str, now: int) -> str | false
--- uses: base
function results.get(id, now)
  local kept = redis.call("HGET", base .. "results", id)
  return kept and #kept >= _kept.AT_ENDING and _kept.ends(kept) > now and _kept.ending(kept)
end

-- Deletes the result and the output of an earlier job with this id, before the id is used again.
--- (id: str)
--- uses: base
function results.forget(id)
  if redis.call("HDEL", base .. "results", id) == 1 then output.remove(id) end
end

-- The letter for how a job ended, from what `results.get` returned. Notes may precede it (notes.lua).
--- (kept: str) -> str
--- seldom
function results.letter(kept)
  local letter = _ended.letter(kept)
  return letter ~= ending.NOTED and letter or _ended.letter(_noted.ending(kept))
end

-- The result or the text, from what `results.get` returned.
--- (kept: str) -> str
function results.text(kept)
  if _ended.letter(kept) == ending.NOTED then kept = _noted.ending(kept) end
  return _ended.text(kept)
end

-- Removes up to `limit` results whose time is over, fewer if they are large, and at least one of each class.
--- (s: table, limit: int)
--- uses: base
function results.trim(s, limit)
  local r = s.row
  if r[_row.NEXT_RESULT] == 0 or r[_row.NEXT_RESULT] > s.now then return end
  local next_, room = math.huge, { left = limit, bytes = _trim.BYTES }
  for class = 0, 47 do
    if r[_row.RESULT_CLASSES] % 2 ^ (class + 1) >= 2 ^ class then
      local left = results.trim_class(s, class, room)
      if not left then
        r[_row.RESULT_CLASSES] = r[_row.RESULT_CLASSES] - 2 ^ class
      else
        next_ = math.min(next_, left)
      end
    end
  end
  r[_row.NEXT_RESULT] = next_ < math.huge and next_ or 0
end

-- Removes the overdue results of one class, as many as `room` has left. Returns the end of the next one; nil if the
-- list is empty.
--- (s: table, class: int, room: table) -> int | nil
--- uses: base
--- seldom
function results.trim_class(s, class, room)
  local key = base .. "ends:" .. class
  local heads, ids, n = redis.call("LRANGE", key, 0, math.max(1, room.left)), {}, 0
  while n < math.max(1, room.left) and heads[n + 1] and _end.at(heads[n + 1]) <= s.now do
    n = n + 1
    ids[n] = _end.id(heads[n])
  end
  local done, overdue = 0, {}
  while done < n and (done == 0 or room.bytes > 0) do
    local last = done
    repeat
      last = last + 1
      room.bytes = room.bytes - redis.call("HSTRLEN", base .. "results", ids[last])
    until last == n or last - done == _trim.PIECE or room.bytes <= 0
    local kept = redis.call("HMGET", base .. "results", unpack(ids, done + 1, last))
    for i = done + 1, last do
      local one = kept[i - done]
      if one and _kept.ends_bytes(one) == _end.at_bytes(heads[i]) then overdue[#overdue + 1] = ids[i] end
    end
    done = last
  end
  room.left = room.left - done
  if done > 0 then
    batch.write("HDEL", base .. "results", overdue)
    redis.call("LPOP", key, done)
  end
  return heads[done + 1] and _end.at(heads[done + 1]) or nil
end

-- Removes `n` stored results. Each one is the oldest of its class, taken from the class whose oldest result ends first.
-- Entries of ids that were used again count as results.
--- (s: table, n: int)
--- uses: base
--- seldom
function results.drop(s, n)
  local lists, ids, ends = {}, {}, {}
  for class = 0, 47 do
    if s.row[_row.RESULT_CLASSES] % 2 ^ (class + 1) >= 2 ^ class then
      lists[#lists + 1] = { entries = redis.call("LRANGE", base .. "ends:" .. class, 0, n - 1), class = class, at = 1 }
    end
  end
  while #ids < n do
    local first
    for i = 1, #lists do
      local entry = lists[i].entries[lists[i].at]
      if entry and (not first or entry < first.entries[first.at]) then first = lists[i] end
    end
    if not first then break end
    local entry = first.entries[first.at]
    ids[#ids + 1], ends[#ends + 1] = _end.id(entry), _end.at_bytes(entry)
    first.at = first.at + 1
  end
  if #ids == 0 then return end
  local kept, gone = batch.read(base .. "results", ids), {}
  for i = 1, #ids do
    if kept[i] and _kept.ends_bytes(kept[i]) == ends[i] then gone[#gone + 1] = ids[i] end
  end
  batch.write("HDEL", base .. "results", gone)
  for i = 1, #lists do
    if lists[i].at > 1 then redis.call("LPOP", base .. "ends:" .. lists[i].class, lists[i].at - 1) end
  end
end
