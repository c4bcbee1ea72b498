-- Wake-ups: short messages to listeners. Each operation of a process that waits for something has a listener.
--
-- A face is the blocking side of a process, or one of its event loops. Each face subscribes to one channel,
-- `penstock:wake:<face>`; on a cluster to one for each slot in which it waits, `penstock:wake:{<tag>}:<face>`. The
-- address of a listener is `<channel>/<number>`. The text of a message depends on what the listener waits for; mostly
-- it is the milliseconds after which to look at the state again.
--
-- The script that changes the state sends the message, which is only a hint to look at the state. If a message is lost,
-- its listener finds the change later, but no change is lost.
--
-- The nodes of a shard forward messages to each other, but a script can count only the subscribers of its own node.
-- After a fail-over, a face may still be subscribed at the old primary, because a replica accepts subscribers as well.

-- Sends a message to a listener. Returns false if its face is not subscribed at this node: the process has ended, or
-- will register again. So the caller can forget the address. The face may receive the message nevertheless. It then
-- receives an empty message as well, which makes the listener look at the state at once and register again.
--- (address: str, text: str) -> bool
function notify.send(address, text)
  local channel, number = string.match(address, "^(.*)/(.-)$")
  if channel == nil then return false end
  if redis.call("SPUBLISH", channel, number .. " " .. text) > 0 then return true end
  if text ~= "0" then redis.call("SPUBLISH", channel, number .. " ") end
  return false
end

-- Sends a message to all listeners of a face.
--- (face: str, text: str)
function notify.send_all(face, text)
  redis.call("SPUBLISH", face, "* " .. text)
end

-- Whether the face of an address is subscribed at this node: sends an empty message, which every face ignores. If the
-- face is not subscribed here, the caller will forget its listeners, but the face may be subscribed at another node. So
-- a second message asks all its listeners to look at their state.
--- (address: str) -> bool
function notify.reaches(address)
  local channel = string.match(address, "^(.*)/")
  if channel == nil then return false end
  if redis.call("SPUBLISH", channel, "") > 0 then return true end
  redis.call("SPUBLISH", channel, "* ")
  return false
end

-- The channel of an address, which all listeners of a face have in common.
--- (address: str) -> str
--- inline
function notify.face(address)
  return string.match(address, "^(.*)/")
end
