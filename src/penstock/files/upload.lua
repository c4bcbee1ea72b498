-- The scripts of senders: they put the records of a file into a channel. channel.lua has the key map.

_sent = { MOST = 10000 } -- files that were sent and are remembered

-- Makes space for `size` bytes: trims what is left to trim, then passes over the slowest receivers if they have been
-- away for longer than `patience`. A receiver is away since its last call or since its first unread record was sent,
-- whichever is later. Returns the ms after which the next receiver will be passed over, or -1 if none will be.
--- (l: table, now: int, size: int) -> int
--- uses: base state
function upload.make_space(l, now, size)
  if log.trim(l, now) == 1 or l.ended - l.begun + size <= l.bytes then return 0 end
  local patience = tonumber(redis.call("HGET", state, "patience") or 0)
  for _ = 1, 10 do
    local low = redis.call("ZRANGE", base .. "readers", 0, 0, "WITHSCORES")
    local receiver, cursor = low[1], low[2]
    if receiver then
      local unread = redis.call("XRANGE", base .. "log", cursor + 1, "+", "COUNT", 1)[1]
      if patience == 0 or not unread then return -1 end
      local seen = tonumber(redis.call("HGET", base .. "seen", receiver) or 0)
      local ends_at = math.max(seen, tonumber(string.match(unread[1], "%d+$"))) + patience
      if ends_at > now then return ends_at - now end
      redis.call("ZREM", base .. "readers", receiver)
      redis.call("ZADD", base .. "vanished", cursor, receiver)
    end
    if channel.trim(l, now) == 1 or l.ended - l.begun + size <= l.bytes then return 0 end
  end
  return 0
end

-- The receiver that is furthest behind, or "".
--- () -> str
--- uses: base
function upload.slowest()
  return redis.call("ZRANGE", base .. "readers", 0, 0)[1] or ""
end

-- The refusal if there is no space for so many bytes, even after receivers were passed over; else nil.
--- (l: table, size: int, now: int) -> table | nil
--- uses: base state
function upload.refuse_if_full(l, size, now)
  local slowest = upload.slowest()
  if l.ended - l.begun + size <= l.bytes then return nil end
  local ms = upload.make_space(l, now, size)
  if l.ended - l.begun + size > l.bytes then return { "FULL", ms, l.ended - l.begun, slowest } end
end

-- The entries of these sources: { "OK", { entry or "", … } }.
--- keys: base state
--- args: sources: *
--- flags: no-writes
function script.source_entries(base, state, sources, ...)
  local fault = log.open()
  if fault then return fault end
  local answer = {}
  for i = sources, #ARGV do answer[#answer + 1] = redis.call("HGET", base .. "sources", ARGV[i]) or "" end
  return { "OK", answer }
end

-- Continues an upload that another process began. That process is refused from now on. Returns { "OK", entry }, or
-- { "TAKEN" } if this upload has ended.
--- keys: base state
--- args: path: str, upload_id: str, token: str
--- flags: allow-oom
function script.take_over(base, state, path, upload_id, token)
  local fault = log.open()
  if fault then return fault end
  local entry = redis.call("HGET", base .. "sources", path)
  if not entry then return { "TAKEN" } end
  local _, known, upload_state, outcome = unpack(cmsgpack.unpack(entry))
  if known ~= upload_id then return { "TAKEN" } end
  entry = cmsgpack.pack({ token, upload_id, upload_state, outcome })
  redis.call("HSET", base .. "sources", path, entry)
  return { "OK", entry }
end

-- Puts records, given as kind, body, …; all of them or none. `expected`: if the upload begins here, the entry that its
-- sender has found at `inode` ("" for none); "-" if it continues. `outcome`: if the upload ends here, what is kept at
-- `inode`; "-": it ends and nothing is kept; "": it does not end. Returns { "OK", bytes there, slowest receiver }, {
-- "FULL", ms after which to try again or -1, bytes there, slowest receiver } or { "GONE" | "CLOSED" | "TAKEN" | "LARGE"
-- | "NOT_A_MEMBER" }.
--- keys: base state
--- args: caller: str, number: int, given: int, path: str, upload_id: str, token: str, expected: str, upload_state: str
--- args: inode: str, outcome: str, records: *
function script.put(base, state, caller, number, given, path, upload_id, token, expected, upload_state,
  inode, outcome, records, ...)
  local fault, l = log.open()
  if fault then return fault end
  local past = idempotency.replay(caller, number)
  if past then return past end
  if not l then return { "GONE" } end
  if channel.close_number() > 0 then return { "CLOSED", redis.call("ZCARD", base .. "readers") } end
  local entry = redis.call("HGET", base .. "sources", path) or ""
  if expected == "-" then
    local known_token, known_upload
    if entry ~= "" then known_token, known_upload = unpack(cmsgpack.unpack(entry)) end
    if known_token ~= token or known_upload ~= upload_id then return { "TAKEN" } end
  elseif entry ~= "" or (redis.call("HGET", base .. "sources", inode) or "") ~= expected then
    return { "TAKEN" }
  end
  if not channel.has_receivers() then return { "NOT_A_MEMBER" } end
  local size, now = 0, clock.now(given)
  for i = records, #ARGV, 2 do size = size + log.size(ARGV[i] .. upload_id, ARGV[i + 1]) end
  if size > l.bytes then return { "LARGE" } end
  local full = upload.refuse_if_full(l, size, now)
  if full then return full end
  for i = records, #ARGV, 2 do channel.append(l, now, ARGV[i] .. upload_id, ARGV[i + 1]) end
  log.save(l, now, false)
  local bytes = l.ended - l.begun
  if bytes > tonumber(redis.call("HGET", state, "peak") or 0) then redis.call("HSET", state, "peak", bytes) end
  if outcome == "" then
    redis.call("HSET", base .. "sources", path, cmsgpack.pack({ token, upload_id, upload_state, "" }))
  else
    redis.call("HDEL", base .. "sources", path)
  end
  if outcome ~= "" and outcome ~= "-" then
    redis.call("HSET", base .. "sources", inode, cmsgpack.pack({ "", "", upload_state, outcome }))
    redis.call("ZADD", base .. "sent_at", now, inode)
    local old = redis.call("ZRANGE", base .. "sent_at", 0, -_sent.MOST - 1)
    for i = 1, #old do
      redis.call("ZREM", base .. "sent_at", old[i])
      redis.call("HDEL", base .. "sources", old[i])
    end
  end
  log.wake_readers(l, now)
  return idempotency.keep(caller, number, { "OK", bytes, upload.slowest() })
end

-- For a sender that was refused: notifies `address` when there is space for so many bytes, and for a quarter of the
-- limit. Without the quarter it would send each megabyte in vain once, and be refused. Returns as `put`.
--- keys: base state
--- args: given: int, size: int, address: str, wait_ms: int
--- flags: allow-oom
function script.await_space(base, state, given, size, address, wait_ms)
  local fault, l = log.open()
  if fault then return fault end
  local space = l and math.min(l.bytes, math.max(size, math.floor(l.bytes / 4)))
  local full = l and channel.close_number() == 0 and upload.refuse_if_full(l, space, clock.now(given))
  log.wait("wanting", space or 0, address, full and wait_ms or 0)
  return full or { "OK", l and l.ended - l.begun or 0, "" }
end
