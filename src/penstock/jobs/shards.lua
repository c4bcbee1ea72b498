-- The shards of one queue. Each shard is a queue with keys of its own. These scripts decide which shard accepts the
-- jobs of a tenant.
--
--   meta    HASH   shards: the table, "version number before": how many shards there are, and how many there were
--                  before the change that is open now (0: no change is open)
--   moved   SET    tenants that this shard has handed over to another one in the change that is open
--   windows ZSET   tenant -> until when a window or a bucket of one of its keys is in use, server ms; TTL
--
-- A client computes the shard of a tenant from the table (shards.py), which the first shard stores. Every shard has a
-- copy, and each call that enqueues a job carries the table of its client. A shard refuses an older table, and returns
-- its own; it adopts a newer one. So once a shard has answered a call with a newer table, it accepts no call with an
-- older one.
--
-- While a change is open, the jobs of a tenant that is to move go to its old shard first. The old shard accepts them
-- while it has anything of the tenant (a job in any state, a window or bucket of a key). Otherwise it notes the tenant
-- in `moved`, and accepts no job of the tenant from then on. So the new shard gets its first job of a tenant when the
-- old shard has no job of that tenant any longer, and the tenant's jobs keep their order.

-- Stores the table of a caller. Returns the table of the shard if that one is newer.
--- (s: table, text: str) -> str | nil
--- uses: base meta
function shards.adopt(s, text)
  local stored = redis.call("HGET", meta, "shards")
  if stored == text then return end
  if stored and tonumber(string.match(stored, "^%d+")) >= tonumber(string.match(text, "^%d+")) then return stored end
  redis.call("HSET", meta, "shards", text)
  redis.call("UNLINK", base .. "moved")
  s.packed = nil -- a shard without jobs gets a row as well
  row.store(s)
end

-- Keeps a tenant in this shard until `at`, because a window or a bucket of one of its keys is in use until then.
-- Clients mark the keys of jobs in shards by a further value.
--- (tenant: str, now: int, at: int)
--- uses: base
function shards.keep(tenant, now, at)
  local windows = base .. "windows"
  local over = redis.call("ZRANGEBYSCORE", windows, "-inf", now, "LIMIT", 0, 2)
  if #over > 0 then redis.call("ZREM", windows, unpack(over)) end
  redis.call("ZADD", windows, "GT", string.format("%d", at), tenant)
  if redis.call("PTTL", windows) < at - now then redis.call("PEXPIRE", windows, string.format("%d", at - now)) end
end

-- The tenants of these drafts (from ARGV[first] on: id, draft, …).
--- (first: int) -> table
function shards.tenants_of(first)
  local tenants, seen = {}, {}
  for i = first, #ARGV, 2 do
    local tenant = record.tenant(ARGV[i + 1])
    if not seen[tenant] then
      seen[tenant] = true
      tenants[#tenants + 1] = tenant
    end
  end
  return tenants
end

-- Returns which of these tenants the shard hands over, and notes them in `moved`.
--- (tenants: table, now: int) -> table
--- uses: base
function shards.handed_over(tenants, now)
  local gone = {}
  local counts = redis.call("HMGET", base .. "tenants", unpack(tenants))
  local windows = redis.call("ZMSCORE", base .. "windows", unpack(tenants))
  local moved = redis.call("SMISMEMBER", base .. "moved", unpack(tenants))
  for i = 1, #tenants do
    if moved[i] == 1 or not counts[i] and (tonumber(windows[i] or 0) or 0) <= now then gone[#gone + 1] = tenants[i] end
  end
  if #gone > 0 then redis.call("SADD", base .. "moved", unpack(gone)) end
  return gone
end

-- As `take_in`, for a shard. It also replies 0 if the table of the caller is not the shard's.
--- keys: base meta
--- args: caller: str, number: int, given: int, shards_table: str, moving: int, jobs: *
function script.take_in_shard(base, meta, caller, number, given, shards_table, moving, jobs, ...)
  if moving == 1 or redis.call("HGET", meta, "shards") ~= shards_table then return _taken.NO end
  return intake.take(caller, number, clock.now(given), jobs)
end

-- As `enqueue`, for a shard. Returns { "TABLE", table } if the shard knows a newer table. If `moving` is 1, all tenants
-- of these jobs are to move: it returns { "MOVED", tenants … } if another shard has some of them. In both cases no job
-- was enqueued.
--- keys: base meta
--- args: caller: str, number: int, given: int, shards_table: str, moving: int, jobs: *
--- frame: read
function script.enqueue_in_shard(base, meta, caller, number, given, shards_table, moving, jobs, ...)
  local known = idempotency.replay(caller, number)
  if known then return known end
  local other = shards.adopt(s, shards_table)
  if other then return { "TABLE", other } end
  if moving == 1 then
    local gone = shards.handed_over(shards.tenants_of(jobs), s.now)
    if #gone > 0 then return { "MOVED", unpack(gone) } end
  end
  bounds.open(s, ARGV, jobs)
  return queue.add_jobs(s, caller, number, ARGV, jobs, false)
end

-- Returns the table. If the shard has no table, stores one with `number` shards, or with one shard if the queue has
-- jobs. With `number` 0, a missing table is not stored, and "" is returned.
--- keys: base meta
--- args: given: int, number: int
--- flags: allow-oom
--- frame: row
function script.shards(base, meta, given, number)
  local stored = redis.call("HGET", meta, "shards")
  if stored or number == 0 then return stored or "" end
  if redis.call("EXISTS", base .. "jobs") == 1 then number = 1 end
  s.packed = nil -- a queue without jobs gets a row as well
  stored = string.format("1 %d 0", number)
  redis.call("HSET", meta, "shards", stored)
  return stored
end

-- Replaces the table in the first shard. Returns the table that is stored then: another one if it was not `expected`.
--- keys: base meta
--- args: given: int, expected: str, shards_table: str
--- flags: allow-oom
--- frame: read
function script.change_shards(base, meta, given, expected, shards_table)
  local stored = redis.call("HGET", meta, "shards")
  if stored ~= expected then return stored or "" end
  shards.adopt(s, shards_table)
  return shards_table
end

-- Stores the table in a further shard, unless that knows a newer one. Returns the table that is stored then.
--- keys: base meta
--- args: given: int, shards_table: str
--- flags: allow-oom
--- frame: read
function script.adopt_shards(base, meta, given, shards_table)
  return shards.adopt(s, shards_table) or shards_table
end

-- A page of the tenants that have a weight: { next cursor, { tenant, weight, … } }.
--- keys: base meta
--- args: given: int, cursor: str
--- flags: allow-oom
--- frame: read
function script.scan_weights(base, meta, given, cursor)
  return redis.call("HSCAN", base .. "weights", cursor, "COUNT", 500)
end

-- A page of the tenants that a window or a bucket keeps in this shard, by their names.
--- keys: base meta
--- args: given: int, cursor: str
--- flags: allow-oom
--- frame: read
function script.scan_windows(base, meta, given, cursor)
  local found, tenants = redis.call("ZSCAN", base .. "windows", cursor, "COUNT", 500), {}
  for i = 1, #found[2], 2 do
    if tonumber(found[2][i + 1]) > s.now then tenants[#tenants + 1] = found[2][i] end
  end
  return { found[1], tenants }
end
