"""Packs the Python package and the program `paceline` into one wheel, as `cargo xtask wheel` does.

    python3 python/build_wheel.py PROGRAM FOLDER

Only Python's own library is used, nothing is compiled, and nothing is written but the wheel. `pip install ./python` does
without this file: it gives the package alone, to people who have the program already.
"""

import argparse
import base64
import hashlib
import re
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent

LEVELS = (17, 24, 26, 27, 28, 31)
"""The manylinux levels, by glibc 2.N; from 34 on there is one for every N."""

OF_GLIBC = re.compile(r"lib(c|m|dl|pthread|rt|util|gcc_s)\.so\.\d+|ld-linux.*\.so\.\d+")
"""The libraries that every manylinux system has, of those that Rust links."""

MACHINES = {62: "x86_64", 183: "aarch64"}


def platform_tag(program: bytes) -> str:
    """The tag that maturin gives: by the libraries and the glibc versions that an ELF file needs."""
    if program[:6] != b"\x7fELF\x02\x01":
        raise ValueError("is not a 64-bit ELF program: wheels are built on Linux only")
    machine = MACHINES.get(struct.unpack_from("<H", program, 18)[0])
    if machine is None:
        raise ValueError(f"is for another machine than {' and '.join(MACHINES.values())}")
    libraries, versions = _needed(program)
    glibc = [int(found[1]) for found in (re.match(r"GLIBC_2\.(\d+)", name) for name in versions) if found]
    if not glibc or not all(OF_GLIBC.fullmatch(name) for name in libraries):
        return f"linux_{machine}"
    newest = max(glibc)
    level = next((level for level in LEVELS if level >= newest), max(newest, 34))
    alias = f".manylinux2014_{machine}" if level == 17 else ""
    return f"manylinux_2_{level}_{machine}{alias}"


def _needed(program: bytes) -> "tuple[list[str], list[str]]":
    """Names of the shared libraries (DT_NEEDED), and of the versions of their symbols (.gnu.version_r)."""
    (at,) = struct.unpack_from("<Q", program, 40)
    size, count = struct.unpack_from("<HH", program, 58)
    # Of each section: name, type, flags, address, offset, size, link, info.
    sections = [struct.unpack_from("<IIQQQQII", program, at + size * number) for number in range(count)]

    def text(section: int, offset: int) -> str:
        start = sections[section][4] + offset
        return program[start : program.index(0, start)].decode()

    libraries, versions = [], []
    for _, kind, _, _, offset, length, strings, entries in sections:
        if kind == 6:  # SHT_DYNAMIC
            pairs = struct.iter_unpack("<QQ", program[offset : offset + length])
            libraries += [text(strings, value) for tag, value in pairs if tag == 1]
        if kind == 0x6FFFFFFE:  # SHT_GNU_VERNEED
            for _ in range(entries):
                _, needs, _, first, following = struct.unpack_from("<HHIII", program, offset)
                need = offset + first
                for _ in range(needs):
                    name, after = struct.unpack_from("<8xII", program, need)
                    versions.append(text(strings, name))
                    need += after
                offset += following
    return libraries, versions


def metadata(project: "dict[str, object]") -> str:
    """The METADATA of what `pyproject.toml` says."""
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {project['name']}",
        f"Version: {project['version']}",
        f"Summary: {project['description']}",
        f"License: {project['license']['text']}",
        f"Requires-Python: {project['requires-python']}",
        "Description-Content-Type: text/markdown",
    ]
    lines += [f"Requires-Dist: {needed}" for needed in project["dependencies"]]
    for extra, packages in project["optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f'Requires-Dist: {needed}; extra == "{extra}"' for needed in packages]
    return "\n".join(lines) + "\n\n" + (HERE / str(project["readme"])).read_text()


def build(program: Path, folder: Path) -> Path:
    """Writes the wheel into a folder; where it lies."""
    try:
        import tomllib
    except ImportError:
        raise ValueError(f"Python 3.11 or later is needed, this is {sys.version.split()[0]}") from None
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    name, version = project["name"], project["version"]
    said = subprocess.run([program, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    if said.strip() != f"paceline {version}":
        first = said.partition("\n")[0]
        raise ValueError(f"{program} --version says `{first}`, python/pyproject.toml has paceline {version}")
    binary = program.read_bytes()
    try:
        tag = f"py3-none-{platform_tag(binary)}"
    except ValueError as error:
        raise ValueError(f"{program} {error}") from None
    tags = "".join(f"Tag: py3-none-{platform}\n" for platform in tag.split("-", 2)[2].split("."))
    info = f"{name}-{version}.dist-info"
    package = sorted(path for path in (HERE / name).rglob("*") if path.suffix == ".py" or path.name == "py.typed")
    files = [(path.relative_to(HERE).as_posix(), path.read_bytes()) for path in package]
    files.append((f"{name}-{version}.data/scripts/paceline", binary))
    licences = sorted(HERE.parent.glob("LICENSE-*"))
    files += [(f"{info}/licenses/{path.name}", path.read_bytes()) for path in licences]
    files.append((f"{info}/METADATA", metadata(project).encode()))
    files.append((f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: paceline\nRoot-Is-Purelib: false\n{tags}".encode()))
    record = f"{info}/RECORD"
    digest = lambda data: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    lines = [f"{path},sha256={digest(data)},{len(data)}\n" for path, data in files]
    files.append((record, ("".join(lines) + f"{record},,\n").encode()))

    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files:
            # The same content gives the same bytes, whenever it is packed.
            entry = zipfile.ZipInfo(path)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if "/scripts/" in path else 0o100644) << 16
            archive.writestr(entry, data)
    return wheel


def main() -> None:
    parser = argparse.ArgumentParser(description="Packs the package and the program into one wheel.")
    parser.add_argument("program", type=Path, help="the program `paceline`, stripped")
    parser.add_argument("folder", type=Path, help="where the wheel is written")
    words = parser.parse_args()
    try:
        print(build(words.program, words.folder))
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        sys.exit(f"build_wheel.py: {error}")


if __name__ == "__main__":
    main()
