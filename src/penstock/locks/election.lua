-- The scripts of an election: one leader at a time, and a term that is higher for each leader.
--
--            campaign                          resign
--   (none) ─────────────▶ a leader ──────────────────────────▶ (none)
--     ▲                   │  │ ▲                                 │ there is a candidate
--     └─ its lease ended ─┘  └─┘ renew                           ▼
--                                          taken            reserved for the first candidate, for 2 s
--                              a leader ◀───────────────────────┘
--
--   leader     HASH    token; at: server microseconds of its election; value: what it announced; address: where it is
--                      notified when an operator breaks its leadership; PX its lease. While it is reserved for a
--                      candidate: token alone
--   term       STRING  the last term; PX the lease and an hour
--   observers  ZSET    faces that wait for the next leader (waiting.lua)
--   broken     see breaking.lua
--   waiters, checks, offers, unresponsive: the candidates, see core/waiters.lua
--
-- No script runs when a lease ends, so no message reports that. Observers look when the lease should have ended. The
-- next leader is reported to them as soon as it has taken the leadership.

-- Makes a request the leader. Returns its term. The term comes from the clock, so it is higher than all earlier ones
-- even if a failover lost the last of them.
--- (r: table, us: int, value: str) -> int
--- uses: base leader
function election.elect(r, us, value)
  local last, ms = redis.call("GET", base .. "term"), r[_request.LEASE_MS]
  local term = last and math.max(us, last + 1) or us
  redis.call("HSET", leader, "token", r[_request.TOKEN], "at", us, "value", value)
  redis.call("PEXPIRE", leader, ms)
  redis.call("SET", base .. "term", term, "PX", ms + 3600000)
  waiting.report("observers")
  return term
end

-- Extends the lease of the leader to `ms` from now; never shortens it. Returns the ms that are left.
--- (ms: int) -> int
--- uses: base leader
function election.extend(ms)
  local left = redis.call("PTTL", leader)
  if left >= ms then return left end
  redis.call("PEXPIRE", leader, ms)
  redis.call("PEXPIRE", base .. "term", ms + 3600000)
  return ms
end

-- Reserves the leadership for the first candidate, if there is no leader. Returns 1 if it dropped as many dead
-- candidates as one call may, and has not finished; then the caller repeats the call. In case the caller dies, a
-- candidate is asked to try again in a second.
--- (view: table) -> int
--- uses: base leader
function election.hand_over(view)
  while redis.call("EXISTS", leader) == 0 do
    local head, r = waiters.head(view, base)
    if not head then return 0 end
    if view.left <= 0 then
      waiters.ask_last(view, base, view.now + 1000, "")
      return 1
    end
    if waiters.notify(view, head, r, "0") then
      local ms = math.min(r[_request.LEASE_MS], 2000)
      redis.call("HSET", leader, "token", r[_request.TOKEN])
      redis.call("PEXPIRE", leader, ms)
      waiters.offer(view, head, r, ms)
    end
  end
  return 0
end

-- Returns when the lease of the leader expires.
--- (now: int) -> int
--- uses: leader
function election.due(now)
  return now + math.max(1, redis.call("PTTL", leader) + 1)
end

-- One attempt to become the leader. If the request leads already, its lease starts again.
-- `ticket`: from the reply to the last attempt; 0 for the first. `join`: 1 to join the candidates, or keep the position
-- among them, if it is not elected.
-- Returns { 1, term, 0, now } or { 0, ticket, ms until it should try again, now }, as the script of a lock does. 0 ms:
-- this call dropped as many dead candidates as one call may, and does not know yet whether the request can be elected;
-- it is to be repeated at once.
--- keys: base leader
--- args: request: str, ticket: int, join: int, value: str
function script.acquire(base, leader, request, ticket, join, value)
  local us = clock.micros()
  local now = math.floor(us / 1000)
  local r, view = cmsgpack.unpack(request), waiters.view(now)
  local token, at = unpack(redis.call("HMGET", leader, "token", "at"))
  if token == r[_request.TOKEN] then
    if r[_request.ADDRESS] ~= "" then waiters.mark_taken(view, request, r) end
    if not at then return { 1, election.elect(r, us, value), 0, us } end
    election.extend(r[_request.LEASE_MS])
    return { 1, tonumber(redis.call("GET", base .. "term")), 0, us }
  end
  if r[_request.ADDRESS] ~= "" then waiters.mark_alive(r, now) end

  local answer
  if not token and waiters.is_first(view, base, request, ticket) then
    answer = { 1, election.elect(r, us, value), 0, us }
    waiters.stop_waiting(view, request, r, ticket)
  else
    local ms = -1
    if join == 1 then
      ticket, ms = waiters.wait(view, request, r, ticket, us, election.due(now))
    elseif ticket > 0 then
      waiters.leave(request, r)
    end
    answer = { 0, ticket, ms, us }
  end
  if election.hand_over(view) == 1 and answer[1] == 0 then answer[3] = 0 end
  return answer
end

-- Reserves the leadership for the first candidate, and reports to the observers that there is no leader if there is no
-- candidate either; else the candidate's own call reports the next leader. Returns what `hand_over` returns.
--- (view: table) -> int
--- uses: base leader
function election.vacate(view)
  local more = election.hand_over(view)
  if redis.call("EXISTS", leader) == 0 then waiting.report("observers") end
  return more
end

-- Ends the leadership of a request, removes it from the candidates, and reserves the leadership for the next one.
-- Returns { 1 if it led, 1 if the call must be repeated because there are more candidates to look at, the reason if an
-- operator broke the leadership }.
--- keys: base leader
--- args: request: str
--- flags: allow-oom
function script.release(base, leader, request)
  local now = math.floor(clock.micros() / 1000)
  local r, view, led = cmsgpack.unpack(request), waiters.view(now), false
  if redis.call("HGET", leader, "token") == r[_request.TOKEN] then
    redis.call("DEL", leader)
    led = true
  end
  if waiters.withdraw(request, r) then waiters.ensure_check(view, base, election.due(now), "") end
  if led then return { 1, election.vacate(view), false } end
  return { 0, election.hand_over(view), breaking.reason(base, r[_request.TOKEN]) }
end

-- Extends the lease to `ms` from now; never shortens it. `address`: where the leader is notified when an operator
-- breaks its leadership, or "". Returns { 1, ms that are left }, or { 0, the reason if an operator broke it } if the
-- request does not lead any longer.
--- keys: base leader
--- args: request: str, ms: int, address: str
--- flags: allow-oom
function script.renew(base, leader, request, ms, address)
  local r = cmsgpack.unpack(request)
  local token, at = unpack(redis.call("HMGET", leader, "token", "at"))
  if token ~= r[_request.TOKEN] or not at then return { 0, breaking.reason(base, r[_request.TOKEN]) } end
  if address ~= "" then redis.call("HSET", leader, "address", address) end
  return { 1, election.extend(ms) }
end

-- Takes the leadership from the leader with this token, notifies it, and reserves the leadership for the first
-- candidate. Returns what the script of a lock returns.
--- keys: base leader
--- args: token: str, reason: str
--- flags: allow-oom
function script.end_holding(base, leader, token, reason)
  local found, at, address = unpack(redis.call("HMGET", leader, "token", "at", "address"))
  if found ~= token or not at then return { breaking.reason(base, token) and 1 or 0, 0 } end
  redis.call("DEL", leader)
  breaking.note(base, token, reason)
  if address then notify.send(address, token .. " " .. reason) end
  return { 1, election.vacate(waiters.view(math.floor(clock.micros() / 1000))) }
end

-- Returns { server microseconds, ms left, term or false, token, at, value }, the last three false without a leader; ms
-- left is negative if nothing is held or reserved.
--- () -> table
--- uses: base leader
function election.state()
  local token, at, value = unpack(redis.call("HMGET", leader, "token", "at", "value"))
  local shown = { clock.micros(), redis.call("PTTL", leader), redis.call("GET", base .. "term"), false, false, false }
  if at then shown[4], shown[5], shown[6] = token, at, value end
  return shown
end

-- Registers an observer for `ms` if the leader still has the token `known`, or if `known` is "" and there is no leader.
-- Otherwise the returned state is news for it. With 0 ms, removes the observer. Returns what `election.state` returns.
--- keys: base leader
--- args: address: str, ms: int, known: str
--- flags: allow-oom
function script.observe(base, leader, address, ms, known)
  waiting.wake("observers") -- the others, slice by slice
  local shown = election.state()
  if ms == 0 then
    waiting.remove("observers", address)
  elseif (shown[4] or "") == known then
    waiting.add("observers", address, ms)
  end
  return shown
end

-- Returns { what `election.state` returns, number of candidates, request, ticket, … } in one list.
--- keys: base leader
--- args: limit: int
--- flags: no-writes
function script.show(base, leader, limit)
  local shown, candidates = election.state(), waiters.list(base, limit)
  for i = 1, #candidates do shown[6 + i] = candidates[i] end
  return shown
end
