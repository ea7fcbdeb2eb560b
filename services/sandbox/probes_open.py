"""What the profile open changes about the probes: the walls it has not, each with what is seen instead. Pure.

Everything that is not named here holds as in `sealed`: mounts, kernel, executor, limits; and the network,
unless the operator took that wall away.
"""

from __future__ import annotations

from services.sandbox.probes import Changes, Facts, LeftOut
from services.sandbox.probes_inside import DIRECTORIES

_READ_ONLY = ("/tools/bin", "/tools/packages", "/run/beige")
_OWN = "root inside may, in files that are this container's alone"

_OPEN: Changes = {
    "root-flag": "false",
    "root-mount": "rw",
    "package-managers": "apt apt-get dpkg npm pip pip3",
    "privilege-tools": LeftOut("the image has them; without capabilities they do nothing"),
    "tmp-noexec": LeftOut("installers run programs in /tmp"),
    "home-size": LeftOut("HOME is in the root layer"),
}


_ROOT: Changes = {
    "user": "0:0",
    "cap-add": '["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_SETGID", "CAP_SETUID"]',
    "uid": "0",
    "gid": "0 0",
    # CHOWN, DAC_OVERRIDE, FOWNER, FSETID, SETGID, SETUID; none to be inherited.
    "capabilities": "0000000000000000\n00000000000000db",
    "setuid-0": "worked",
    "setgroups": "worked",
    "chown": "worked",
    "set-id-files": LeftOut("a package may have brought some; no-new-privileges makes them harmless"),
    "set-uid-workspace": "0",
    "writable-directories": " ".join(d for d in DIRECTORIES.split() if d not in _READ_ONLY),
    "engine-files": LeftOut(_OWN),
    "abuse-survived": "0",
}


_NO_WALL = LeftOut("sandbox.network is bridge: this wall was taken away")
_BRIDGE: Changes = {
    "network-mode": "bridge",
    "networks": "bridge",
    "addresses": _NO_WALL,
    "interfaces": "eth0 lo",
    "routes": _NO_WALL,
    "no-way-out": _NO_WALL,
}


def changes(facts: Facts) -> Changes:
    if facts.profile != "open":
        return {}
    on_bridge = facts.network == "bridge"
    return {**_OPEN, **(_ROOT if facts.root else {}), **(_BRIDGE if on_bridge else {})}
