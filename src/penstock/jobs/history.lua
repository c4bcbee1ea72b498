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
-- The first enqueue or turn in each 10 s writes the rows, before it changes anything. All other scripts pay for one
-- comparison. A turn of a queue that was never used writes no row.

history = { ROWS_OF_10_S = 360, ROWS_OF_A_MINUTE = 1440, ROW_BYTES = 52, WRAP = 16777216 }

-- intervals in ms
_history = { INTERVAL = 10000, MINUTE = 60000, ROW = ">I5I4I4I4I3I3I3I2I3I3I3I3I3I3I3I3", SHORT = 65535 }

-- Writes a row, and sets when the next one is due.
--- (s: table)
--- uses: base meta
function history.add(s)
  local r, now, wrap = s.row, s.now, history.WRAP
  local oldest = counters.oldest_second(r)
  local row = struct.pack(
    _history.ROW, math.floor(now / 10), r[_row.READY], r[_row.DELAYED] + (r[_row.SLEEPING] or 0), r[_row.PARKED] or 0,
    math.min(r[_row.RUNNING], wrap - 1), math.min(r[_row.DEAD], wrap - 1),
    oldest and math.max(0, math.min(math.floor(now / 1000) - oldest, wrap - 1)) or 0,
    math.min(redis.call("HLEN", base .. "workers"), _history.SHORT), s.entered % wrap, r[_row.COMPLETED] % wrap,
    r[_row.RETRIED] % wrap, r[_row.FAILED] % wrap, r[_row.DROPPED] % wrap, r[_row.CANCELLED] % wrap,
    r[_row.EXPIRED] % wrap, r[_row.LOST] % wrap
  )
  history.push(base .. "history:10", row, history.ROWS_OF_10_S, 3600)
  local begun = now - now % _history.MINUTE
  if s.next_history <= begun then history.push(base .. "history:60", row, history.ROWS_OF_A_MINUTE, 86400) end
  s.next_history = now - now % _history.INTERVAL + _history.INTERVAL
end

-- Appends a row to a list of at most `most` rows.
--- (key: str, row: str, most: int, ttl: int)
function history.push(key, row, most, ttl)
  if redis.call("RPUSH", key, row) > most then redis.call("LPOP", key) end
  redis.call("EXPIRE", key, ttl)
end

-- { now, the latest `count` rows of 10 s or of a minute (`seconds`), the oldest first }
--- keys: base meta
--- args: given: int, seconds: int, count: int
--- flags: no-writes
--- frame: format
function script.history(base, meta, given, seconds, count)
  return { clock.now(given), unpack(redis.call("LRANGE", base .. "history:" .. seconds, -count, -1)) }
end
