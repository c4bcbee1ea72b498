-- A job's record: a header that scripts read and rewrite, and a payload that they pass on unread.
--
--   byte   length  field        meaning
--   1      1       format       of this header
--   2      1       state        a letter, see `state` below
--   3      1       priority     0 most urgent … 9
--   4      1       flags        see `flag` below
--   5      6       generation   of the job's entry in a lane or in `delayed`; unique in the queue
--   11     6       enqueued     server ms
--   17     6       since        server ms: ready since, due at, or died at   (in a draft: the delay)
--   23     6       expires      server ms; 0: never, or was started in time  (in a draft: the time left)
--   29     2       attempts     that failed
--   31     2       deliveries   to a worker
--   33     1       recovery     what happened to workers that ran the job, see recovery.lua
--   34     5       ttl          of its result, ms
--   39     1+1     lengths of tenant and trace, which follow; then the payload
--
-- A client sends a draft, in which the server fills in state, generation and times. Numbers are big-endian.
--
-- An *entry* stands for a job in a lane or in `delayed`: the generation in hexadecimal digits, so that jobs that are
-- due at the same time keep their order; a letter for the size of the record; the id.

record = { FORMAT = 1 }

state = { READY = "r", DELAYED = "w", RUNNING = "x", DEAD = "d" }

flag = {
  CALL = 1, -- of a task; else a bare value
  DUE_IS_DATE = 2,
  EXPIRES_IS_DATE = 4,
  OWN_ID = 8, -- chosen by the user
  SUSPECT = 16, -- see recovery.lua
  REASON = 32, -- `reasons` has an entry for the job
}

_mask = { NO_DATES = 249, NO_SUSPECT = 239, NO_SUSPECT_NO_REASON = 207 }

size = { GENERATION_DIGITS = 10 }

_size_class = { FIRST = 97, BYTES = 1024 } -- "a" is up to 1 KiB, "b" up to 2 KiB, …

-- The fields from state to ttl, in order, and the tenant.
--- (body: str) -> …
function record.parse(body)
  local _, was, priority, flags, generation, enqueued, since, expires, attempts, deliveries, recovery, ttl, tenants =
    struct.unpack(">Bc1BBI6I6I6I6HHBI5B", body)
  return was, priority, flags, generation, enqueued, since, expires, attempts, deliveries, recovery, ttl,
    string.sub(body, 41, 40 + tenants)
end

-- Turns a client's draft into the record of an enqueued job.
--- (body: str, new_state: str, flags: int, generation: int, now: int, since: int, expires: int) -> str
--- inline
function record.enqueued(body, new_state, flags, generation, now, since, expires)
  return string.sub(body, 1, 1) .. new_state .. string.sub(body, 3, 3)
    .. struct.pack(">BI6I6I6I6", flags, generation, now, since, expires) .. string.sub(body, 29)
end

-- A copy of the record with this state and these numbers.
--- (body: str, new_state: str, flags: int, generation: int, since: int, attempts: int, deliveries: int,
---  recovery: int) -> str
function record.with(body, new_state, flags, generation, since, attempts, deliveries, recovery)
  return string.sub(body, 1, 1) .. new_state .. string.sub(body, 3, 3) .. struct.pack(">BI6", flags, generation)
    .. string.sub(body, 11, 16) .. struct.pack(">I6", since) .. string.sub(body, 23, 28)
    .. struct.pack(">HHB", attempts, deliveries, recovery) .. string.sub(body, 34)
end

-- The record of a job that is given to a worker: running, with one more delivery. It was started in time, so it cannot
-- expire any more.
--- (body: str) -> str
function record.claimed(body)
  local attempts, deliveries = struct.unpack(">HH", body, 29)
  return string.sub(body, 1, 1) .. state.RUNNING .. string.sub(body, 3, 22)
    .. struct.pack(">I6HH", 0, attempts, math.min(deliveries + 1, 65535)) .. string.sub(body, 33)
end

--- (body: str) -> str
--- inline
function record.state(body)
  return string.sub(body, 2, 2)
end

--- (header: str) -> int
--- inline
function record.flags(header)
  return string.byte(header, 4)
end

--- (flags: int, one: int) -> bool
--- inline
function record.has(flags, one)
  return bit.band(flags, one) > 0
end

--- (header: str) -> int
--- inline
function record.since(header)
  return struct.unpack(">I6", header, 17)
end

--- (header: str) -> int
--- inline
function record.expires(header)
  return struct.unpack(">I6", header, 23)
end

--- (header: str) -> int
--- inline
function record.ttl(header)
  return struct.unpack(">I5", header, 34)
end

--- (header: str) -> str
--- inline
function record.tenant(header)
  return string.sub(header, 41, 40 + string.byte(header, 39))
end

-- The part of a record that a claim keeps: everything up to the tenant.
--- (body: str) -> str
--- inline
function record.header(body)
  return string.sub(body, 1, 40 + string.byte(body, 39))
end

-- The record, or false if it does not exist. A record that is too short, because another program damaged it, counts as
-- missing.
--- (body: str | false) -> str | false
function record.intact(body)
  return body and #body >= 40 and #body >= 40 + string.byte(body, 39) + string.byte(body, 40) and body
end

--- (id: str) -> str | false
--- uses: base
function record.get(id)
  return record.intact(redis.call("HGET", base .. "jobs", id))
end

--- (generation: int, bytes: int, id: str) -> str
function record.entry(generation, bytes, id)
  local class = _size_class.FIRST
  while bytes > _size_class.BYTES do
    bytes = bytes / 2
    class = class + 1
  end
  return string.format("%010x%c", generation, class) .. id
end

--- (entry: str) -> str
--- inline
function record.entry_id(entry)
  return string.sub(entry, size.GENERATION_DIGITS + 2)
end

-- The most bytes that an entry's record can have, by the size letter of the entry.
--- (entry: str) -> int
function record.entry_bytes(entry)
  local class = string.byte(entry, size.GENERATION_DIGITS + 1)
  return class == _size_class.FIRST and _size_class.BYTES or _size_class.BYTES * 2 ^ (class - _size_class.FIRST)
end

-- Whether the entry still stands for this job. After the job is cancelled it does not, even if the id is enqueued
-- again: the new job has another generation.
--- (body: str | false, entry: str) -> bool
function record.is_ready(body, entry)
  return record.intact(body) and record.state(body) == state.READY
    and struct.unpack(">I6", body, 5) == tonumber(string.sub(entry, 1, size.GENERATION_DIGITS), 16)
end

-- Reserves `n` numbers and returns the one before them. Generations and claims are numbered by the same counter, so
-- that no number is used twice.
--- (n: int) -> int
--- uses: meta
function record.mint(n)
  return redis.call("HINCRBY", meta, "seq", n) - n
end

-- Returns an error if the queue's format is newer than this code's, else nil; and whether the queue is paused, because
-- one command reads both.
--- () -> error | nil, bool
--- uses: meta
function record.check()
  local found = redis.call("HMGET", meta, "format", "paused")
  local format = found[1]
  return format and tonumber(format) > record.FORMAT and redis.error_reply("PENSTOCKFORMAT " .. format) or nil, found[2]
end
