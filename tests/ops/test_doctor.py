"""The doctor finds nothing wrong with healthy servers, and names each problem of the others."""

import json

import pytest

from penstock import ConfigurationError, Penstock, Settings
from penstock.cli import main
from penstock.cli.exits import Exit
from penstock.errors import LeaseLost, ServerRefused
from penstock.ops import probe
from penstock.ops.doctor import TOPICS
from penstock.ops.inspect import Inspector
from tests.servers import HAS_WAITAOF, Cluster, Server, eventually, free_port


@pytest.fixture
def examine():
    """Starts a server with these options and asks the doctor about a topic: (level, message, advice) of each result."""

    def ask(topic, *options, before=None, prefix="penstock", port=0):
        with Server(*options, port=port) as server:
            if before:
                before(server.client)
            address = f"valkey://127.0.0.1:{port}" if port else server.address
            with Penstock(address, prefix=prefix) as app:
                return [(one.level, one.message, one.advice) for one in Inspector(app).doctor(topic)]

    return ask


def _replica(master):
    # A primary usually waits five seconds for more replicas before it syncs the first.
    master.client.config_set("repl-diskless-sync-delay", "0")
    return Server("--replicaof", "127.0.0.1", str(master.port), port=free_port())


def only(results, level):
    found = [one for one in results if one[0] == level]
    assert found, results
    assert all(advice for _, _, advice in found), "advice is given"
    return " | ".join(text for _, text, _ in found)


def test_a_good_server_fails_no_check(examine):
    results = examine(None, "--appendonly", "yes", "--appendfsync", "always")
    assert [text for level, text, _ in results if level == "fail"] == []


@pytest.mark.parametrize("place", ["valkey", "cluster", "redis"])
@pytest.mark.parametrize("face", ["blocking", "aio"])
async def test_every_topic_answers_on_both_faces_and_on_each_kind_of_server(do, app, place, face):
    await do(app.queue("mail").put, 1)
    results = await do(Inspector(app).doctor)
    topics = {result.topic for result in results}
    assert topics == set(TOPICS) - (set() if place == "cluster" else {"cluster"})
    assert {result.topic for result in results if result.level == "fail"} == {"persistence"}, "nothing is on disk"
    assert bool(results[0].server) == (place == "cluster")


def test_locks_are_proved_only_on_request(server, monkeypatch, capsys):
    from penstock.ops.proof import Proof

    assert main(["doctor", "locks", "--json", "--url", server.address]) == Exit.OK
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert (result["topic"], result["level"]) == ("locks", "ok")
    assert "by one owner at a time and with rising fences" in result["message"]
    broken = Proof(5, 5, 0, ["lock 'x': two held it"])
    monkeypatch.setattr("penstock.ops.doctor.prove", lambda app, seconds: broken)
    assert main(["doctor", "locks", "--url", server.address]) == Exit.FAILED
    assert "two held it" in capsys.readouterr().out


def test_the_proof_releases_a_lease_that_a_slow_reply_made_uncertain(apps):
    from penstock.ops.proof import _Contenders

    with apps.make() as app:
        contenders = _Contenders(app, 1)
        for resource in (contenders.lock, contenders.semaphores[-1]):
            held = resource.acquire()
            held.valid_until = 0.0
            with pytest.raises(LeaseLost):
                contenders._hold(held)
            resource.acquire().release()


def test_an_unknown_topic_is_refused_with_the_known_ones(examine):
    with pytest.raises(ConfigurationError, match="server, memory, persistence"):
        examine("weather")


def test_commands_that_a_server_lacks_are_named_with_what_they_cost(examine):
    healthy = examine("server")
    assert any("it runs scripts, and has sharded messages" in text for _, text, _ in healthy)
    cannot = examine("server", "--rename-command", "EVALSHA", "", "--rename-command", "HGETALL", "")
    assert "it lacks EVALSHA, HGETALL: Penstock cannot work with it" in only(cannot, "fail")
    without = examine("server", "--rename-command", "WAIT", "")
    assert ("ok", "it lacks WAIT: no durable=True by a replica") in [one[:2] for one in without]
    assert [one for one in without if one[0] == "fail"] == []
    silent = examine("server", "--rename-command", "EVAL", "")
    assert "it lacks EVAL" in only(silent, "fail")


def test_a_server_without_sharded_messages_fails_the_server_check(examine):
    assert "sharded messages (SSUBSCRIBE, SPUBLISH)" in only(
        examine("server", "--rename-command", "SPUBLISH", ""), "fail"
    )


def test_without_waitaof_durable_jobs_are_refused_for_that_reason(examine):
    lacking = ("--rename-command", "WAITAOF", "") if HAS_WAITAOF else ()
    results = examine("persistence", "--appendonly", "yes", "--appendfsync", "always", *lacking)
    assert ("ok", True) in [(level, "durable=True is refused: it has no WAITAOF" in text) for level, text, _ in results]


# --- memory ---


def test_a_server_that_evicts_fails(examine):
    evicting = examine("memory", "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    assert "a full server deletes jobs" in only(evicting, "fail")
    harmless = examine("memory", "--maxmemory-policy", "volatile-ttl")
    assert "no maxmemory" in only(harmless, "warn")


def test_evicted_keys_fail(examine):
    def overfill(client):
        for n in range(3000):
            client.set(f"k{n}", "x" * 4096)

    results = examine("memory", "--maxmemory", "6mb", "--maxmemory-policy", "allkeys-random", before=overfill)
    assert "keys were evicted" in only(results, "fail")


@pytest.mark.parametrize(("share", "level"), [(0.5, "ok"), (0.9, "warn"), (0.99, "fail")])
def test_a_server_that_fills_up_warns_and_then_fails(examine, share, level):
    def limit(client):
        client.setrange("ballast", 30_000_000, "x")  # without a large buffer of this client, which would be counted too
        client.config_set("maxmemory", int(client.info("memory")["used_memory"] / share))

    assert level in [one[0] for one in examine("memory", before=limit) if "in use" in one[1]]


# --- persistence ---


@pytest.mark.parametrize(
    ("options", "level", "message"),
    [
        ((), "fail", "a restart of the server loses every job"),
        (("--save", "60 1"), "warn", "snapshots only"),
        (("--appendonly", "yes", "--appendfsync", "no"), "warn", "a power cut takes some 30 s"),
        (("--appendonly", "yes", "--appendfsync", "everysec"), "ok", "takes the last second"),
        (("--appendonly", "yes", "--appendfsync", "always"), "ok", "nothing is lost"),
    ],
)
def test_what_a_crash_would_lose_is_reported(examine, options, level, message):
    results = examine("persistence", *options)
    assert (level, True) in [(one[0], message in one[1]) for one in results]


def test_under_always_durable_jobs_wait_for_the_disk(examine):
    (text,) = [one[1] for one in examine("persistence", "--appendonly", "yes", "--appendfsync", "always")[1:]]
    assert "durable=True waits for the disk" in text or "no disk is so fast" in text


def test_under_everysec_the_probe_sees_whether_a_confirmation_waits_for_an_fsync(examine):
    """Two writes in a row cannot both be on disk within a second of an fsync a second."""
    (text,) = [one[1] for one in examine("persistence", "--appendonly", "yes", "--appendfsync", "everysec")[1:]]
    assert text.startswith("durable=True is refused: 2 writes in a row were reported safe after")


@pytest.mark.parametrize(
    ("confirmed", "message"),
    [
        ([0.1, 0.1, 0.1], "with one fsync a second at most"),
        ([0.3, 1.0, 1.0], "so it does wait for an fsync"),
        ([float("inf")] * 3, "WAITAOF did not answer"),
    ],
)
def test_a_confirmation_without_an_fsync_is_recognised(server, monkeypatch, confirmed, message):
    def measured(node, key):
        return confirmed
        yield

    monkeypatch.setattr(probe, "time_confirmations", measured)
    monkeypatch.setattr("penstock.ops.checks.measurements.syncs_to_disk", lambda facts: True)
    with Penstock(server.address) as other:
        assert message in Inspector(other).doctor("persistence")[-1].message


def test_an_fsync_that_costs_nothing_is_doubted(server, monkeypatch):
    def same(node, command, times=0):
        return [0.0001] * 20
        yield

    def immediate(node, key):
        return [0.0001] * 3
        yield

    always = Server("--appendonly", "yes", "--appendfsync", "always")
    monkeypatch.setattr(probe, "time_round_trips", same)
    monkeypatch.setattr(probe, "time_confirmations", immediate)
    with always, Penstock(always.address) as other:
        result = Inspector(other).doctor("persistence")[-1]
    assert (result.level, "no disk is so fast" in result.message) == ("warn", True)


def test_a_failed_snapshot_fails(examine):
    def fail_to_save(client):
        client.config_set("dir", "/proc")
        client.bgsave()
        eventually(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")

    options = ("--enable-protected-configs", "yes")
    assert "the last snapshot failed" in only(examine("persistence", *options, before=fail_to_save), "fail")


# --- replicas ---


def test_a_replica_fails_because_it_refuses_writes(examine):
    with Server(port=free_port()) as master:
        results = examine("server", "--replicaof", f"127.0.0.1 {master.port}")
    assert "it is a replica" in only(results, "fail")


def test_missing_replicas_fail_and_one_in_sync_is_reported(examine):
    assert "it refuses writes" in only(examine("replicas", "--min-replicas-to-write", "1"), "fail")
    with Server(port=free_port()) as master, _replica(master):
        eventually(lambda: "online" in master.ask("INFO", "replication"))
        with Penstock(master.address) as app:
            assert "1 replica, at most" in Inspector(app).doctor("replicas")[0].message
            assert Inspector(app).doctor("persistence")[-1].message == "durable=True waits for a replica"


# --- latency ---


def test_slow_round_trips_warn(server, monkeypatch):
    def slow(node):
        return [0.5] * 200
        yield

    monkeypatch.setattr(probe, "time_pings", slow)
    with Penstock(server.address) as other:
        result = Inspector(other).doctor("latency")[0]
    assert (result.level, "a ping takes 500 ms" in result.message) == ("warn", True)


def test_a_slow_script_of_penstock_and_what_held_up_the_server_warn(examine):
    def hold_up(client):
        client.config_set("latency-monitor-threshold", 10)
        client.eval("local n = 0 for i = 1, 2e7 do n = n + i end return n", 1, "{penstock:mail}:")
        client.execute_command("DEBUG", "SLEEP", "0.1")

    warnings = only(examine("latency", "--enable-debug-command", "yes", before=hold_up), "warn")
    assert "a script of Penstock took" in warnings
    assert "held up by command" in warnings


def test_slow_commands_of_others_are_kept_apart_from_scripts_of_penstock(examine):
    def hold_up(client):
        client.config_set("slowlog-log-slower-than", 0)
        client.eval("return 1", 1, "{penstock:mail}:")
        client.config_set("slowlog-log-slower-than", 10_000)
        client.execute_command("DEBUG", "SLEEP", "0.1")

    warnings = only(examine("latency", "--enable-debug-command", "yes", before=hold_up), "warn")
    assert "slow commands of others in a day: DEBUG 1" in warnings
    assert "a script of Penstock" not in warnings


# --- rights ---


def test_an_admin_has_all_rights(examine):
    assert examine("rights")[0][:2] == ("ok", "user 'default' may send everything that Penstock sends")


@pytest.fixture
def rights():
    """Asks the doctor, as a user with these rights, about a queue `mail` of prefix `acl`.

    The user loses all other rights once it has connected, because the first connection is refused without some rights.
    """

    def ask(*rules, used=("mail",)):
        with Server() as server:
            server.ask("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all")
            with Penstock(server.address, prefix="acl") as app:
                for name in used:
                    app.queue(name).put(1)
            with Penstock(f"unix://{server.socket}?username=app&password=secret", prefix="acl") as app:
                app.queue("other").count()
                server.ask("ACL", "SETUSER", "app", "resetkeys", "resetchannels", "-@all", *rules)
                return [(one.level, one.message, one.advice) for one in Inspector(app).doctor("rights")]

    return ask


def test_a_right_that_is_missing_is_named_with_the_command_that_gives_it(rights):
    (result,) = rights("~*", "&*", "+@all", "-zadd", "-ssubscribe")
    assert result == ("fail", "user 'app' may not send SSUBSCRIBE, ZADD", "ACL SETUSER app +ssubscribe +zadd")


@pytest.mark.parametrize(
    ("refused", "needed"), [("-eval", "+eval"), ("-evalsha", "+evalsha"), ("-@scripting", "+eval +evalsha")]
)
def test_a_user_who_may_run_no_script_fails(rights, refused, needed):
    first, *others = rights("~*", "&*", "+@all", refused)
    assert (first[0], needed in first[2]) == ("fail", True), [first, *others]


def test_rights_to_all_existing_queues_and_to_our_channels_are_enough(rights):
    assert [level for level, _, _ in rights("~{acl:mail}:*", "&penstock:wake:*", "+@all")] == ["ok"]
    assert [level for level, _, _ in rights("~{acl:*", "&penstock:wake:*", "+@all", used=())] == ["ok"]


@pytest.mark.parametrize("keys", ["~{acl:*}:lane:*", "~{acl:mail}:?*", "%R~{acl:*", "~{other:*"])
@pytest.mark.parametrize("used", [("mail",), ()])
def test_missing_rights_to_keys_are_kept_apart_from_those_to_commands(rights, keys, used):
    (result,) = rights(keys, "&*", "+@all", used=used)
    queue = "mail" if used else "a queue, such as one named doctor"
    assert result == ("fail", f"user 'app' may not use all keys of {queue}", "ACL SETUSER app ~{acl:*}:*")


@pytest.mark.parametrize("channels", [(), ("&penstock:*:x",)])
def test_missing_rights_to_channels_are_named_with_the_command_that_gives_them(rights, channels):
    (result,) = rights("~*", *channels, "+@all")
    assert result == ("fail", "user 'app' may not use the channels of wake-ups", "ACL SETUSER app &penstock:wake:*")


@pytest.mark.parametrize("missing", [("resetchannels",), ("-ssubscribe",), ("-spublish",)])
def test_a_user_who_is_refused_at_the_start_learns_which_rights_wake_ups_need(missing):
    with Server() as server:
        server.ask("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", *missing)
        with Penstock(f"unix://{server.socket}?username=app&password=secret") as app:
            (result,) = Inspector(app).doctor("rights")
            with pytest.raises(ServerRefused, match=r"\+spublish \+ssubscribe \+sunsubscribe &penstock:wake:\*"):
                app.queue("mail").put(1)
    assert (result.level, result.topic) == ("fail", "rights")
    assert "+spublish +ssubscribe +sunsubscribe &penstock:wake:*" in result.message


def test_a_queue_among_others_that_a_user_may_not_use_is_named(rights):
    (result,) = rights("~{acl:mail}:*", "&*", "+@all", used=("mail", "raw"))
    assert result[:2] == ("fail", "user 'app' may not use all keys of raw")


def test_a_command_that_one_feature_needs_warns_with_that_feature(rights):
    results = rights("~*", "&*", "+@all", "-script", "-wait", "-waitaof")
    assert [level for level, _, _ in results] == ["warn"] * 3
    assert results[0][1] == "user 'app' may not send SCRIPT: no enqueueing inside a pipeline"
    assert results[2] == (
        "warn",
        "user 'app' may not send WAITAOF: no durable=True by the disk",
        "ACL SETUSER app +waitaof",
    )


def test_a_user_who_may_ask_little_learns_which_checks_are_blind():
    with Server() as server:
        server.ask("ACL", "SETUSER", "app", "on", ">secret", "~{penstock:*", "&*", "+@all", "-@admin", "-@dangerous")
        with Penstock(f"unix://{server.socket}?username=app&password=secret") as app:
            app.queue("mail").put(1)
            results = Inspector(app).doctor()
    messages = {result.topic: result.message for result in results}
    assert "may not read INFO" in messages["server"]
    assert "may not ask" in messages["rights"]
    assert [result for result in results if result.level == "fail"] == []


# --- a remote server, and one whose clock is wrong ---


def test_a_remote_server_without_tls_and_password_warns(server, monkeypatch):
    monkeypatch.setattr("penstock.ops.checks.measurements.Measurements.is_near", False)
    with Penstock(server.address) as other:
        messages = [result.message for result in Inspector(other).doctor("server")]
    assert "the connection to it is not encrypted" in messages
    assert "it asks for no password" in messages


def test_a_clock_that_is_off_is_reported_as_harmless(server, monkeypatch):
    def later(node):
        yield from ()
        import time

        return time.time() + 90

    monkeypatch.setattr(probe, "server_time", later)
    with Penstock(server.address) as other:
        (result,) = Inspector(other).doctor("clock")
    assert (result.level, result.message) == ("ok", "the server is 90 s ahead of this machine")


# --- the app's own ---


@pytest.mark.damages
def test_a_stray_key_fails(apps, raw):
    with apps.make() as app:
        key = app.queue("mail").first.bindings.keys.base + "stray"
        raw.set(key, 1)
        (result,) = Inspector(app).doctor("keys")
        raw.delete(key)
    assert (result.level, result.message) == ("fail", f"{key}: Penstock has no key of this name")


def test_queues_that_need_attention_warn(apps, monkeypatch):
    with apps.make() as app:
        app.queue("held-up").put(1)
        app.queue("held-up").pause()
        app.queue("dead").put(1)
        app.queue("dead").claim()[0].fail("it broke")
        app.queue("old").put(1)
        app.queue("lost").put(1)
        app.queue("lost").claim(lease=0.05)
        app.queue("parked").put(1, tenant="acme")
        app.queue("parked").pause(tenant="acme")
        assert app.queue("parked").claim() == []
        monkeypatch.setattr("penstock.ops.health.PARKED_AFTER", 0.1)
        eventually(lambda: app.queue("parked").count().oldest_parked > 0.1)
        monkeypatch.setattr("penstock.ops.health.NO_WORKER_AFTER", 0)
        eventually(lambda: app.queue("lost").workers()[0].lease < 0 and app.queue("old").count().oldest > 0)
        results = {result.message.split(":")[0].split()[0]: result for result in Inspector(app).doctor("queues")}
        app.queue("lost").claim()[0].complete()
    assert results["held-up"].advice == "penstock queue resume held-up"
    assert results["dead"].advice == "penstock dead ls dead"
    assert "queue held-up was paused 0." in results["held-up"].message
    assert "no worker serves it; 1 job is ready, the oldest for" in results["old"].message
    assert "no live worker serves queue old" in results["old"].message
    assert results["old"].advice == "start a worker: penstock worker MODULE:APP --queues old"
    assert "the oldest of its 1 parked job has waited for" in results["parked"].message
    assert results["parked"].advice == "penstock queue show parked"
    assert "claimed by workers that died" in results["lost"].message
    assert results["lost"].advice == "start a worker: penstock worker MODULE:APP --queues lost"


def test_it_leaves_nothing_behind():
    with Server("--appendonly", "yes") as server, Penstock(server.address) as app:
        Inspector(app).doctor()
        assert server.client.dbsize() == 0
        assert server.client.info("commandstats")["cmdstat_set"]["calls"] > 0


# --- a cluster ---


def test_a_cluster_that_does_not_serve_all_slots_fails():
    with Cluster(3) as cluster, Penstock(cluster.address) as app:
        for node in cluster.nodes:
            node.ask("CLUSTER", "DELSLOTS", 0)
        eventually(lambda: all("cluster_state:fail" in node.ask("CLUSTER", "INFO") for node in cluster.nodes))
        results = Inspector(app).doctor("cluster")
    assert len(results) == 3
    assert any(result.level == "fail" and "state fail" in result.message for result in results)


def test_a_cluster_without_one_of_its_nodes_is_checked_as_far_as_possible():
    with Cluster(3) as cluster, Penstock(cluster.address, settings=Settings(give_up_after=0.2)) as app:
        app.queue("mail").put(1)
        lost = next(node for node in cluster.nodes[1:])
        lost.kill()
        results = Inspector(app).doctor()
        lost.start()
    failed = {(result.topic, result.server) for result in results if result.level == "fail"}
    assert ("server", f"127.0.0.1:{lost.port}") in failed
    assert ("keys", "") in failed
    assert sum(result.topic == "memory" and "in use" in result.message for result in results) == 2


# --- as a command ---


def test_the_command_ends_with_one_when_something_fails(server, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_URL", server.address)
    assert main(["doctor", "memory"]) == Exit.OK
    assert "ok   memory       maxmemory-policy noeviction\n" in capsys.readouterr().out
    server.client.config_set("maxmemory", "1gb")
    server.client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        assert main(["doctor", "memory", "--json"]) == Exit.FAILED
        document = json.loads(capsys.readouterr().out)
        assert main(["doctor", "memory"]) == Exit.FAILED
        assert "-> CONFIG SET maxmemory-policy noeviction" in capsys.readouterr().out
    finally:
        server.client.config_set("maxmemory-policy", "noeviction")
        server.client.config_set("maxmemory", "0")
    assert document["ok"] is False
    assert document["results"][0]["level"] == "fail"
    assert main(["doctor", "weather"]) == Exit.USAGE
