-- Bookings: a running job says how many units of a rate it has really used. If that is more than its start took from
-- the bucket, the script takes the rest; if it is less, it gives the rest back.
--
-- The claim has the units that the job said last, after the keys of its limits of concurrency (limited_runs.lua). So a
-- call that is sent twice, or that says the same again, changes nothing. A later claim of the job takes its cost again.

-- The units that a claim has booked in a key, or nil; and the position of that number in the keys of the claim, or
-- that of the first byte behind them.
--- (packed: str, key: str) -> int | nil, int
--- seldom
function bookings.find(packed, key)
  local at = 2
  for _ = 1, string.byte(packed) do
    local units, one, next_ = struct.unpack(">I4Hc0", packed, at)
    if one == key then return units, at end
    at = next_
  end
  return nil, at
end

-- The claim with these units booked in a key.
--- (held: str, key: str, units: int) -> str
--- seldom
function bookings.noted(held, key, units)
  local packed = claim.keys(held)
  local known, at = bookings.find(packed, key)
  local new, number = _taken.pack({ units = units, key = key }), string.byte(packed)
  local before, rest = string.sub(packed, 2, at - 1), string.sub(packed, known and at + #new or at)
  if not known then number = number + 1 end
  return string.sub(held, 1, #held - #claim.keys(held)) .. string.char(number) .. before .. new .. rest
end

-- Books a difference in the bucket of a key. Admitted jobs that no longer fit are parked again.
--- (s: table, body: str, place: table, one: table, booked: int, units: int, began: int)
--- uses: base
--- seldom
function bookings.book(s, body, place, one, booked, units, began)
  local stored, now = base .. "rate:" .. place.key, s.now * _park.MICROS
  local interval = limits.definition(s, limits.name(place)).interval
  place.left = nil
  if units > booked then
    local full = math.ceil(bucket.take(stored, units - booked, now, interval, 0, "") / _park.MICROS)
    if record.powers(body) >= power.IN_SHARDS then shards.keep(record.tenant(body), s.now, full) end
    admission.park_over(s, place)
  else
    -- An operator may have changed the numbers since the start: give back no more time than either of them says.
    interval = math.min(interval, one[_limit.INTERVAL])
    bucket.refund(stored, booked - units, booked, began * _park.MICROS, now, interval)
  end
  limits.mark(s, place)
end

-- Books that a running job has used `units` of a key by now. Returns what was booked before: its cost, or what it said
-- last; -1 if the incarnation no longer holds the job, or if the job has no such limit.
--- keys: base meta
--- args: given: int, incarnation: str, token: str, key: str, units: int
--- flags: allow-oom
--- frame: change
function script.used(base, meta, given, incarnation, token, key, units)
  local held, id = lease.held_alive(incarnation, token, s.now), token.id(token)
  local body = held and record.get(id)
  if not body or not record.has(record.flags(body), flag.LIMITED) then return -1 end
  local list = record.limits(body)
  local at = record.find_limit(list, key)
  if not at then return -1 end
  local booked = bookings.find(claim.keys(held), key) or list[at][_limit.COST]
  if units ~= booked then
    redis.call("HSET", base .. "held:" .. incarnation, id, bookings.noted(held, key, units))
    bookings.book(s, body, limits.place(s, key), list[at], booked, units, claim.at(held))
  end
  return booked
end
