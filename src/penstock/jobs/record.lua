-- A job's record: a header that scripts read and rewrite, and a payload that they never look into.
--
--   offset  bytes  field        meaning
--   0       1      format       of this header: 1
--   1       1      state        s delayed, r ready, x running, d dead
--   2       1      priority     0 most urgent … 9
--   3       1      flags        1 a task call (else a bare value)   2 due is a date   4 expires is a date
--                               8 the id is the user's own         16 suspect, see job   32 a reason is kept
--   4       6      generation   of its entry in a lane or among the delayed; unique in the queue
--   10      6      enqueued     server ms
--   16      6      since        server ms: ready since, due at, or died at  (from a client: the delay)
--   22      6      expires      server ms, 0 never or once handed out       (from a client: the time left)
--   28      2      attempts     that failed
--   30      2      deliveries   to a worker
--   32      1      doubt        how much speaks for it killing its worker, see job
--   33      5      ttl          of its result, ms
--   38      1+1    lengths of tenant and trace, which follow; then the payload
--
-- Numbers are big-endian. An *entry* (what lanes and `delayed` hold) is generation (10 hex digits, so that
-- equal due times keep the order of enqueueing), a letter for the size of the record, and the id.

--- (body: str) -> int…
function record.parse(body)
  local format, state, priority, flags, generation, enqueued, since, expires, attempts, deliveries, doubt, ttl, tenants, traces =
    struct.unpack(">Bc1BBI6I6I6I6HHBI5BB", body)
  return state, priority, flags, generation, enqueued, since, expires, attempts, deliveries, doubt, ttl,
    string.sub(body, 41, 40 + tenants), 41 + tenants + traces
end

--- (body: str, state: str, flags: int, generation: int, since: int, attempts: int, deliveries: int, doubt: int) -> str
function record.with(body, state, flags, generation, since, attempts, deliveries, doubt)
  return string.sub(body, 1, 1) .. state .. string.sub(body, 3, 3) .. struct.pack(">BI6", flags, generation)
    .. string.sub(body, 11, 16) .. struct.pack(">I6", since) .. string.sub(body, 23, 28)
    .. struct.pack(">HHB", attempts, deliveries, doubt) .. string.sub(body, 34)
end

--- (generation: int, size: int, id: str) -> str
function record.entry(generation, size, id)
  local class = 97
  while size > 1024 do
    size = size / 2
    class = class + 1
  end
  return string.format("%010x%c", generation, class) .. id
end

--- (header: str) -> int
function record.ttl(header)
  return (struct.unpack(">I5", header, 34))
end

--- (header: str) -> str
function record.tenant(header)
  return string.sub(header, 41, 40 + string.byte(header, 39))
end

--- (header: str) -> int
function record.since(header)
  return (struct.unpack(">I6", header, 17))
end

-- The record as it is once handed out: running, one delivery more, and it was started in time, so it expires no more.
--- (body: str) -> str
function record.claimed(body)
  local attempts, deliveries = struct.unpack(">HH", body, 29)
  return string.sub(body, 1, 1) .. "x" .. string.sub(body, 3, 22)
    .. struct.pack(">I6HH", 0, attempts, math.min(deliveries + 1, 65535)) .. string.sub(body, 33)
end

-- The record, or false where there is none, or where somebody cut it: what is too short to read is as good as gone.
--- (body: str | false) -> str | false
function record.sound(body)
  return body and #body >= 40 and #body >= 40 + string.byte(body, 39) + string.byte(body, 40) and body
end

--- (id: str) -> str | false
--- uses: base
function record.get(id)
  return record.sound(redis.call("HGET", base .. "jobs", id))
end

-- Does this entry still stand for this job? Not after the job was cancelled, even if its id was enqueued anew.
--- (body: str | false, entry: str) -> bool
function record.is_ready(body, entry)
  return record.sound(body) and string.byte(body, 2) == 114 and struct.unpack(">I6", body, 5) == tonumber(string.sub(entry, 1, 10), 16)
end

-- One counter numbers generations and claims, so none of them ever comes twice.
--- (n: int) -> int
--- uses: meta
function record.mint(n)
  return redis.call("HINCRBY", meta, "seq", n) - n
end

-- Is the format newer than ours? And, read with it: is the queue paused?
--- () -> error | nil, bool
--- uses: meta
function record.check()
  local known = redis.call("HMGET", meta, "format", "paused")
  local format = known[1]
  return format and tonumber(format) > 1 and redis.error_reply("PENSTOCKFORMAT " .. format) or nil, known[2]
end
