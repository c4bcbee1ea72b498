-- The scripts of senders: they put the records of a file into a channel. channel.lua has the key map.

-- MOST: how many files that were sent are remembered. ALIKE: how many of them one name may lead to, such as the digest
-- of the first bytes that several logs have in common.
_memory = { MOST = 100000, ALIKE = 16 }

-- Whether only one file can have this name, which is true for an inode and a path.
--- (name: str) -> bool
function memory.is_unique(name)
  local kind = string.sub(name, 1, 1)
  return kind == "i" or kind == "p"
end

-- Returns the ids of the entries that this name leads to.
--- (name: str) -> table
--- uses: base
function memory.find(name)
  local found = redis.call("HGET", base .. "sources", name)
  if not found then return {} end
  return memory.is_unique(name) and { found } or cmsgpack.unpack(found)
end

-- Removes one of the names of an entry: the name leads to its other entries only.
--- (name: str, id: str)
--- uses: base
function memory.remove_name(name, id)
  local kept = {}
  for _, one in ipairs(memory.find(name)) do
    if one ~= id then kept[#kept + 1] = one end
  end
  if #kept == 0 then
    redis.call("HDEL", base .. "sources", name)
  elseif not memory.is_unique(name) then
    redis.call("HSET", base .. "sources", name, cmsgpack.pack(kept))
  end
end

-- Makes a name lead to an entry; one that only one file can have leads to no other entry then.
--- (name: str, id: str)
--- uses: base
function memory.add_name(name, id)
  if memory.is_unique(name) then
    redis.call("HSET", base .. "sources", name, id)
    return
  end
  local kept = {}
  for _, one in ipairs(memory.find(name)) do
    if one ~= id then kept[#kept + 1] = one end
  end
  kept[#kept + 1] = id
  if #kept > _memory.ALIKE then table.remove(kept, 1) end
  redis.call("HSET", base .. "sources", name, cmsgpack.pack(kept))
end

-- Stores an entry. `names`: the names that lead to it from now on; {} leaves them unchanged.
--- (id: str, token: str, upload_id: str, upload_state: str, outcome: str, names: table)
--- uses: base
function memory.store(id, token, upload_id, upload_state, outcome, names)
  local entry = redis.call("HGET", base .. "entries", id)
  local old = entry and cmsgpack.unpack(entry)[5] or {}
  if #names == 0 then
    names = old
  else
    local is_new = {}
    for _, name in ipairs(names) do is_new[name] = true end
    for _, name in ipairs(old) do
      if is_new[name] then is_new[name] = false else memory.remove_name(name, id) end
    end
    for _, name in ipairs(names) do
      if is_new[name] or memory.is_unique(name) then memory.add_name(name, id) end
    end
  end
  redis.call("HSET", base .. "entries", id, cmsgpack.pack({ token, upload_id, upload_state, outcome, names }))
end

--- (id: str)
--- uses: base
function memory.forget(id)
  local entry = redis.call("HGET", base .. "entries", id)
  for _, name in ipairs(entry and cmsgpack.unpack(entry)[5] or {}) do memory.remove_name(name, id) end
  redis.call("HDEL", base .. "entries", id)
  redis.call("ZREM", base .. "sent_at", id)
end

-- Notes that a file was sent, and forgets the oldest ones if there are too many. Returns how many were forgotten.
--- (id: str, now: int) -> int
--- uses: base
function memory.note_sent(id, now)
  redis.call("ZADD", base .. "sent_at", now, id)
  local old = redis.call("ZRANGE", base .. "sent_at", 0, -_memory.MOST - 1)
  for i = 1, #old do memory.forget(old[i]) end
  return #old
end

-- Makes space for `size` bytes: trims what is left to trim, then passes over the slowest receivers if they have been
-- away for longer than `patience`. The time that a receiver has been away is counted from its last call or from when
-- its first unread record was sent, whichever is later. Returns 0 if there is space or another call may make some, the
-- ms after which the next receiver will be passed over, or -1 if none will be.
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

-- Returns the entries to which these names lead: { "OK", { id, entry, … }, … }, one list for each name.
--- keys: base state
--- args: names: *
--- flags: no-writes
--- frame: format
function script.find_entries(base, state, names, ...)
  local answer = { "OK" }
  for i = names, #ARGV do
    local found = {}
    for _, id in ipairs(memory.find(ARGV[i])) do
      local entry = redis.call("HGET", base .. "entries", id)
      if entry then
        found[#found + 1] = id
        found[#found + 1] = entry
      end
    end
    answer[#answer + 1] = found
  end
  return answer
end

-- Makes this token the owner of an upload that another process began: that process is refused from now on. Returns
-- { "OK", entry }, or { "TAKEN" } if this upload has ended.
--- keys: base state
--- args: id: str, upload_id: str, token: str
--- flags: allow-oom
--- frame: format
function script.take_over(base, state, id, upload_id, token)
  local entry = redis.call("HGET", base .. "entries", id)
  if not entry then return { "TAKEN" } end
  local _, known, upload_state, outcome, names = unpack(cmsgpack.unpack(entry))
  if known ~= upload_id then return { "TAKEN" } end
  entry = cmsgpack.pack({ token, upload_id, upload_state, outcome, names })
  redis.call("HSET", base .. "entries", id, entry)
  return { "OK", entry }
end

-- Notes that a file that was sent has other names now, because it was renamed or packed. Its entry must be `expected`.
-- Returns { "OK", how many files were forgotten }, or { "TAKEN" } if another process has sent more of the file.
--- keys: base state
--- args: caller: str, number: int, given: int, id: str, expected: str, upload_state: str, outcome: str, names: *
--- frame: once
function script.rename_entry(base, state, caller, number, given, id, expected, upload_state, outcome, names, ...)
  if not l then return { "GONE" } end
  if redis.call("HGET", base .. "entries", id) ~= expected then return { "TAKEN" } end
  memory.store(id, "", "", upload_state, outcome, { unpack(ARGV, names) })
  return { "OK", memory.note_sent(id, clock.now(given)) }
end

-- Whether a piece of a `put` may be stored: the sender still owns its upload, or, if the upload begins, no other
-- process has sent the file since the sender looked.
--- (one: table, token: str) -> bool
--- uses: base
function upload.is_current(one, token)
  local entry = redis.call("HGET", base .. "entries", one.id) or ""
  if one.expected == "-" then
    local known_token, known_upload
    if entry ~= "" then known_token, known_upload = unpack(cmsgpack.unpack(entry)) end
    return known_token == token and known_upload == one.upload_id
  end
  if entry ~= one.expected then return false end
  if entry ~= "" or #one.names == 0 then return true end
  local leads_to = redis.call("HGET", base .. "sources", one.names[1])
  return not leads_to or leads_to == one.known
end

-- Reads the pieces of a `put` from its arguments, which begin at `i`. Returns them, and the bytes of their records.
--- (i: int) -> table, int
function upload.read_pieces(i)
  local pieces, size = {}, 0
  while i <= #ARGV do
    local one = {
      id = ARGV[i], upload_id = ARGV[i + 1], expected = ARGV[i + 2], known = ARGV[i + 3], state = ARGV[i + 4],
      outcome = ARGV[i + 5], names = {},
    }
    local names, records = tonumber(ARGV[i + 6]), tonumber(ARGV[i + 7])
    i = i + 8
    for j = i, i + names - 1 do one.names[#one.names + 1] = ARGV[j] end
    one.from, one.to = i + names, i + names + 2 * records - 1
    for j = one.from, one.to, 2 do size = size + log.size(ARGV[j] .. one.upload_id, ARGV[j + 1]) end
    i = one.to + 1
    pieces[#pieces + 1] = one
  end
  return pieces, size
end

-- Appends records of one or more uploads, and stores the progress of each. Does all of it or nothing. The arguments of
-- one upload are:
--
--   id           of the file's entry
--   upload_id    of the upload
--   expected     "-" if the upload continues: its entry must have this upload id and this token. Otherwise the upload
--                begins, and this is what the entry must be: the one that the sender found, or "" for none
--   known        if the upload begins without an entry: the id to which the first of `names` led when the sender
--                looked. If it leads to another one now, another process has sent the file in the meantime
--   state        the progress of the upload
--   outcome      "" if the upload does not end with these records, "-" if it ends and its entry is removed, else the
--                outcome to be stored
--   names        how many names follow these numbers
--   records      how many records follow the names
--   name, …      the names that lead to the entry from now on, the inode first; without any, the present ones stay
--   kind, body, …
--
-- Returns { "OK", bytes in the channel, slowest receiver, how many files were forgotten }; { "FULL", the ms from
-- `make_space`, bytes in the channel, slowest receiver }; { "CLOSED", number of receivers that have not received
-- everything }; { "TAKEN" }; or { "GONE" | "VANISHED" | "LARGE" | "NOT_A_MEMBER" }.
--- keys: base state
--- args: caller: str, number: int, given: int, token: str, pieces: *
--- frame: once
function script.put(base, state, caller, number, given, token, pieces, ...)
  if not l then return { "GONE" } end
  if channel.close_number() > 0 then return { "CLOSED", redis.call("ZCARD", base .. "readers") } end
  local uploads, size = upload.read_pieces(pieces)
  for _, one in ipairs(uploads) do
    if not upload.is_current(one, token) then return { "TAKEN" } end
  end
  if not channel.has_receivers() then return { "NOT_A_MEMBER" } end
  local now, forgotten = clock.now(given), 0
  if size > l.bytes then return { "LARGE" } end
  local full = upload.refuse_if_full(l, size, now)
  if full then return full end
  for _, one in ipairs(uploads) do
    for i = one.from, one.to, 2 do
      local is_there = log.append(l, now, ARGV[i] .. one.upload_id, ARGV[i + 1])
      if not is_there then return { "VANISHED", "log" } end -- found by the first record, before anything is written
    end
    if one.outcome == "" then
      redis.call("ZREM", base .. "sent_at", one.id)
      memory.store(one.id, token, one.upload_id, one.state, "", one.names)
    elseif one.outcome == "-" then
      memory.forget(one.id)
    else
      memory.store(one.id, "", "", one.state, one.outcome, one.names)
      forgotten = forgotten + memory.note_sent(one.id, now)
    end
  end
  log.save(l, now)
  local bytes = l.ended - l.begun
  if bytes > tonumber(redis.call("HGET", state, "peak") or 0) then redis.call("HSET", state, "peak", bytes) end
  log.report(l, now)
  log.wake_senders(l)
  return { "OK", bytes, upload.slowest(), forgotten }
end

-- For a sender that got FULL: asks whether there is space for `size` bytes, and for a quarter of the limit if that is
-- more. With less space, the sender would send nearly every megabyte in vain, and get FULL again. If there is too
-- little space, registers `address` for `wait_ms`. Returns OK or FULL, as `put` does.
--- keys: base state
--- args: given: int, size: int, address: str, wait_ms: int
--- flags: allow-oom
--- frame: log
function script.await_space(base, state, given, size, address, wait_ms)
  local space = l and math.min(l.bytes, math.max(size, math.floor(l.bytes / 4)))
  local is_open = l and channel.close_number() == 0
  local full = is_open and upload.refuse_if_full(l, space, clock.now(given))
  log.await_space(space or 0, address, full and wait_ms or 0)
  if is_open then log.wake_senders(l) else log.dismiss_senders() end
  return full or { "OK", l and l.ended - l.begun or 0, "" }
end
