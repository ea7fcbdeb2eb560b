"""The egress process of tests: the real one, with names of the test's own and a piece of loopback for the
internet. `$BEIGE_HOME/names.json`: name to the answers of its resolver, one list of addresses per question;
the last one is repeated."""

import json
import os
import socket
from collections import Counter
from functools import partial
from ipaddress import ip_address, ip_network
from pathlib import Path

from beige.process import run
from services.egress.dialer import refused
from services.egress.service import main

INTERNET = ip_network("127.0.5.0/24")
asked = Counter()


async def resolve(host, _port, _agent):
    names = json.loads((Path(os.environ["BEIGE_HOME"]) / "names.json").read_text())
    if host not in names:
        raise socket.gaierror(socket.EAI_NONAME, "no such name")
    answers = names[host]
    asked[host] += 1
    return answers[min(asked[host], len(answers)) - 1]


def refused_in_tests(address):
    return "" if ip_address(address) in INTERNET else refused(address)


run("egress", partial(main, resolve=resolve, refused=refused_in_tests))
