-- Durable steps: what a job has recorded while it ran, so that it is not done again when the job runs again.
--
--   steps:<id>  HASH  "=" and a step -> letter (`recorded`), server ms, length and name, and a value: see `steps.pack`
--                     "!" and a signal -> its payloads that no step has received, in MessagePack, the first one first
--                     "" -> the bytes of all values; 1 if the job sleeps until its children have ended (children.lua),
--                     else 0; and the signal that it waits for
--                     "~" -> code and name of the release that recorded the first step (releases.lua)
--
-- A running job records steps under its claim, so a worker that has lost the job records nothing. If a job has a field
-- here, its claim or its record has the flag NOTES. So the scripts that end a job read this key only if there is
-- something to delete.
--
-- `sleep` and `wait_for` end the run, with the verb `suspend`. The job is SLEEPING, among the delayed ones, until the
-- time is over, and a signal makes it ready at once. Then it runs again: it receives the steps that it has recorded,
-- and continues after them. If both a signal and the time-out arrive, the one that was recorded first counts.

recorded = {
  RESULT = "r", FAILED = "f", -- of a function: what it returned; the error that the task has caught
  WAITS = "w", -- for a signal, or until a time
  SIGNAL = "s", TIMEOUT = "t",
  CHILD = "c", ANSWER = "a", FAILURE = "e", -- of a child: it has not ended; what it returned; why it did not complete
  PATCH = "p", -- of a changed program: the job has taken the new branch. Its key begins with "%"
}

-- The most bytes for one job; bytes that each value counts in addition; server ms in the year 6429.
_durable = { BYTES = 1048576, EACH = 256, FOREVER = 140737488355328 }

_step = layout { kind = "c1", at = "I6", name = "Bc0", value = "*" }

_steps = layout { bytes = "I4", awaits = "B", waits_for = "*" } -- under ""

_first_release = layout { code = "Bc0", name = "*" } -- under "~"

_signed = layout { sign = "c1", name = "*" } -- "=" and a step, "!" and a signal

_suspension = layout { step = "Hc0", signal = "Bc0" } -- what a worker sends

--- (kind: str, now: int, name: str, value: str) -> str
--- inline
function steps.pack(kind, now, name, value)
  return _step.pack({ kind = kind, at = now, name = name, value = value })
end

-- The bytes of all values of a job, the signal that it waits for, and 1 if it sleeps until its children have ended.
--- (key: str) -> int, str, int
function steps.own(key)
  local own = redis.call("HGET", key, "")
  if not own then return 0, "", 0 end
  return _steps.bytes(own), _steps.waits_for(own), _steps.awaits(own)
end

-- Notes the release of the worker that records the first step of a job.
--- (incarnation: str, id: str)
--- uses: base
--- seldom
function steps.note_release(incarnation, id)
  local its = releases.of(incarnation)
  if its and its.code ~= "" then
    redis.call("HSETNX", base .. "steps:" .. id, "~", _first_release.pack({ code = its.code, name = its.release }))
  end
end

-- The name of the release that has begun a job, if that is not `code` and has a live worker; else nil.
--- (id: str, code: str) -> str | nil
--- uses: base
--- seldom
function steps.first_release(id, code)
  local first = redis.call("HGET", base .. "steps:" .. id, "~")
  if not first then return nil end
  local its = _first_release.fields(first)
  return its.code ~= code and releases.count(its.code) > 0 and _first_release.name(first) or nil
end

-- Records a step, and that the job waits for a signal (empty: for none).
--- (key: str, step: str, packed: str, waits_for: str)
function steps.record(key, step, packed, waits_for)
  local bytes = steps.own(key)
  redis.call("HSET", key, "=" .. step, packed, "",
    _steps.pack({ bytes = bytes + #packed + _durable.EACH, awaits = 0, waits_for = waits_for }))
end

-- Takes the first signal of this name. Returns its payload, or nil.
--- (key: str, name: str) -> str | nil
function steps.take_signal(key, name)
  local packed = redis.call("HGET", key, "!" .. name)
  if not packed then return nil end
  local payloads = cmsgpack.unpack(packed)
  local first = table.remove(payloads, 1)
  if #payloads == 0 then
    redis.call("HDEL", key, "!" .. name)
  else
    redis.call("HSET", key, "!" .. name, cmsgpack.pack(payloads))
  end
  local bytes = steps.own(key)
  bytes = math.max(0, bytes - #first - _durable.EACH)
  redis.call("HSET", key, "", _steps.pack({ bytes = bytes, awaits = 0, waits_for = "" }))
  return first
end

-- Sets the flag NOTES in the claim of a job that has steps or signals.
--- (incarnation: str, id: str, held: str)
--- uses: base
function steps.mark_claim(incarnation, id, held)
  if record.has(claim.flags(held), flag.NOTES) then return end
  redis.call("HSET", base .. "held:" .. incarnation, id, lease.noted(held))
end

-- Records that a job waits from now on, for `ms` milliseconds (0: without an end). `text` has the step that waits, and
-- the signal that ends the wait (empty: only the time ends it). A wait that an earlier run recorded keeps its end.
-- Without a step, the job waits until its children have ended. Returns for how many ms the job is to sleep.
--- (s: table, incarnation: str, id: str, ms: int, text: str) -> int
--- uses: base
--- seldom
function steps.suspend(s, incarnation, id, ms, text)
  local r = s.row
  if not r[_row.SLEEPING] then -- an array without gaps is packed as one
    row.widen(r, _row.SLEEPING)
    r[_row.SLEEPING] = 0
  end
  local sent, key = _suspension.fields(text), base .. "steps:" .. id
  local step, name = sent.step, sent.signal
  if step == "" then return children.suspend(s, id) end
  local known, until_ = redis.call("HGET", key, "=" .. step), ms > 0 and s.now + ms or 0
  if known then until_ = tonumber(_step.value(known)) or 0 end
  local arrived = name ~= "" and redis.call("HEXISTS", key, "!" .. name) == 1
  steps.record(key, step, steps.pack(recorded.WAITS, s.now, name, string.format("%d", until_)), arrived and "" or name)
  steps.note_release(incarnation, id)
  if arrived then return 0 end
  return math.max(0, (until_ > 0 and until_ or _durable.FOREVER) - s.now)
end

-- The steps that a running job has recorded: { server ms, release or false, step, record of the step, … }. The release
-- is the one that recorded the first step. The table is empty if the incarnation does not hold the job.
--- keys: base meta
--- args: given: int, incarnation: str, token: str
--- flags: allow-oom
--- frame: read
function script.load_steps(base, meta, given, incarnation, token)
  if not lease.held_alive(incarnation, token, s.now) then return {} end
  local found, reply = redis.call("HGETALL", base .. "steps:" .. token.id(token)), { s.now, false }
  for i = 1, #found, 2 do
    if found[i] == "~" then
      reply[2] = _first_release.name(found[i + 1])
    elseif _signed.sign(found[i]) == "=" then
      reply[#reply + 1], reply[#reply + 2] = _signed.name(found[i]), found[i + 1]
    end
  end
  return reply
end

-- Records how a step ended: `kind` is RESULT, FAILED or PATCH. Returns { 1 }; { 1, record of the step } if it was
-- recorded before, in which case that record stays; { 0 } if the incarnation does not hold the job; { -1, bytes } if
-- the value exceeds the limit of the job, which has recorded that many bytes already. May be sent again.
--- keys: base meta
--- args: given: int, incarnation: str, token: str, step: str, kind: str, name: str, value: str
--- flags: allow-oom
--- frame: read
function script.record_step(base, meta, given, incarnation, token, step, kind, name, value)
  local held = lease.held_alive(incarnation, token, s.now)
  if not held then return { 0 } end
  local id = token.id(token)
  local key = base .. "steps:" .. id
  local known = redis.call("HGET", key, "=" .. step)
  if known then return { 1, known } end
  local bytes = steps.own(key)
  if bytes + #value + _durable.EACH > _durable.BYTES then return { -1, bytes } end
  steps.record(key, step, steps.pack(kind, s.now, name, value), "")
  steps.mark_claim(incarnation, id, held)
  if bytes == 0 then steps.note_release(incarnation, id) end
  return { 1 }
end

-- Gives a step of a running job the first signal of this name, or the time-out if the step has waited until its end.
-- Returns { 1, record of the step }; { 2 } if the step has to wait; { 0 } if the incarnation does not hold the job. May
-- be sent again.
--- keys: base meta
--- args: given: int, incarnation: str, token: str, step: str, name: str
--- flags: allow-oom
--- frame: read
function script.receive_signal(base, meta, given, incarnation, token, step, name)
  local held = lease.held_alive(incarnation, token, s.now)
  if not held then return { 0 } end
  local id = token.id(token)
  local key = base .. "steps:" .. id
  local known = redis.call("HGET", key, "=" .. step)
  local until_ = 0
  if known then
    if _step.kind(known) ~= recorded.WAITS then return { 1, known } end
    until_ = tonumber(_step.value(known)) or 0
  end
  local payload = steps.take_signal(key, name)
  local packed
  if payload then
    packed = steps.pack(recorded.SIGNAL, s.now, name, payload)
  elseif until_ > 0 and until_ <= s.now then
    packed = steps.pack(recorded.TIMEOUT, s.now, name, "")
  else
    return { 2 }
  end
  steps.record(key, step, packed, "")
  steps.mark_claim(incarnation, id, held)
  return { 1, packed }
end

-- Stores a signal for a job, and makes the job ready if it waits for a signal of this name. Returns `sent`; `full` if
-- the job stores too much already; `done` if it has finished; or `none` if there is no such job.
--- keys: base meta
--- args: caller: str, number: int, given: int, id: str, name: str, payload: str
--- frame: once
function script.signal(base, meta, caller, number, given, id, name, payload)
  local body = record.get(id)
  if not body then return results.get(id, s.now) and "done" or "none" end
  local key = base .. "steps:" .. id
  local bytes, waits_for, awaits = steps.own(key)
  if bytes + #payload + _durable.EACH > _durable.BYTES then return "full" end
  local packed = redis.call("HGET", key, "!" .. name)
  local payloads = packed and cmsgpack.unpack(packed) or {}
  payloads[#payloads + 1] = payload
  redis.call("HSET", key, "!" .. name, cmsgpack.pack(payloads))
  local owner = redis.call("HGET", base .. "owners", id)
  local incarnation = owner and lease.incarnation(owner)
  local wakes = waits_for == name and name ~= "" and not incarnation and record.state(body) == state.SLEEPING
  redis.call("HSET", key, "",
    _steps.pack({ bytes = bytes + #payload + _durable.EACH, awaits = awaits, waits_for = wakes and "" or waits_for }))
  if incarnation then
    local held = lease.claim(incarnation, id)
    if held then steps.mark_claim(incarnation, id, held) end
  elseif wakes then
    steps.wake(s, id, body)
  elseif not record.has(record.flags(body), flag.NOTES) then
    local flags = bit.bor(record.flags(body), flag.NOTES)
    redis.call("HSET", base .. "jobs", id, record.with(body, { flags = flags }))
  end
  return "sent"
end

-- Makes a sleeping job ready.
--- (s: table, id: str, body: str)
--- uses: base
function steps.wake(s, id, body)
  local was, generation = record.fields(body), row.mint(s.row, 1) + 1
  redis.call("ZREM", base .. "delayed", record.entry(was.generation, body, id))
  local new_state, flags = job.make_ready(s, false, record.entry(generation, body, id),
    bit.bor(was.flags, flag.NOTES), was.priority, was.tenant, s.now, _count.SLEEPING, body)
  redis.call("HSET", base .. "jobs", id, record.moved(body, new_state, generation, s.now, flags))
end

-- The steps and the signals of a job, as stored: field, value, …
--- keys: base meta
--- args: id: str
--- flags: no-writes
--- frame: format
function script.show_steps(base, meta, id)
  return redis.call("HGETALL", base .. "steps:" .. id)
end
