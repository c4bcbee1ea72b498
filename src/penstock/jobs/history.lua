-- The history of a queue: what its counters said every 10 s of the last hour, and every minute of the last day.
--
--   history:10   LIST   rows of 52 bytes, one for each 10 s in which a job was enqueued or a worker took a turn; TTL an
--                       hour
--   history:60   LIST   the same for each minute; TTL a day
--
-- A row holds, each in as many bytes as `_history.ROW` says: the time in hundredths of a second; ready, delayed
-- (with sleeping) and parked jobs; running and dead ones; the seconds for which the oldest ready job has waited; the
-- workers; and the last 24 bits of the totals: entered, completed, retried, failed, dropped, cancelled, expired and
-- lost. Differences of two rows are what happened between them, so a row needs no earlier one. Both lists together stay
-- below 100 kB.
--
-- The first script in each 10 s that may move jobs writes the rows, before it changes anything. All others pay for one
-- comparison. So what the counters say now is what they said at the end of the 10 s of the last row, and a reader gets
-- that as one more row. A turn of a queue that was never used writes no row.

history = { ROWS_OF_10_S = 360, ROWS_OF_A_MINUTE = 1440, ROW_BYTES = 52, WRAP = 16777216 }

-- intervals in ms
_history = { INTERVAL = 10000, MINUTE = 60000, ROW = ">I5I4I4I4I3I3I3I2I3I3I3I3I3I3I3I3", TIME = ">I5",
  SHORT = 65535 }

-- A row of what the counters say, for the time `at`.
--- (s: table, at: int) -> str
--- uses: base
function history.packed(s, at)
  local r, wrap = s.row, history.WRAP
  local oldest = counters.oldest_second(r)
  return struct.pack(
    _history.ROW, math.floor(at / 10), r[_row.READY], r[_row.DELAYED] + (r[_row.SLEEPING] or 0), r[_row.PARKED] or 0,
    math.min(r[_row.RUNNING], wrap - 1), math.min(r[_row.DEAD], wrap - 1),
    oldest and math.max(0, math.min(math.floor(at / 1000) - oldest, wrap - 1)) or 0,
    math.min(redis.call("HLEN", base .. "workers"), _history.SHORT), s.entered % wrap, r[_row.COMPLETED] % wrap,
    r[_row.RETRIED] % wrap, r[_row.FAILED] % wrap, r[_row.DROPPED] % wrap, r[_row.CANCELLED] % wrap,
    r[_row.EXPIRED] % wrap, r[_row.LOST] % wrap
  )
end

-- Takes down what the counters say, and sets when the next row is due. `row.store` writes both, or neither.
--- (s: table)
--- uses: base
--- seldom
function history.add(s)
  local now = s.now
  s.counted, s.counted_before = history.packed(s, now), s.next_history
  s.next_history, s.has_ttl = now - now % _history.INTERVAL + _history.INTERVAL, 0
end

-- Writes the rows of what `add` has taken down.
--- (s: table)
--- uses: base
--- seldom
function history.write(s)
  history.push(base .. "history:10", s.counted, history.ROWS_OF_10_S, 3600)
  if s.counted_before <= s.now - s.now % _history.MINUTE then
    history.push(base .. "history:60", s.counted, history.ROWS_OF_A_MINUTE, 86400)
  end
  s.counted = nil
end

-- Appends a row to a list of at most `most` rows.
--- (key: str, row: str, most: int, ttl: int)
function history.push(key, row, most, ttl)
  if redis.call("RPUSH", key, row) > most then redis.call("LPOP", key) end
  redis.call("EXPIRE", key, ttl)
end

-- The latest `count` rows of 10 s or of a minute (`seconds`), the oldest first; after the last one, what the counters
-- said at the end of its interval, if that is over.
--- keys: base meta
--- args: given: int, seconds: int, count: int
--- flags: allow-oom
--- frame: read
function script.history(base, meta, given, seconds, count)
  local rows, interval = redis.call("LRANGE", base .. "history:" .. seconds, -count, -1), seconds * 1000
  if #rows > 0 then
    local last = struct.unpack(_history.TIME, rows[#rows]) * 10
    local ended = last - last % interval + interval
    if s.now >= ended then rows[#rows + 1] = history.packed(s, ended) end
  end
  return rows
end
