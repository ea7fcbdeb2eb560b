"""apt, pip, npm and Deno each install a package in an `open` container, through the proxy.

The registries are the test's own: an apt repository (plain HTTP), a PyPI index, an npm registry and a module
server for Deno (HTTPS).
The registries' names are known to the test's egress process alone; their CA is given to the programs by the
variables they have for it.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
import threading
import zipfile
from email.utils import formatdate

import pytest

from beige import auditlog
from tests.simulator.internet import Internet, answer, read_head

pytestmark = pytest.mark.docker
PYPI, NPM, DENO, APT = "pypi.example", "npm.example", "deno.example", "deb.example"


class Registry:
    """Fixed files by path, over HTTP; remembers what was asked for."""

    def __init__(self):
        self.files = {}
        self.asked = []
        self._lock = threading.Lock()

    def __call__(self, connection):
        while head := read_head(connection):
            path = head.split(b" ")[1].decode().partition("?")[0]
            with self._lock:
                self.asked.append(path)
            content, kind = self.files.get(path, (None, ""))
            if content is None:
                connection.sendall(answer(b"not here", "404 Not Found"))
            else:
                headers = (f"Content-Type: {kind}", f"Last-Modified: {formatdate(usegmt=True)}")
                connection.sendall(answer(content, "200 OK", *headers))


def wheel():
    """hello_beige 1.0, a package with one module and a program."""
    info = "hello_beige-1.0.dist-info"
    files = {
        "hello_beige.py": "def main():\n    print('hello from pip')\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: hello-beige\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\nhello-beige = hello_beige:main\n",
    }
    rows = [f"{name},sha256={_digest(text)},{len(text)}" for name, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""])
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return out.getvalue()


def _digest(text):
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def tgz(files, mode=0o644):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text), mode
            tar.addfile(entry, io.BytesIO(text.encode()))
    return out.getvalue()


def deb():
    """hello-beige 1.0 for all architectures: an ar archive of three members."""
    control = (
        "Package: hello-beige\nVersion: 1.0\nArchitecture: all\nMaintainer: t <t@t.example>\nDescription: t\n"
    )
    members = {
        "debian-binary": b"2.0\n",
        "control.tar.gz": tgz({"./control": control}),
        "data.tar.gz": tgz({"./usr/bin/hello-beige": "#!/bin/sh\necho hello from apt\n"}, 0o755),
    }
    out = b"!<arch>\n"
    for name, content in members.items():
        out += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
        out += content + b"\n" * (len(content) % 2)
    return control, out


def apt_repository(registry):
    control, package = deb()
    path = "pool/hello-beige_1.0_all.deb"
    listed = (
        f"{control}Filename: {path}\nSize: {len(package)}\nSHA256: {hashlib.sha256(package).hexdigest()}\n\n"
    ).encode()
    packed = gzip.compress(listed)
    rows = [
        f" {hashlib.sha256(content).hexdigest()} {len(content)} main/binary-amd64/{name}"
        for name, content in (("Packages", listed), ("Packages.gz", packed))
    ]
    release = "\n".join(
        ["Suite: test", "Codename: test", "Architectures: amd64", "Components: main",
         f"Date: {formatdate(usegmt=True)}", "SHA256:", *rows, ""]
    ).encode()  # fmt: skip
    registry.files |= {
        f"/{path}": (package, "application/octet-stream"),
        "/dists/test/Release": (release, "text/plain"),
        "/dists/test/main/binary-amd64/Packages": (listed, "text/plain"),
        "/dists/test/main/binary-amd64/Packages.gz": (packed, "application/gzip"),
    }


def pypi_index(registry):
    content, name = wheel(), "hello_beige-1.0-py3-none-any.whl"
    page = f'<a href="/files/{name}#sha256={hashlib.sha256(content).hexdigest()}">{name}</a>'
    registry.files |= {
        "/simple/hello-beige/": (page.encode(), "text/html"),
        f"/files/{name}": (content, "application/zip"),
    }


def npm_registry(registry, place):
    package = {"name": "hello-beige", "version": "1.0.0", "bin": {"hello-npm": "cli.js"}}
    code = "#!/usr/bin/env node\nconsole.log('hello from npm')\n"
    content = tgz({"package/package.json": json.dumps(package), "package/cli.js": code}, 0o755)
    dist = {
        "tarball": f"https://{place}/hello-beige/-/hello-beige-1.0.0.tgz",
        "integrity": "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode(),
    }
    about = {
        "name": "hello-beige",
        "dist-tags": {"latest": "1.0.0"},
        "versions": {"1.0.0": {**package, "dist": dist}},
    }
    registry.files |= {
        "/hello-beige": (json.dumps(about).encode(), "application/json"),
        "/hello-beige/-/hello-beige-1.0.0.tgz": (content, "application/octet-stream"),
    }


class Registries:
    def __init__(self, house, sites, registries, ca):
        self.house, self.sites, self.registries, self.ca = house, sites, registries, ca

    def run(self, agent, script):
        """Output of a script that succeeds; the CA of the registries is in $CA."""
        from beige.messages.sandbox import ExecRequest

        result = {}

        async def test(bus):
            trusted = f"export CA=/workspace/ca.pem; cat >$CA <<'EOF'\n{self.ca}\nEOF\n"
            body = ExecRequest(f"set -e\n{trusted}{script}")
            result["done"] = await bus.call("sandbox.exec", body, agent=agent, ttl_s=110)

        self.house.operate(test)
        done = result["done"]
        assert done.exit_code == 0, (done.stdout + done.stderr).decode()
        return done.stdout.decode()

    def recorded(self, name):
        """Destinations of that name in the audit log, with what was decided."""
        found = auditlog.records_backwards(self.house.home.audit_log, 1 << 22)
        return {(r.args[0], r.decision) for r in found if r.type == "egress" and r.args[0].startswith(name)}


@pytest.fixture(scope="module")
def registries(make_house, open_image, tools):
    with make_house({}) as house, Internet(house.home) as internet:
        made = {name: Registry() for name in (PYPI, NPM, DENO, APT)}
        sites = {name: internet.site(name, made[name], tls=name != APT) for name in made}
        apt_repository(made[APT])
        pypi_index(made[PYPI])
        npm_registry(made[NPM], sites[NPM].place)
        module = b"export const hello: string = 'hello from deno';"
        made[DENO].files["/hello.ts"] = (module, "application/typescript")
        box = {"profile": "open", "egress": {"allow": [site.place for site in sites.values()]}}
        for name in ("sandbox", "policy"):
            house.stop(name)
        agents = {"user": tools.agent(open_image, **box), "root": tools.agent(open_image, **box, root=True)}
        tools.write_config(house.home, agents)
        house.start("policy")
        internet.start(house)
        house.start("bridge")
        house.start("sandbox")
        yield Registries(house, sites, made, internet.ca.cert_pem.bytes().decode().strip())


def test_pip_installs_through_the_proxy(registries):
    place = registries.sites[PYPI].place
    pip = f"pip install -q --disable-pip-version-check --cert $CA --index-url https://{place}/simple/"
    out = registries.run("user", f"{pip} hello-beige\nhello-beige")
    assert out == "hello from pip\n"
    assert registries.recorded(PYPI) == {(place, "allowed")}


def test_pip_installs_into_a_virtual_environment(registries):
    place = registries.sites[PYPI].place
    script = (
        "python3 -m venv /workspace/venv\n"
        f"/workspace/venv/bin/pip install -q --disable-pip-version-check --cert $CA "
        f"--index-url https://{place}/simple/ hello-beige\n/workspace/venv/bin/hello-beige"
    )
    assert registries.run("user", script) == "hello from pip\n"


def test_npm_installs_through_the_proxy(registries):
    place = registries.sites[NPM].place
    script = (
        "export NODE_EXTRA_CA_CERTS=$CA NPM_CONFIG_UPDATE_NOTIFIER=false\n"
        f"npm install --silent --no-fund --no-audit -g --registry https://{place}/ hello-beige\nhello-npm"
    )
    assert registries.run("user", script).splitlines()[-1] == "hello from npm"
    assert registries.recorded(NPM) == {(place, "allowed")}


def test_deno_imports_through_the_proxy(registries):
    place = registries.sites[DENO].place
    script = (
        "export DENO_CERT=$CA\n"
        f"echo 'import {{ hello }} from \"https://{place}/hello.ts\"' >/workspace/main.ts\n"
        "echo 'console.log(hello)' >>/workspace/main.ts\n"
        "deno run --quiet --allow-import /workspace/main.ts"
    )
    assert registries.run("user", script) == "hello from deno\n"
    assert registries.recorded(DENO) == {(place, "allowed")}


def test_apt_installs_as_root_inside(registries):
    place = registries.sites[APT].place
    script = (
        "rm -f /etc/apt/sources.list /etc/apt/sources.list.d/*\n"
        f"echo 'deb [trusted=yes arch=amd64] http://{place}/ test main' >/etc/apt/sources.list\n"
        "apt-get -qq update\n"
        "export DEBIAN_FRONTEND=noninteractive\n"
        "apt-get -qq install -y --no-install-recommends hello-beige >/dev/null\n"
        "hello-beige"
    )
    assert registries.run("root", script) == "hello from apt\n"
    assert registries.recorded(APT) == {(place, "allowed")}
    assert "/pool/hello-beige_1.0_all.deb" in registries.registries[APT].asked


def test_a_registry_that_is_not_listed_is_named_by_pips_own_error(registries):
    from beige.messages.sandbox import ExecRequest

    async def test(bus):
        body = ExecRequest("pip install --retries 1 --index-url https://elsewhere.example/simple/ absent")
        done = await bus.call("sandbox.exec", body, agent="user", ttl_s=100)
        assert done.exit_code == 1
        assert b'add agents.user.sandbox.egress.allow: "elsewhere.example:443"' in done.stdout + done.stderr

    registries.house.operate(test)
    assert registries.recorded("elsewhere.example") == {("elsewhere.example:443", "denied")}
