-- A job's record: a header that scripts read, and a payload that they pass on unread.
--
--   byte   length  field        meaning
--   1      1       format       of this header
--   2      1       state        a letter, see `state` below            (in a draft: see `draft`)
--   3      6       generation   of the job's entry; unique in the queue
--   9      6       enqueued     server ms
--   15     6       since        server ms: ready since, due at, or died at   (in a draft: the delay)
--   21     6       expires      server ms; 0: never, or was started in time  (in a draft: the time left)
--   27     1       flags        see `flag` below
--   28     1       priority     0 most urgent … 9
--   29     2       attempts     that failed
--   31     2       deliveries   to a worker, before the present one
--   33     1       losses       halves: 1 if its supervisor died too, else 2 (recovery.lua)
--   34     1       crashes      charged to the job, see recovery.lua
--   35     1       host deaths  trials that ended together with their host
--   36     1       powers       a bit for each power of the job (`power`); 0 for most jobs
--   37     5       ttl          of its result, ms
--   42     1+n     tenant       its length, and the text; then the same for task and trace
--   …      2+n     powers       only if the byte above is not 0: a length, and a map in MessagePack (`record.unique`,
--                               `record.limits`)
--   …      n       payload
--
-- The record of a running job does not change: `owners` (lease.lua) says that it runs. So a record says ready for ready
-- and for running jobs.
--
-- A client sends a draft, in which the server fills in the fields before the flags. Numbers are big-endian.
--
-- An *entry* stands for a job in a lane, in `delayed` or in `suspects`: the generation, so that jobs that are due at
-- the same time keep their order; a byte for the size of the record; the id. Each transition that puts an entry
-- anywhere gives the job a new generation. So at most one entry names the generation of a record, and a script that
-- takes that entry out of its list knows that the job is neither running nor anywhere else.

record = { FORMAT = 2 }

state = { READY = "r", DELAYED = "w", RUNNING = "x", DEAD = "d", PARKED = "p", WAITING = "a" }

draft = { DUE_IS_DATE = 1, EXPIRES_IS_DATE = 2, OWN_ID = 4 } -- OWN_ID: chosen by the user

flag = {
  CALL = 1, -- of a task; else a bare value
  SUSPECT = 2, -- see recovery.lua
  REASON = 4, -- `reasons` has an entry for the job
  NOTES = 8, -- `notes` or `steps:` has something of the job; a running job may have it in its claim alone (notes.lua)
  LIMITED = 16, -- it has limits; the next two bits say how many of them it has passed (limits.lua)
  UNIQUE = 128, -- it has a unique key (unique.lua). The highest bit, so that flags with it are 128 or more
}

power = { UNIQUE_KEY = 1, LIMITS = 2, AFTER_OTHERS = 4 } -- AFTER_OTHERS: waits for jobs (flow.lua)

_mask = { NO_SUSPECT = 253, NO_SUSPECT_NO_REASON = 249 }

-- The size class of an entry: up to 1 KiB, up to 2 KiB, … MORE is set in the first entry of a lane that has others.
_size_class = { BYTES = 1024, MORE = 128 }

_most = { SHORT = 65535, BYTE = 255 } -- what the counts in a header can hold

-- State, generation, enqueued, since, expires, flags, priority, attempts, deliveries, losses, crashes, host deaths,
-- ttl, tenant.
--- (body: str) -> …
function record.parse(body)
  return struct.unpack(">xc1I6I6I6I6BBHHBBBxI5Bc0", body)
end

-- Turns a client's draft into the record of an enqueued job.
--- (body: str, new_state: str, generation: int, now: int, since: int, expires: int) -> str
--- inline
function record.enqueued(body, new_state, generation, now, since, expires)
  return struct.pack(">Bc1I6I6I6I6", record.FORMAT, new_state, generation, now, since, expires) .. string.sub(body, 27)
end

-- A copy of the record of a job that goes back or dies. It was started in time, so it cannot expire any more.
--- (body: str, new_state: str, generation: int, since: int, flags: int, attempts: int, deliveries: int, losses: int,
---  crashes: int, hosts: int) -> str
function record.with(body, new_state, generation, since, flags, attempts, deliveries, losses, crashes, hosts)
  return struct.pack(">Bc1I6", record.FORMAT, new_state, generation) .. string.sub(body, 9, 14)
    .. struct.pack(">I6I6B", since, 0, flags) .. string.sub(body, 28, 28)
    .. struct.pack(">HHBBB", math.min(attempts, _most.SHORT), math.min(deliveries, _most.SHORT),
      math.min(losses, _most.BYTE), math.min(crashes, _most.BYTE), math.min(hosts, _most.BYTE))
    .. string.sub(body, 36)
end

-- Key, mode and milliseconds of a job whose flags have UNIQUE (unique.lua).
--- (body: str) -> table
function record.unique(body)
  local at = 43 + string.byte(body, 42)
  at = at + 1 + string.byte(body, at)
  at = at + 1 + string.byte(body, at)
  return cmsgpack.unpack(string.sub(body, at + 2, at + 1 + struct.unpack(">I2", body, at))).u
end

-- The name of the job's task; empty for a bare value.
--- (body: str) -> str
function record.task(body)
  local at = 43 + string.byte(body, 42)
  return string.sub(body, at + 1, at + string.byte(body, at))
end

-- A copy of the record of a waiting job with the expiry, ttl, task, trace, powers and payload of another draft.
--- (body: str, drafted: str, generation: int, since: int, expires: int) -> str
function record.replaced(body, drafted, generation, since, expires)
  return string.sub(body, 1, 2) .. struct.pack(">I6", generation) .. string.sub(body, 9, 14)
    .. struct.pack(">I6I6", since, expires)
    .. string.char(bit.bor(string.byte(drafted, 27), bit.band(string.byte(body, 27), flag.NOTES)))
    .. string.sub(body, 28, 35)
    .. string.sub(drafted, 36, 41) .. string.sub(body, 42, 42 + string.byte(body, 42))
    .. string.sub(drafted, 43 + string.byte(drafted, 42))
end

-- The limits of a job whose flags have LIMITED: name, key, number, interval, burst and release of each (limits.lua).
--- (body: str) -> table
function record.limits(body)
  local at = 43 + string.byte(body, 42)
  at = at + 1 + string.byte(body, at)
  at = at + 1 + string.byte(body, at)
  return cmsgpack.unpack(string.sub(body, at + 2, at + 1 + struct.unpack(">I2", body, at))).l
end

-- The map that the powers of a job need. Only for a job that has some.
--- (body: str) -> table
function record.powers(body)
  local at = 43 + string.byte(body, 42)
  at = at + 1 + string.byte(body, at)
  at = at + 1 + string.byte(body, at)
  return cmsgpack.unpack(string.sub(body, at + 2, at + 1 + struct.unpack(">I2", body, at)))
end

-- A copy of the record with other flags.
--- (body: str, flags: int) -> str
--- inline
function record.flagged(body, flags)
  return string.sub(body, 1, 26) .. string.char(flags) .. string.sub(body, 28)
end

-- A copy of the record in another state, with a new generation.
--- (body: str, new_state: str, generation: int, since: int) -> str
--- inline
function record.moved(body, new_state, generation, since)
  return struct.pack(">Bc1I6", record.FORMAT, new_state, generation) .. string.sub(body, 9, 14)
    .. struct.pack(">I6", since) .. string.sub(body, 21)
end

--- (body: str) -> str
--- inline
function record.state(body)
  return string.sub(body, 2, 2)
end

--- (flags: int, one: int) -> bool
--- inline
function record.has(flags, one)
  return bit.band(flags, one) > 0
end

--- (body: str) -> int
--- inline
function record.since(body)
  return struct.unpack(">I6", body, 15)
end

--- (body: str) -> str
--- inline
function record.tenant(body)
  return string.sub(body, 43, 42 + string.byte(body, 42))
end

-- The record, or false if it does not exist. A record that is too short, because another program damaged it, counts as
-- missing.
--- (body: str | false) -> str | false
function record.intact(body)
  return body and #body >= 44 and #body >= 44 + string.byte(body, 42) and body
end

--- (id: str) -> str | false
--- uses: base
function record.get(id)
  return record.intact(redis.call("HGET", base .. "jobs", id))
end

--- (generation: int, bytes: int, id: str) -> str
function record.entry(generation, bytes, id)
  local class = 0
  while bytes > _size_class.BYTES do
    bytes = bytes / 2
    class = class + 1
  end
  return struct.pack(">I6B", generation, class) .. id
end

--- (entry: str) -> str
--- inline
function record.entry_id(entry)
  return string.sub(entry, 8)
end

-- The most bytes that an entry's record can have, by the size class of the entry.
--- (entry: str) -> int
function record.entry_bytes(entry)
  local class = string.byte(entry, 7) % _size_class.MORE
  return class == 0 and _size_class.BYTES or _size_class.BYTES * 2 ^ class
end

-- Generation, since, expires, flags and ttl of a record that is intact and ready; else nil.
--- (body: str | false) -> …
function record.parse_ready(body)
  if not body or #body < 44 then return nil end
  local found, generation, since, expires, flags, ttl, tenant_bytes =
    struct.unpack(">xc1I6xxxxxxI6I6BxxxxxxxxxI5B", body)
  if found ~= state.READY or #body < 44 + tenant_bytes then return nil end
  return generation, since, expires, flags, ttl
end

-- Whether the entry still stands for this job. After the job is cancelled it does not, even if the id is enqueued
-- again: the new job has another generation.
--- (body: str | false, entry: str) -> bool
function record.is_ready(body, entry)
  local generation = record.parse_ready(body)
  return generation ~= nil and generation == struct.unpack(">I6", entry)
end
