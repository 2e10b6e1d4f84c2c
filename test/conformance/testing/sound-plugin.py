#!/usr/bin/env python3
"""A small CNI plugin that keeps every rule the kit asks about, but for the rule that its second argument names."""
import fcntl, json, os, re, sys

VERSIONS = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]
FLAW = sys.argv[1] if len(sys.argv) > 1 else ""
SPOKEN = sys.argv[2:] or VERSIONS
env = lambda name: os.environ.get("CNI_" + name, "")
at_least = lambda version, least: VERSIONS.index(version) >= VERSIONS.index(least)


class Refusal(Exception):
    def __init__(self, code, msg):
        self.code, self.msg = code, msg


def output(*command):
    """Both streams and the status of a program; the module subprocess takes longer to load than all the rest here."""
    reader, writer = os.pipe()
    streams = [(os.POSIX_SPAWN_DUP2, writer, 1), (os.POSIX_SPAWN_DUP2, writer, 2), (os.POSIX_SPAWN_OPEN, 0, "/dev/null", 0, 0)]
    pid = os.posix_spawnp(command[0], command, os.environ, file_actions=streams)
    os.close(writer)
    with open(reader) as file:
        text = file.read()
    return text, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def ip(*commands, netns=None):
    """Runs commands of ip in one process, each given as a text without "ip"; stops at the first that fails."""
    enter = ["nsenter", "--net=" + netns] if netns else []
    text, status = output(*enter, *(["ip", *commands[0].split()] if len(commands) == 1 else
                                    ["sh", "-c", " && ".join("ip " + command for command in commands)]))
    if status != 0:
        raise Refusal(5, "ip " + ", ".join(commands) + ": " + text.strip())
    return text


def environment(command, needed):
    bad = ["CNI_" + name for name in needed if env(name) == ""]
    if bad and FLAW != "environment-unchecked":
        raise Refusal(4, "missing: " + (bad[0] if FLAW == "first-variable-only" else ", ".join(bad)))
    if "CONTAINERID" in needed and FLAW != "container-id-unchecked":
        if not re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*", env("CONTAINERID")):
            raise Refusal(4, "CNI_CONTAINERID is malformed")
    if "IFNAME" in needed and (env("IFNAME") in (".", "..") or not re.fullmatch(r"[^\s/:]{1,15}", env("IFNAME"))):
        raise Refusal(4, "CNI_IFNAME is malformed")


def configuration():
    try:
        config = json.loads(sys.stdin.read())
    except ValueError:
        raise Refusal(5 if FLAW == "decode-code" else 6, "the configuration is no JSON")
    if not isinstance(config, dict):
        raise Refusal(6, "the configuration is no object")
    version = config.setdefault("cniVersion", "0.1.0")
    if version not in SPOKEN:
        raise Refusal(7 if FLAW == "version-code" else 1, "cniVersion is not spoken here")
    if not re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*", str(config.get("name") or "")) or not isinstance(config["name"], str):
        raise Refusal(7, "name is missing or malformed")
    return config


class Leases:
    """container and interface → number of the address, in one locked file."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "table")
        self.lock = open(os.path.join(folder, "lock"), "w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.table = json.load(open(self.path)) if os.path.exists(self.path) else {}

    def save(self):
        with open(self.path + ".tmp", "w") as file:
            json.dump(self.table, file)
        os.rename(self.path + ".tmp", self.path)
        if not self.table:
            os.unlink(self.path)

    def take(self, key):
        taken = [] if FLAW == "same-address" else self.table.values()
        self.table[key] = next(n for n in range(2, 250) if n not in taken)
        self.save()
        return self.table[key]

    def drop(self, key):
        if FLAW != "keeps-lease" and self.table.pop(key, None) is not None:
            self.save()


key = lambda: env("CONTAINERID") + "/" + env("IFNAME")
host_name = lambda container: "h" + format(abs(sum(ord(c) * 31**i for i, c in enumerate(container))) % 16**10, "x")
links = lambda netns=None: json.loads(ip("-j address", netns=netns) or "[]")


def result(config, address, mac):
    version, own = config["cniVersion"], {"address": address + "/24"}
    said = "0.4.0" if FLAW == "wrong-result-version" and version == "1.1.0" else version
    if not at_least(version, "0.3.0"):
        return {"cniVersion": said, "ip4": {"ip": address + "/24", "routes": [{"dst": "198.18.0.0/24"}]}}
    previous = config.get("prevResult") if FLAW != "drops-previous" else None
    before = previous or {"interfaces": [], "ips": [], "routes": []}
    if not at_least(version, "1.0.0") or FLAW == "ip-version-kept":
        own["version"] = "4"
    own["interface"] = len(before["interfaces"]) + (7 if FLAW == "wrong-index" else 0)
    if FLAW == "wrong-mac":
        mac = "02:00:00:00:00:01"
    interface = {"name": env("IFNAME"), "mac": mac, "sandbox": "" if FLAW == "no-sandbox" else env("NETNS")}
    return {**before, "cniVersion": said, "interfaces": [*before["interfaces"], interface], "ips": [*before["ips"], own],
            "routes": [*before.get("routes", []), {"dst": "198.18.0.0/24"}]}


def add(config):
    netns, name = env("NETNS"), env("IFNAME")
    if any(link["ifname"] == name for link in links(netns)):
        if FLAW != "replaces-interface":
            raise Refusal(101, name + " is there already")
        ip("link delete " + name, netns=netns)
    if (config.get("ipam") or {}).get("type") not in (None, "own"):
        raise Refusal(7, "there is no such IPAM plugin")
    leases = Leases(config["leases"])
    address = "10.66.0." + str(leases.take(key()))
    host = host_name(key())
    peer = "t" + host[1:]
    ip(f"link add {host} type veth peer name {peer}", f"link set {peer} netns {netns}", f"link set {host} up")
    route = [] if FLAW == "route-not-made" else [f"route replace 198.18.0.0/24 dev {name}"]
    ip(f"link set {peer} name {name} alias {env('CONTAINERID')}", f"address add {address}/24 dev {name}",
       f"link set {name} up", *route, netns=netns)
    mac = next(link["address"] for link in links(netns) if link["ifname"] == name)
    print(json.dumps(result(config, address, mac)))
    if FLAW == "two-documents":
        print("{}")


def release(config, wanted):
    Leases(config["leases"]).drop(wanted)
    if FLAW == "keeps-link":
        return
    try:
        ip("link delete " + host_name(wanted))
    except Refusal:
        if FLAW == "strict-del":
            raise


def delete(config):
    if FLAW == "del-needs-netns" and not os.path.exists(env("NETNS") or "/nowhere"):
        raise Refusal(5, "no namespace")
    if FLAW == "deletes-foreign" and os.path.exists(env("NETNS") or "/nowhere"):
        output("nsenter", "--net=" + env("NETNS"), "ip", "link", "delete", env("IFNAME"))
    release(config, key())
    if FLAW == "talks":
        print("done")


def check(config):
    if "prevResult" not in config:
        raise Refusal(7, "prevResult is missing")
    if FLAW == "check-blind":
        return
    number = Leases(config["leases"]).table.get(key())
    link = next((link for link in links(env("NETNS")) if link["ifname"] == env("IFNAME")), None)
    has = [entry["local"] for entry in (link or {}).get("addr_info", [])]
    if number is None or link is None:
        raise Refusal(102, "the lease or the interface has gone")
    # With a link's last address its routes go: whoever sees one of the two misses neither loss.
    if FLAW == "check-sees-links-only":
        return
    if "10.66.0." + str(number) not in has:
        raise Refusal(102, "the address has gone")
    if FLAW != "check-misses-route" and "198.18.0.0/24" not in ip("route", netns=env("NETNS")):
        raise Refusal(102, "the route has gone")


def collect(config):
    valid = config.get("cni.dev/valid-attachments", False)
    if valid is False:
        return
    listed = [] if FLAW == "gc-takes-all" else [entry["containerID"] + "/" + entry["ifname"] for entry in valid or []]
    for stale in [entry for entry in Leases(config["leases"]).table if entry not in listed]:
        if FLAW != "gc-does-nothing":
            release(config, stale)


NEEDED = {"ADD": ["CONTAINERID", "NETNS", "IFNAME"], "CHECK": ["CONTAINERID", "NETNS", "IFNAME"],
          "DEL": ["CONTAINERID", "IFNAME"], "GC": ["PATH"], "STATUS": []}
SINCE = {"CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}
RUN = {"ADD": add, "DEL": delete, "CHECK": check, "GC": collect, "STATUS": lambda config: None}


def main():
    stated = None
    try:
        command = env("COMMAND")
        if command == "VERSION":
            text = sys.stdin.read()
            asked = json.loads(text).get("cniVersion", "1.1.0") if text else "1.1.0"
            listed = [] if FLAW == "lists-nothing" else SPOKEN
            return print(json.dumps({"cniVersion": "1.0.0" if FLAW == "no-echo" else asked, "supportedVersions": listed}))
        if command not in RUN:
            raise Refusal(4, "unknown CNI_COMMAND: " + command)
        environment(command, NEEDED[command])
        config = configuration()
        stated = config["cniVersion"]
        if command in SINCE and not at_least(stated, SINCE[command]) and FLAW != "any-verb":
            raise Refusal(1, command + " came with " + SINCE[command])
        if FLAW == "status-fails" and command == "STATUS":
            raise Refusal(50, "never ready")
        RUN[command](config)
    except Refusal as refusal:
        document = {"cniVersion": stated or "1.1.0", "code": refusal.code, "msg": refusal.msg}
        if FLAW == "error-without-version":
            del document["cniVersion"]
        if FLAW == "error-reserved-code":
            document["code"] = 77
        print("failed: " + refusal.msg if FLAW == "error-is-text" else json.dumps(document))
        sys.exit(0 if FLAW == "error-status-zero" else 1)


main()
