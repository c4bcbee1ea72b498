-- What running jobs report: their progress, and the lines of a log.
--
--   notes   HASH   id -> length in 2 bytes and text of the progress, then the lines; each line has server ms in 6
--                  bytes, its length in 2, and its text. The text of the progress has server ms in 6 bytes, and JSON.
--
-- The claim of a job with notes has the flag NOTES, and its record has it from the next time that it is written. So a
-- script that ends a job looks for notes only where there are some. The notes of a finished job are stored before its
-- result (see `notes.close`).

_notes = layout { progress = "Hc0", lines = "*" }

_line = layout { at = "I6", text = "Hc0" } -- a worker sends it without `at`

_of_job = { RECORD = 1, ENDED = 3, NOTES = 5, EXPIRES = 7 } -- positions in what `inspect.job` returns

notes = { LOG_BYTES = 16384 } -- of the lines of one job; the oldest lines are dropped

-- Replaces the progress of a job and appends lines. `text` has no times: the server adds them. Returns the JSON of the
-- new progress, which is empty if `text` has none, and whether there are new lines.
--- (id: str, text: str, now: int) -> str, bool
--- uses: base
function notes.add(id, text, now)
  local at = struct.pack(">I6", now)
  local old = redis.call("HGET", base .. "notes", id) or "\0\0"
  local progress, new = _notes.progress(text), _notes.lines(text)
  local shown = progress ~= "" and at .. progress or _notes.progress(old)
  local lines, from = { _notes.lines(old) }, 1
  while from < #new do
    local length = struct.unpack(">H", new, from)
    lines[#lines + 1] = at .. string.sub(new, from, from + 1 + length)
    from = from + 2 + length
  end
  local kept = notes.latest(table.concat(lines))
  redis.call("HSET", base .. "notes", id, _notes.pack({ progress = shown, lines = kept }))
  return progress, new ~= ""
end

-- The last lines, as many as may be kept.
--- (lines: str) -> str
function notes.latest(lines)
  local from = 1
  while #lines - from >= notes.LOG_BYTES do
    from = from + _line.AT_TEXT + 1 + struct.unpack(">H", lines, from + _line.AT_TEXT - 1)
  end
  return string.sub(lines, from)
end

-- Removes the notes of a job that leaves the queue. Returns the text that its result begins with: `letter`, or, if the
-- job had notes, the letter NOTED, the notes and then `letter`.
--- (id: str, letter: str) -> str
--- uses: base
function notes.close(id, letter)
  local kept = redis.call("HGET", base .. "notes", id)
  if not kept then return letter end
  redis.call("HDEL", base .. "notes", id)
  return _noted.pack({ letter = ending.NOTED, notes = kept, ending = letter })
end

-- The notes of a job. Returns { 1 if the job is not done, 1 if there is such a job or its result is kept, ms until it
-- expires (-1: it does not), notes or false }. With `register` 1, the listener at `address` is notified of further
-- lines and of the end of the job; else it is deregistered.
--- keys: base meta
--- args: given: int, id: str, address: str, register: int
--- flags: allow-oom
--- frame: row
function script.read_log(base, meta, given, id, address, register)
  local found = inspect.job(id, s.now)
  local body, done, kept = found[_of_job.RECORD], found[_of_job.ENDED], found[_of_job.NOTES]
  local lives = body and record.state(body) ~= state.DEAD
  listeners.set(s, id, address, register == 1, lives)
  if done and _noted.letter(done) == ending.NOTED then kept = _noted.notes(done) end
  return { lives and 1 or 0, (body or done) and 1 or 0, found[_of_job.EXPIRES] or -1, kept or false }
end
