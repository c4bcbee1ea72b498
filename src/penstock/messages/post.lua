-- Posting to a log (log.lua), and the ids that senders give to their messages, so that a message is posted once.
--
--   sent         HASH  "<bytes of the sender>:<sender><id>" -> position of the message; PX 11 minutes
--   sent_order   LIST  the fields of `sent`, oldest first; PX 11 minutes
--   sent_counts  HASH  sender -> how many fields of `sent` are its own; PX 11 minutes
--
-- An id belongs to its sender: another sender may use it for another message. It is kept for ten minutes. A post with
-- more ids than can be kept for that long is refused.

ids = { KEPT_MS = 600000, PER_SENDER = 10000, PER_LOG = 100000 }
-- the ttl is renewed once a minute
_forget = { SLICE = 100, IDS = 300, MORE = 2, MOST = 100, TTL = 660000, RENEW = 60000 }
-- The array `ids` in the row of `state`. COUNT: the length of `sent_order`, or more. OLDEST: the server ms of the
-- oldest id, or less. RENEW_AT: the server ms at which the ttl is renewed.
_kept_ids = { COUNT = 1, OLDEST = 2, RENEW_AT = 3 }

--- (by: str, id: str) -> str
--- inline
function ids.field(by, id)
  return #by .. ":" .. by .. id
end

-- Forgets up to `limit` ids that are older than ten minutes, in slices. Returns whether there may be more.
--- (l: table, now: int, limit: int) -> bool
--- uses: base
--- seldom
function ids.forget(l, now, limit)
  local slice = math.min(limit, _forget.SLICE)
  for _ = 1, limit, slice do
    local fields = redis.call("LRANGE", base .. "sent_order", 0, slice - 1)
    if #fields == 0 then
      l.ids = false
      return false
    end
    local positions, due, counts = redis.call("HMGET", base .. "sent", unpack(fields)), 0, {}
    for i = 1, #fields do
      local at = tonumber(string.match(positions[i] or "", "%d+$"))
      l.ids[_kept_ids.OLDEST] = at or 0
      if at and at + ids.KEPT_MS > now then break end
      due = i
      local size, rest = string.match(fields[i], "^(%d+):(.*)$")
      local by = string.sub(rest, 1, size)
      counts[by] = (counts[by] or 0) + 1
    end
    if due == 0 then return false end
    redis.call("HDEL", base .. "sent", unpack(fields, 1, due))
    redis.call("LTRIM", base .. "sent_order", due, -1)
    l.ids[_kept_ids.COUNT] = l.ids[_kept_ids.COUNT] - due
    for by, n in pairs(counts) do
      if redis.call("HINCRBY", base .. "sent_counts", by, -n) <= 0 then
        redis.call("HDEL", base .. "sent_counts", by)
      end
    end
    if due < slice then return false end
  end
  return true
end

-- Makes room for `n` ids of a sender. Returns nil, or the refusal: IDS, or AGAIN if a second call may make room.
--- (l: table, by: str, n: int, now: int) -> table | nil
--- uses: base
function ids.refuse(l, by, n, now)
  if not l.ids then return nil end
  if l.ids[_kept_ids.OLDEST] + ids.KEPT_MS <= now then ids.forget(l, now, math.min(n + _forget.MORE, _forget.MOST)) end
  -- A sender has no more ids than the log. So most calls need not count those of the sender.
  if not l.ids or l.ids[_kept_ids.COUNT] + n <= ids.PER_SENDER then return nil end
  return ids.refuse_many(l, by, n, now)
end

-- Does the same as `ids.refuse`, for a log with many ids.
--- (l: table, by: str, n: int, now: int) -> table | nil
--- uses: base
--- seldom
function ids.refuse_many(l, by, n, now)
  local own, total = ids.count(by)
  if own + n <= ids.PER_SENDER and total + n <= ids.PER_LOG then return nil end
  if ids.forget(l, now, _forget.IDS) then return { "AGAIN" } end
  own, total = ids.count(by)
  if own + n <= ids.PER_SENDER and total + n <= ids.PER_LOG then return nil end
  return { "IDS", own, total }
end

-- Returns how many ids of a sender are kept, and how many in all.
--- (by: str) -> int, int
--- uses: base
function ids.count(by)
  return tonumber(redis.call("HGET", base .. "sent_counts", by)) or 0, redis.call("HLEN", base .. "sent")
end

-- Keeps ids with their positions. The caller must call `log.save` afterwards.
--- (l: table, by: str, added: table, now: int)
--- uses: base
--- seldom
function ids.keep(l, by, added, now)
  local fields, order, n = {}, {}, 0
  for field, position in pairs(added) do
    n = n + 1
    fields[2 * n - 1], fields[2 * n], order[n] = field, position, field
  end
  redis.call("HSET", base .. "sent", unpack(fields))
  redis.call("RPUSH", base .. "sent_order", unpack(order))
  redis.call("HINCRBY", base .. "sent_counts", by, n)
  local kept = l.ids or { 0, now, 0 }
  kept[_kept_ids.COUNT] = kept[_kept_ids.COUNT] + n
  if now >= kept[_kept_ids.RENEW_AT] then
    for _, name in ipairs({ "sent", "sent_order", "sent_counts" }) do
      redis.call("PEXPIRE", base .. name, _forget.TTL)
    end
    kept[_kept_ids.RENEW_AT] = now + _forget.RENEW
  end
  l.ids = kept
end

-- Returns how many ids are kept, and the server ms of the oldest, or 0.
--- () -> int, int
--- uses: base
function ids.kept()
  local oldest = redis.call("LINDEX", base .. "sent_order", 0)
  local position = oldest and redis.call("HGET", base .. "sent", oldest)
  return redis.call("HLEN", base .. "sent"), tonumber(string.match(position or "", "%d+$")) or 0
end

-- Appends messages, given as id, body, …: all of them or none. A message whose id is in `sent` is not appended again:
-- the reply has the position of the earlier one. An id of "" means that the message has none.
--
--   create            0: only a member may post. 1: any sender may, and a log that does not exist is created, with the
--                     reader ""
--   ttl_ms            ms after which the messages are not delivered any more; 0: no limit
--   address, wait_ms  if the reply is FULL, the address is registered for `wait_ms`, and notified when there is space
--
-- Returns { "OK", { position of each message, … }, how many are left to wake, { reader to notify, … } }, see
-- `log.wake_others`; { "IDS", ids of this sender, all ids } if too many are kept; { "AGAIN" } if a second call may find
-- room; or { "GONE" | "VANISHED" | "NOT_A_MEMBER" | "FULL" | "LARGE" }.
--- keys: base state
--- args: caller: str, number: int, given: int, create: int, by: str, ttl_ms: int, address: str, wait_ms: int
--- args: messages: *
--- frame: once
function script.post(base, state, caller, number, given, create, by, ttl_ms, address, wait_ms, messages, ...)
  if not l then
    local gone = log.refuse_gone()
    if create == 0 or gone[1] == "VANISHED" then return gone end
  elseif create == 0 and not log.is_member(by) then
    return log.refuse_sender()
  end
  local now = clock.now(given)
  -- `known`: id -> its position, false if it was never sent, true if it is new in this call.
  local known, fresh, fresh_ids, size = {}, 0, 0, 0
  for i = messages, #ARGV, 2 do
    local id = ARGV[i]
    if id ~= "" and known[id] == nil then
      local position = redis.call("HGET", base .. "sent", ids.field(by, id))
      known[id] = position and tonumber(string.match(position, "%d+$")) + ids.KEPT_MS > now and position or false
    end
    if id == "" or not known[id] then
      fresh = fresh + 1
      size = size + log.size(by, ARGV[i + 1])
      if id ~= "" then
        known[id] = true
        fresh_ids = fresh_ids + 1
      end
    end
  end
  if l and l.refuse and fresh > 0 then
    if l.bytes > 0 and size > l.bytes or l.messages > 0 and fresh > l.messages then return { "LARGE" } end
    if l.age > 0 then log.trim(l, now) end
    local is_full = l.bytes > 0 and l.ended - l.begun + size > l.bytes
      or l.messages > 0 and l.top - l.first + 1 + fresh > l.messages
    if is_full and l.history_messages + l.history_age > 0 then
      local too_many = l.messages > 0 and l.top - l.first + 1 + fresh - l.messages or 0
      local too_large = l.bytes > 0 and l.ended - l.begun + size - l.bytes or 0
      if history.make_space(l, too_many, too_large) then return { "AGAIN" } end
      is_full = l.bytes > 0 and l.ended - l.begun + size > l.bytes
        or l.messages > 0 and l.top - l.first + 1 + fresh > l.messages
    end
    if is_full then
      -- The fraction grows with time, so of senders that wait for the same space the earliest is woken first.
      log.await_space((l.bytes > 0 and size - 1 or 0) + now % 86400000 / 86400000, address, wait_ms)
      return { "FULL" }
    end
  end
  local refused = l and fresh_ids > 0 and ids.refuse(l, by, fresh_ids, now)
  if refused then
    log.store(l)
    return refused
  end
  if not l then
    l = log.create({ 0, 0, 0, 0, 0, 0 }, false)
    redis.call("ZADD", base .. "readers", l.start, "")
  end
  local positions, added = {}, {}
  local name, value
  if ttl_ms > 0 then name, value = "until", string.format("%d", now + ttl_ms) end
  for i = messages, #ARGV, 2 do
    local id = ARGV[i]
    local position = id ~= "" and known[id] ~= true and known[id]
    if not position then
      position = log.append(l, now, by, ARGV[i + 1], name, value)
      if not position then return { "VANISHED", "log" } end
      if id ~= "" then
        known[id] = position
        added[ids.field(by, id)] = position
      end
    end
    positions[#positions + 1] = position
  end
  if fresh_ids > 0 then ids.keep(l, by, added, now) end
  local left, to_notify = 0, {}
  if fresh > 0 then
    local has_new_chunk = create == 0 and own.add(by, l.top - fresh + 1, l.top)
    log.save(l, now)
    if has_new_chunk then own.drop(by, l.first - 1) end
    left, to_notify = log.report(l, now)
  end
  if address ~= "" then
    log.await_space(0, address, 0)
    log.wake_senders(l)
  end
  return { "OK", positions, left, to_notify }
end
