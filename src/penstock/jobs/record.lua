-- A job's record: a header that scripts read, and a payload that they pass on unread.
--
-- The record of a running job does not change: `owners` (lease.lua) shows that it runs. So the state in the record is
-- READY for ready and for running jobs.
--
-- A client sends a draft, in which the server fills in the fields before the flags.
--
-- An *entry* represents a job in a lane, in `delayed` or in `suspects`. It has the generation, so that jobs that are
-- due at the same time keep their order; a byte for the size of the record; and the id. Each transition that puts an
-- entry into a list gives the job a new generation. So at most one entry names the generation of a record, and a script
-- that takes that entry out of its list knows that the job does not run and is in no other list.

record = { FORMAT = 3, TAILED = 128, TAIL_BYTES = 19 }

record = layout {
  format = "B", -- FORMAT, plus TAILED if the record ends with a tail
  state = "c1", -- a letter, see `state` below
  generation = "I6", -- of the job's entry; unique in the queue
  since = "I6", -- server ms: ready since, due at, or died at
  flags = "B", -- see `flag` below
  priority = "B", -- 0 most urgent … 9
  powers = "B", -- a bit for each power of the job (`power`); 0 for most jobs
  ttl = "I5", -- of its result, ms
  tenant = "Bc0",
  task = "Bc0", -- empty for a bare value
  trace = "Bc0", -- a text of the application
}

-- Behind the trace, each bit of `powers` has a section, in the order of the bits: a length in 2 bytes, and then
--
--   UNIQUE_KEY    mode in 1 byte, milliseconds in 5, the key (unique.lua)
--   LIMITS        each limit in the order in which the job passes them (`record.limits`)
--   AFTER_OTHERS  in MessagePack: `f`, the draft of the call that takes its place; `i`, which arguments get which
--                 results (flow.lua)
--   TAGS          each tag after its length in 1 byte
--   SEALED        the id of the key with which a client has sealed the payload
--   IN_SHARDS     nothing
--
-- Then come the payload and, in some records, the tail. Most jobs that wait have none: they were ready when they were
-- enqueued, do not expire and never ran. A job gets its tail when one of its fields is needed, and keeps it.
tail = layout {
  enqueued = "I6", -- server ms; without a tail it is `since`
  expires = "I6", -- server ms; 0: never, or was started in time
  attempts = "H", -- failed runs
  deliveries = "H", -- how often a worker got the job, before the present run
  losses = "B", -- halves: 1 if its supervisor died too, else 2 (recovery.lua)
  crashes = "B", -- charged to the job, see recovery.lua
  host_deaths = "B", -- trials that ended together with their host
}

-- The fields of a draft before its flags; the others are as in a record.
draft = layout {
  format = "B",
  how = "B", -- how to read the times: see `draft` below
  due = "I6", -- ms from now, or a date
  expires = "I6", -- ms from now, or a date; 0: never
}

-- An entry: what a list has for a job.
entry = layout {
  generation = "I6",
  class = "B", -- the size class of the record without its tail: see `_size_class`
  id = "*",
}

state = { READY = "r", DELAYED = "w", RUNNING = "x", DEAD = "d", PARKED = "p", WAITING = "a", SLEEPING = "s" }

draft = { DUE_IS_DATE = 1, EXPIRES_IS_DATE = 2, OWN_ID = 4 } -- OWN_ID: chosen by the user

flag = {
  CALL = 1, -- of a task; else a bare value
  SUSPECT = 2, -- see recovery.lua
  REASON = 4, -- `failures` has an entry for the job
  NOTES = 8, -- `notes`, `steps:` or `output:` has something of the job; a running job may have it in its claim only
  LIMITED = 16, -- it has limits; the next two bits say how many of them it has passed (limits.lua)
  UNIQUE = 128, -- it has a unique key (unique.lua). The highest bit, so that flags with it are 128 or more
}

-- AFTER_OTHERS: waits for jobs (flow.lua). IN_SHARDS: its keys belong to its tenant, which may move to another shard;
-- the highest bit, so that powers with it are 128 or more. OPAQUE: those that no script reads. 32 is free for the
-- release of a durable job.
power = {
  UNIQUE_KEY = 1, LIMITS = 2, AFTER_OTHERS = 4, TAGS = 8, SEALED = 16, IN_SHARDS = 128, OPAQUE = 24, READABLE = 159,
}

-- One limit of a job. KEY: name=key; NAMED: that behind its length, as claims and `admitted` have it
_limit = { KEY = 1, MOST = 2, INTERVAL = 3, BURST = 4, RELEASE = 5, COST = 6, NAMED = 7 }

-- OF_KEYS: LIMITED and UNIQUE; OF_RUNS: the flags that do not follow from the call; STORED: those that say which other
-- keys have something of the job; READ: the powers without OPAQUE
_mask = { NO_SUSPECT = 253, OF_KEYS = 144, OF_RUNS = 15, STORED = 12, READ = 231 }

-- The size class of an entry: up to 1 KiB, up to 2 KiB, … MORE is set in the first entry of a lane that has others.
_size_class = { BYTES = 1024, MORE = 128 }

_most = { SHORT = 65535, BYTE = 255 } -- what the counts in a header can hold

-- The position of the first byte after tenant, task and trace.
--- (body: str) -> int
function record.behind_names(body)
  local at = record.AT_TENANT + 1 + record.tenant_size(body)
  at = at + 1 + (string.byte(body, at) or 0)
  return at + 1 + (string.byte(body, at) or 0)
end

-- Where the section of a power begins behind its length, and where it ends. Only for a job that has this power.
--- (body: str, of: int) -> int, int
function record.section(body, of)
  local _, _, _, size, at = struct.unpack(">Bc0Bc0Bc0H", body, record.AT_TENANT)
  local others = record.powers(body) % of -- the lower bits
  while others > 0 do
    size, at = struct.unpack(">H", body, at + size)
    others = bit.band(others, others - 1) -- without its lowest bit
  end
  return at, at + size - 1
end

-- Whether the job has no power that a script reads.
--- (body: str) -> bool
--- inline
function record.is_plain(body)
  return bit.band(record.powers(body), _mask.READ) == 0
end

-- The section of its tags; empty if it has none.
--- (body: str) -> str
function record.tags(body)
  if not record.has(record.powers(body), power.TAGS) then return "" end
  local at, last = record.section(body, power.TAGS)
  return string.sub(body, at, last)
end

-- Whether it has this tag.
--- (body: str, tag: str) -> bool
function record.has_tag(body, tag)
  local tags, at = record.tags(body), 1
  while at <= #tags do
    local one, next_ = struct.unpack("Bc0", tags, at)
    if one == tag then return true end
    at = next_
  end
  return false
end

-- Key, mode and milliseconds of a unique job.
--- (body: str) -> table
function record.unique(body)
  local _, _, _, size, mode, ms, at = struct.unpack(">Bc0Bc0Bc0Hc1I5", body, record.AT_TENANT)
  return { string.sub(body, at, at - 7 + size), mode, ms }
end

-- Key and mode of a unique job.
--- (body: str) -> str, str
--- seldom
function record.unique_key(body)
  local _, _, _, size, mode, at = struct.unpack(">Bc0Bc0Bc0Hc1", body, record.AT_TENANT)
  return string.sub(body, at + 5, at - 2 + size), mode
end

-- The limits of a job, each as a `_limit`: for a rate, INTERVAL is the number of microseconds in which it gains a unit.
-- COST: the places that the job takes; in a limit of concurrency it is 1.
--- (body: str) -> table
function record.limits(body)
  local at, last = record.section(body, power.LIMITS)
  return record.limits_in(string.sub(body, at, last))
end

-- The same, of the section of its limits.
--- (section: str) -> table
function record.limits_in(section)
  local at, list = 1, {}
  while at < #section do
    local most, interval, burst, release, cost, key, next_ = struct.unpack(">I4I6I4I6I4Hc0", section, at)
    list[#list + 1], at = { key, most, interval, burst, release, cost, string.sub(section, at + 24, next_ - 1) }, next_
  end
  return list
end

-- The position of the limit with this key in the limits of a job, or nil.
--- (list: table, key: str) -> int | nil
--- seldom
function record.find_limit(list, key)
  for at = 1, #list do
    if list[at][_limit.KEY] == key then return at end
  end
end

-- The draft of the call that takes the place of a job if one that it waits for fails.
--- (body: str) -> str
function record.substitute(body)
  local at, last = record.section(body, power.AFTER_OTHERS)
  return cmsgpack.unpack(string.sub(body, at, last)).f
end

--- (body: str) -> bool
--- inline
function record.has_tail(body)
  return record.format(body) >= record.TAILED
end

-- The tail of a record; "" if it has none.
--- (body: str) -> str
function record.own_tail(body)
  return record.has_tail(body) and string.sub(body, -record.TAIL_BYTES) or ""
end

-- The tail of a record, or the one that it would have.
--- (body: str) -> str
--- seldom
function record.tail(body)
  return record.has_tail(body) and string.sub(body, -record.TAIL_BYTES) or record.new_tail(record.since(body), 0)
end

-- The tail of a job that never ran.
--- (enqueued: int, expires: int) -> str
--- inline
function record.new_tail(enqueued, expires)
  return tail.pack({
    enqueued = enqueued, expires = expires, attempts = 0, deliveries = 0, losses = 0, crashes = 0, host_deaths = 0,
  })
end

-- A copy of a draft or of a record in another state, with a new generation and with this tail.
--- (body: str, new_state: str, generation: int, since: int, flags: int, its: str) -> str
--- seldom
function record.with_tail(body, new_state, generation, since, flags, its)
  if record.has_tail(body) then body = string.sub(body, 1, -1 - record.TAIL_BYTES) end
  return record.with(body, {
    format = record.FORMAT + record.TAILED, state = new_state, generation = generation, since = since, flags = flags,
  }) .. its
end

--- (body: str) -> int
function record.expires(body)
  if not record.has_tail(body) then return 0 end
  return (struct.unpack(">I6", body, #body - record.TAIL_BYTES + tail.AT_EXPIRES))
end

--- (body: str) -> int
--- seldom
function record.enqueued(body)
  local its = record.tail(body)
  return tail.enqueued(its)
end

--- (body: str) -> int
--- seldom
function record.attempts(body)
  local its = record.tail(body)
  return tail.attempts(its)
end

--- (body: str) -> int
--- seldom
function record.deliveries(body)
  local its = record.tail(body)
  return tail.deliveries(its)
end

-- Turns a client's draft into the record of an enqueued job.
--- (body: str, new_state: str, generation: int, now: int, since: int, expires: int, flags: int) -> str
--- seldom
function record.from_draft(body, new_state, generation, now, since, expires, flags)
  if record.has_tail(body) then
    local its = record.own_tail(body)
    its = tail.with(its, { enqueued = now, expires = expires })
    return record.with_tail(body, new_state, generation, since, flags, its)
  end
  if since == now and expires == 0 then return record.fresh(body, new_state, generation, since, flags) end
  return record.with(body, {
    format = record.FORMAT + record.TAILED, state = new_state, generation = generation, since = since, flags = flags,
  }) .. record.new_tail(now, expires)
end

-- Turns a draft into the record of a job that is ready now and does not expire. The draft has no tail.
--- (body: str, new_state: str, generation: int, since: int, flags: int) -> str
--- inline
function record.fresh(body, new_state, generation, since, flags)
  return record.with(body, {
    format = record.FORMAT, state = new_state, generation = generation, since = since, flags = flags,
  })
end

-- Turns the draft of a plain call (plain.lua) into the record of a job that is ready. Its flags are those of the draft.
--- (body: str, generation: int, since: int) -> str
--- inline
function record.of_plain(body, generation, since)
  return record.with(body, { format = record.FORMAT, state = state.READY, generation = generation, since = since })
end

-- A copy of the record of a waiting job with the expiry, ttl, task, trace, powers and payload of another draft.
--- (body: str, drafted: str, generation: int, since: int, expires: int) -> str
function record.replaced(body, drafted, generation, since, expires)
  local old_flags, powers, ttl = record.flags(body), record.powers(drafted), record.ttl(drafted)
  local flags = bit.bor(record.flags(drafted), bit.band(old_flags, _mask.STORED))
  local was, its = record.state(body), record.tail(body)
  body = record.with(body, { format = record.FORMAT, powers = powers, ttl = ttl })
  body = string.sub(body, 1, record.AT_TENANT + string.byte(body, record.AT_TENANT))
    .. string.sub(drafted, record.AT_TENANT + 1 + string.byte(drafted, record.AT_TENANT), record.last(drafted))
  return record.with_tail(body, was, generation, since, flags, tail.with(its, { expires = expires }))
end

-- The record up to its trace.
--- (body: str) -> str
function record.start(body)
  return string.sub(body, 1, record.behind_names(body) - 1)
end

-- The record without what the powers need and without its payload.
--- (body: str) -> str
function record.head(body)
  return record.start(body) .. record.own_tail(body)
end

-- The last byte before the tail, counted from the end.
--- (body: str) -> int
function record.last(body)
  return -1 - #record.own_tail(body)
end

-- The payload of a record.
--- (body: str) -> str
function record.payload(body)
  local at, powers, one = record.behind_names(body), record.powers(body), 1
  while one <= power.IN_SHARDS do
    if bit.band(powers, one) > 0 then at = at + 2 + struct.unpack(">H", body, at) end
    one = one * 2
  end
  return string.sub(body, at, record.last(body))
end

-- A copy of the record of a dead letter with the powers and the payload of another draft of its task.
--- (body: str, drafted: str) -> str
function record.edited(body, drafted)
  local behind = string.sub(drafted, record.behind_names(drafted), record.last(drafted))
  local flags, powers = record.flags(body), record.powers(drafted)
  flags = bit.bor(bit.band(flags, _mask.OF_RUNS), bit.band(record.flags(drafted), _mask.OF_KEYS), flag.REASON)
  local start = record.start(body)
  return record.with(start, { flags = flags, format = record.FORMAT + record.TAILED, powers = powers })
    .. behind .. record.tail(body)
end

-- The record without its payload, and of its powers only the tags.
--- (body: str) -> str
function record.shown(body)
  local start, tags, its = record.start(body), record.tags(body), record.own_tail(body)
  if tags == "" then return record.with(start, { powers = 0 }) .. its end
  return record.with(start, { powers = power.TAGS }) .. struct.pack(">Hc0", #tags, tags) .. its
end

-- A copy of the record in another state and with a new generation, as each transition makes it.
--- (body: str, new_state: str, generation: int, since: int, flags: int) -> str
--- seldom
function record.moved(body, new_state, generation, since, flags)
  local format = record.format(body)
  if format < record.TAILED and since ~= record.since(body) then
    return record.with_tail(body, new_state, generation, since, flags, record.tail(body))
  end
  return record.with(body, {
    format = format, state = new_state, generation = generation, since = since, flags = flags,
  })
end

-- Whether a job in this state has an entry in `delayed`: its due time is in the future, or it is a durable job that
-- sleeps or waits for a signal.
--- (of: str) -> bool
--- inline
function record.is_delayed(of)
  return of == state.DELAYED or of == state.SLEEPING
end

--- (flags: int, one: int) -> bool
--- inline
function record.has(flags, one)
  return bit.band(flags, one) > 0
end

-- The record, or false if it does not exist. A record that is too short, because another program damaged it, counts as
-- missing.
--- (body: str | false) -> str | false
--- seldom
function record.intact(body)
  return body and #body >= record.AT_TENANT + 2 and #body >= record.AT_TENANT + 2 + record.tenant_size(body) and body
end

--- (id: str) -> str | false
--- uses: base
function record.get(id)
  return record.intact(redis.call("HGET", base .. "jobs", id))
end

--- (generation: int, body: str, id: str) -> str
--- inline
function record.entry(generation, body, id)
  return entry.pack({
    generation = generation, class = #body <= _size_class.BYTES and 0 or record.size_class(body), id = id,
  })
end

-- The size class of a record of more than `_size_class.BYTES`.
--- (body: str) -> int
--- seldom
function record.size_class(body)
  local class, bytes = 0, #body - #record.own_tail(body)
  while bytes > _size_class.BYTES do
    bytes = bytes / 2
    class = class + 1
  end
  return class
end

-- The most bytes that an entry's record can have, by the size class of the entry.
--- (of: str) -> int
function record.entry_bytes(of)
  local class = entry.class(of) % _size_class.MORE
  return (class == 0 and _size_class.BYTES or _size_class.BYTES * 2 ^ class) + record.TAIL_BYTES
end

-- Returns whether the record is intact and ready, with this generation; and its `expires`, `since`, `flags` and `ttl`,
-- so that a claim reads a record once. If so, an entry with that generation represents the job. The entry of a
-- cancelled job represents no job, even if the id is enqueued again, because the new job has another generation.
--- (body: str | false, generation: int) -> bool, int, int, int, int
function record.is_ready(body, generation)
  if not body or #body < record.AT_TENANT + 2 then return false end
  local found = record.fields(body)
  return found.generation == generation and found.state == state.READY
    and #body >= record.AT_TENANT + 2 + found.tenant_size,
    found.format < record.TAILED and 0 or record.expires(body), found.since, found.flags, found.ttl
end
