-- Waking those that wait for a log (log.lua): for messages, for space, or for the end of a lease.
--
-- Faces that wait for a message or for a lease are served in slices (waiting.lua). A script that reports an event wakes
-- the first slice, and returns how many are left; its caller repeats `wake` until none is left. Each face that was
-- woken calls a script of this log next, and that wakes another slice.

-- A score in `watching` below TIMES is a message number, and one from TIMES on is a time in ms. MS: an hour.
_watching = { TIMES = 1000000000000, MS = 3600000, SLICE = 100 }

-- Registers a sender for `ms`: it is notified when that many `bytes` are free. `ms` 0 removes it.
--- (bytes: number, address: str, ms: int)
--- uses: base
--- seldom
function log.await_space(bytes, address, ms)
  local key = base .. "wanting"
  if ms > 0 then
    redis.call("ZADD", key, bytes, address)
    if redis.call("PTTL", key) < ms then redis.call("PEXPIRE", key, ms) end
  else
    waiting.remove("wanting", address)
  end
end

-- Wakes a slice of the senders for which there is space now. Their next calls wake the others.
--- (l: table)
--- uses: base
function log.wake_senders(l)
  if redis.call("EXISTS", base .. "wanting") == 0 then return end
  if l.refuse and l.messages > 0 and l.top - l.first + 1 >= l.messages then return end
  local is_limited = l.refuse and l.bytes > 0
  waiting.wake_below("wanting", is_limited and string.format("%d", l.bytes - l.ended + l.begun) or "+inf")
end

-- Wakes a slice of all senders that wait, because the log takes no more messages. Returns how many are left.
--- () -> int
--- uses: base
function log.dismiss_senders()
  return waiting.wake_below("wanting", "+inf")
end

-- Registers a face that waits for a message, for `ms`; `ms` 0 removes it.
--- (address: str, ms: int)
--- uses: base
function log.await_message(address, ms)
  if ms > 0 then waiting.add("waiting", address, ms) else waiting.remove("waiting", address) end
end

-- Reports new messages: wakes a slice of those that wait for them; the caller repeats `script.wake` until none is left.
-- Returns what `wake_others` returns.
--- (l: table, now: int) -> int, table
--- uses: base
function log.report(l, now)
  if redis.call("EXISTS", base .. "waiting", base .. "watching", base .. "idle") == 0 then return 0, {} end
  return log.wake_others(l, now, waiting.report("waiting"))
end

-- Wakes a slice of the faces that wait for this log, and a worker of each shared reader. Returns what `wake_others`
-- returns.
--- (l: table, now: int) -> int, table
--- uses: base
function log.wake_rest(l, now)
  if redis.call("EXISTS", base .. "waiting", base .. "watching", base .. "idle") == 0 then return 0, {} end
  return log.wake_others(l, now, waiting.wake("waiting"))
end

-- Wakes a worker of each shared reader. Returns two values. The first is how many are left to be woken, including the
-- argument `left`. The second is up to a hundred readers whose members wait for messages of all their chats; the caller
-- must notify these members. A reader that has not read within an hour is returned again, because the caller may have
-- died before it notified the member.
--- (l: table, now: int, left: int) -> int, table
--- uses: base
--- seldom
function log.wake_others(l, now, left)
  left = left + shared_reader.wake(l.top, now)
  local watching, before = base .. "watching", "(" .. l.top
  local found = redis.call("ZRANGE", watching, "-inf", before, "BYSCORE", "LIMIT", 0, _watching.SLICE)
  if #found == _watching.SLICE then
    left = left + redis.call("ZCOUNT", watching, "-inf", before) - #found
  elseif #found == 0 then
    found = redis.call("ZRANGE", watching, _watching.TIMES, now, "BYSCORE", "LIMIT", 0, _watching.SLICE)
  end
  for i = 1, #found do redis.call("ZADD", watching, now + _watching.MS, found[i]) end
  return left, found
end

-- Reports any other change that waiting readers must see, such as their removal: wakes a slice of the faces that wait.
-- Returns how many are left.
--- () -> int
--- uses: base
function log.report_change()
  return waiting.report("waiting") + waiting.report("standby") + shared_reader.wake_ended()
end

-- Wakes the next slice of those that a change has not reached yet. Returns how many are left.
--- () -> int
--- uses: base
--- seldom
function log.wake_changed()
  return waiting.wake("waiting") + waiting.wake("standby") + shared_reader.wake_ended()
end

-- Returns the error for a sender that is not a member: NOT_A_MEMBER, or VANISHED if all readers have vanished.
--- () -> table
--- uses: base
--- inline
function log.refuse_sender()
  return redis.call("EXISTS", base .. "readers") == 1 and { "NOT_A_MEMBER" } or { "VANISHED", "readers" }
end

-- Returns the error for a reader that is not a member: NOT_A_MEMBER, or VANISHED if all readers have vanished. If
-- it was removed a moment ago, others may have been removed with it. So that they notice, this wakes the next slice of
-- those that wait.
--- () -> table
--- uses: base
--- seldom
function log.refuse()
  log.wake_changed()
  return log.refuse_sender()
end

-- Removes an address from all lists of those that wait. `is_worker` 1: it belongs to a worker of this shared reader.
--- keys: base state
--- args: given: int, address: str, is_worker: int, reader: str
--- flags: allow-oom
function script.stop_waiting(base, state, given, address, is_worker, reader)
  for _, list in ipairs({ "waiting", "standby", "wanting" }) do waiting.remove(list, address) end
  if is_worker == 1 then shared_reader.leave(reader, address, clock.now(given)) end
  return 1
end

-- Wakes the next slice of those that wait. Returns { "OK", how many are left, { reader to notify, … } }.
--- keys: base state
--- args: given: int
--- flags: allow-oom
--- frame: log
function script.wake(base, state, given)
  local left, to_notify = log.wake_changed(), {}
  if not l or redis.call("HEXISTS", state, "end") == 1 then left = left + log.dismiss_senders() end
  if l then left, to_notify = log.wake_others(l, clock.now(given), left) end
  return { "OK", left, to_notify }
end
