-- Idle workers that serve the same work, such as the jobs of a queue. New work wakes one of them, and not all.
--
--   list    ZSET   address (notify.lua) -> server ms until which the worker is idle
--
-- The caller names this key, adds and removes the addresses, and stores the `_woken` of a list. Messages to an idle
-- worker: "0": look for work now; "<n>": look for work in n ms.
--
-- New work wakes the worker that became idle last. If its process is gone, the worker is forgotten and the next one is
-- tried. A process may also be frozen, so another idle worker is its deputy, and looks for work 50 ms later.

-- Each is false where it is not known.
_woken = {
  AT = 1, -- ms of the last wake-up; false as soon as a worker looks for work
  DEPUTY = 2, -- the deputy (deputy.lua) of the worker that was woken last
  DEPUTY_AT = 3, -- when that deputy looks for work
}

-- `notify_last` reads the first 4 workers, then 100 at a time, and skips at most 100 of one process. One call forgets
-- about a thousand workers that are gone, and wakes at most 100.
_idle_slice = { FIRST = 4, NEXT = 100, SKIPPED = 100, GONE = 1000, WOKEN = 100 }

-- Sends `text` to the worker that became idle last; with nil, only checks that the worker can be reached. Returns its
-- address, until when it is idle, and whether it is alone in the list. Skips workers in the process of `other`, because
-- whatever freezes that worker freezes them as well. Removes workers that are gone, and appends them to `gone`. If even
-- the worker with the latest deadline is overdue, all of them are gone.
--- (list: str, now: int, other: str | nil, text: str | nil, gone: table) -> str | nil, str, bool
function sleepers.notify_last(list, now, other, text, gone)
  local face = other and notify.face(other)
  local skipped, n = 0, _idle_slice.FIRST
  while skipped < _idle_slice.SKIPPED and #gone < _idle_slice.GONE do
    local found = redis.call("ZRANGE", list, skipped, skipped + n - 1, "REV", "WITHSCORES")
    local before, is_last, reached, until_ = #gone, #found < 2 * n, nil, nil
    for i = 1, #found, 2 do
      local address = found[i]
      if tonumber(found[i + 1]) <= now then
        if skipped == 0 then redis.call("DEL", list) end
        is_last = true
        break
      end
      if notify.face(address) == face then
        skipped = skipped + 1
      elseif text and notify.send(address, text) or not text and notify.reaches(address) then
        reached, until_ = address, found[i + 1]
        break
      else
        gone[#gone + 1] = address
      end
    end
    if #gone > before then redis.call("ZREM", list, unpack(gone, before + 1)) end
    if reached or is_last then return reached, until_, #found == 2 and skipped == 0 end
    n = _idle_slice.NEXT
  end
end

-- Whether a worker was woken in the last 50 ms and has not looked for work yet.
--- (marks: table, now: int) -> bool
--- inline
function sleepers.was_woken(marks, now)
  return marks[_woken.AT] and math.abs(now - marks[_woken.AT]) < _deputy.READY
end

-- Wakes one idle worker, unless one was woken in the last 50 ms and has not looked for work yet. Changes `marks`, the
-- `_woken` of the list. Returns the addresses of workers that were found to be gone, and whether the list is empty now.
--- (list: str, marks: table, now: int) -> table, bool
--- seldom
function sleepers.wake_one(list, marks, now)
  local gone = {}
  if sleepers.was_woken(marks, now) then return gone, false end
  local worker, _, is_alone = sleepers.notify_last(list, now, nil, "0", gone)
  if not worker then return gone, #gone < _idle_slice.GONE end
  redis.call("ZREM", list, worker)
  marks[_woken.AT] = now
  -- No new deputy is needed if one that is still idle looks for work within the next 50 ms.
  local looks_at = marks[_woken.DEPUTY_AT]
  local has_deputy = looks_at and looks_at - now >= 0 and looks_at - now <= _deputy.READY
    and redis.call("ZSCORE", list, marks[_woken.DEPUTY])
  local second = not has_deputy and not is_alone
    and sleepers.notify_last(list, now, worker, string.format("%d", _deputy.READY), gone)
  if second then marks[_woken.DEPUTY], marks[_woken.DEPUTY_AT] = second, now + _deputy.READY end
  return gone, is_alone
end

-- Wakes up to `most` idle workers, at most a hundred. Returns the addresses of workers that were found to be gone.
--- (list: str, now: int, most: int) -> table
function sleepers.wake_many(list, now, most)
  local woken, gone = 0, {}
  most = math.min(most, _idle_slice.WOKEN)
  while woken < most and #gone < _idle_slice.GONE do
    local found = redis.call("ZRANGE", list, now, "+inf", "BYSCORE", "LIMIT", 0, most - woken)
    if #found == 0 then break end
    for i = 1, #found do
      if notify.send(found[i], "0") then woken = woken + 1 else gone[#gone + 1] = found[i] end
    end
    redis.call("ZREM", list, unpack(found))
  end
  return gone
end
