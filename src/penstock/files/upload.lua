-- The scripts of senders: they put the records of a file into a channel. channel.lua has the key map.

_sent = { MOST = 10000 } -- entries of files that were sent

-- Makes space for `size` bytes: trims what is left to trim, then passes over the slowest receivers if they have been
-- away for longer than `patience`. A receiver is away since its last call or since its first unread record was sent,
-- whichever is later. Returns 0 if there is space or a second call may make some, the ms after which the next receiver
-- will be passed over, or -1 if none will be.
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

-- Returns the receiver that is furthest behind, or "".
--- () -> str
--- uses: base
function upload.slowest()
  return redis.call("ZRANGE", base .. "readers", 0, 0)[1] or ""
end

-- Makes space for `size` bytes. Returns nil, or if there is still too little space, the refusal (see `put`).
--- (l: table, size: int, now: int) -> table | nil
--- uses: base state
function upload.refuse_if_full(l, size, now)
  local slowest = upload.slowest()
  if l.ended - l.begun + size <= l.bytes then return nil end
  local ms = upload.make_space(l, now, size)
  if l.ended - l.begun + size > l.bytes then return { "FULL", ms, l.ended - l.begun, slowest } end
end

-- Returns the entries of these paths and inodes: { "OK", { entry or "", … } }.
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

-- Makes this token the owner of an upload that another process began: that process is refused from now on. Returns
-- { "OK", entry }, or { "TAKEN" } if this upload has ended.
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

-- Appends records of one upload, given as kind, body, …, and stores `upload_state`, which says how far it is with them.
-- Does all of it or nothing.
--
--   expected  "-": the upload continues. Its entry must be at `path`, with this token.
--             Otherwise it begins. There must be no entry at `path`, and the entry at `inode` must be this one ("": no
--             entry). If not, another process has sent the file since the sender read the entries.
--   outcome   "": the upload does not end with these records.
--             Otherwise it ends. Its entry at `path` is removed. The outcome is stored at `inode`, unless it is "-".
--
-- Returns { "OK", bytes in the channel, slowest receiver }; { "FULL", the ms from `make_space`, bytes in the channel,
-- slowest receiver }; { "CLOSED", number of receivers that have not received everything }; { "TAKEN" } if `expected` is
-- not met; or { "GONE" | "VANISHED" | "LARGE" | "NOT_A_MEMBER" }.
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
  for i = records, #ARGV, 2 do
    if not channel.append(l, now, ARGV[i] .. upload_id, ARGV[i + 1]) then return { "VANISHED", "log" } end
  end
  log.save(l, now)
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
  log.report(l, now)
  log.wake_senders(l)
  return idempotency.keep(caller, number, { "OK", bytes, upload.slowest() })
end

-- For a sender that got FULL: asks whether there is space for `size` bytes, and at least for a quarter of the limit.
-- With less, the sender would get FULL again for nearly each megabyte, after having sent it in vain. If there is too
-- little space, registers `address` for `wait_ms`. Returns OK or FULL, as `put` does.
--- keys: base state
--- args: given: int, size: int, address: str, wait_ms: int
--- flags: allow-oom
function script.await_space(base, state, given, size, address, wait_ms)
  local fault, l = log.open()
  if fault then return fault end
  local space = l and math.min(l.bytes, math.max(size, math.floor(l.bytes / 4)))
  local is_open = l and channel.close_number() == 0
  local full = is_open and upload.refuse_if_full(l, space, clock.now(given))
  log.await_space(space or 0, address, full and wait_ms or 0)
  if is_open then log.wake_senders(l) else log.dismiss_senders() end
  return full or { "OK", l and l.ended - l.begun or 0, "" }
end
