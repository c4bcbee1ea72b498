-- The reports of running jobs: how far it is, and the lines of a log.
--
--   notes   HASH   id -> length in 2 bytes and text of the progress, then the lines; each line has server ms in 6
--                  bytes, its length in 2, and its text. The text of the progress has server ms in 6 bytes, and JSON.
--
-- The claim of a job with notes has the flag NOTES, and so has its record once it is written again. So a script that
-- ends a job looks for notes only where there are some. The notes of a finished job are stored before its result (see
-- `notes.close`).

notes = { LOG_BYTES = 16384 } -- of the lines of one job; the oldest lines are dropped

-- Replaces the progress of a job and appends lines. `text` has no times: the server adds them. Returns the JSON of the
-- new progress, which is empty if `text` has none.
--- (id: str, text: str, now: int) -> str
--- uses: base
function notes.add(id, text, now)
  local at = struct.pack(">I6", now)
  local old = redis.call("HGET", base .. "notes", id) or "\0\0"
  local size = struct.unpack(">I2", text)
  local progress, from = string.sub(text, 3, 2 + size), 3 + size
  local shown = size > 0 and at .. progress or string.sub(old, 3, 2 + struct.unpack(">I2", old))
  local lines = { string.sub(old, 3 + struct.unpack(">I2", old)) }
  while from < #text do
    local length = struct.unpack(">I2", text, from)
    lines[#lines + 1] = at .. string.sub(text, from, from + 1 + length)
    from = from + 2 + length
  end
  redis.call("HSET", base .. "notes", id, struct.pack(">I2", #shown) .. shown .. notes.latest(table.concat(lines)))
  return progress
end

-- The last lines, as many as may be kept.
--- (lines: str) -> str
function notes.latest(lines)
  local from = 1
  while #lines - from >= notes.LOG_BYTES do from = from + 8 + struct.unpack(">I2", lines, from + 6) end
  return string.sub(lines, from)
end

-- Removes the notes of a job that leaves the queue. Returns what precedes its result: the letter alone, or first the
-- notes.
--- (id: str, letter: str) -> str
--- uses: base
function notes.close(id, letter)
  local kept = redis.call("HGET", base .. "notes", id)
  if not kept then return letter end
  redis.call("HDEL", base .. "notes", id)
  return ending.NOTED .. struct.pack(">I2", #kept) .. kept .. letter
end
